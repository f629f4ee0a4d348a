//! Existing journals: the outcome of each step, and which run can be resumed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;

use crate::event::{CONTROLLER, Outcome};
use crate::record::{Chain, Record};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::directory;

/// Maximum length of a line in a journal, in bytes: the first line of an in-place update holds its
/// plan.
const LONGEST_LINE: u64 = 64 << 20;

/// Phase in which hosts get the cluster's files. Elsewhere, a step `files` removes them.
const SYNC: &str = "sync";

/// Beginning of the IDs of steps with which a host begins to belong to a cluster.
const CLAIM: &str = "claim/";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PastStep {
    pub fingerprint: String,
    pub attempt: u32,
    /// Time of its last record.
    pub at: Option<Timestamp>,
    /// `None`: the step began, and its end was not recorded.
    pub outcome: Option<Outcome>,
    pub duration_ms: u64,
    pub log: Option<String>,
    pub message: Option<String>,
}

/// Content of a journal.
#[derive(Clone, Debug, Default)]
pub struct Past {
    pub id: String,
    pub verb: String,
    pub cluster: String,
    pub intent: String,
    pub plan: String,
    pub arguments: Vec<String>,
    pub controller: String,
    pub version: String,
    pub destroys: bool,
    pub aside: bool,
    /// machine-ids of hosts, as the last run found them.
    pub machines: BTreeMap<String, String>,
    pub started: Option<Timestamp>,
    pub last: Option<Timestamp>,
    /// Number of runs that used this journal.
    pub runs: u32,
    /// Outcome of the last run; `None` while it runs, or if it was killed.
    pub finished: Option<Outcome>,
    pub steps: HashMap<String, PastStep>,
    /// Steps in the order in which they first began.
    pub order: Vec<String>,
}

impl Past {
    pub fn read(path: &Path) -> Result<Self> {
        let mut past = Self {
            id: path
                .file_stem()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            ..Self::default()
        };
        each_record(path, |record| past.take(record))?;
        Ok(past)
    }

    pub fn is_done(&self) -> bool {
        self.finished == Some(Outcome::Done)
    }

    /// Makes steps count as failed on hosts that have lost what was done there: those in `blank` that had
    /// been claimed for the cluster, and those that are other machines now. If `first`, the first control
    /// plane, is one of them, steps on other hosts are lost too, since they joined a cluster that is
    /// gone. Returns these hosts, and the IDs of the steps.
    pub fn forget_lost(
        &mut self,
        blank: &BTreeSet<String>,
        machines: &BTreeMap<String, String>,
        first: Option<&str>,
    ) -> (Vec<String>, Vec<String>) {
        let host_of = |id: &str| id.split('/').nth(1).map(str::to_owned);
        let is_done =
            |step: &PastStep| matches!(step.outcome, Some(Outcome::Done | Outcome::Assumed));
        let claims = self.steps.iter().filter(|(id, step)| id.starts_with(CLAIM) && is_done(step));
        let claimed: BTreeSet<String> = claims.filter_map(|(id, _)| host_of(id)).collect();
        let other = |host: &String| {
            let ids = (self.machines.get(host), machines.get(host));
            matches!(ids, (Some(then), Some(now)) if then != now)
        };
        let mut lost: BTreeSet<String> = blank.intersection(&claimed).cloned().collect();
        lost.extend(machines.keys().filter(|host| other(host)).cloned());
        let all = first.is_some_and(|first| lost.contains(first));
        let mut steps = Vec::new();
        for (id, step) in &mut self.steps {
            let host = host_of(id).unwrap_or_default();
            if lost.contains(&host) || (all && host != CONTROLLER && is_done(step)) {
                step.outcome = Some(Outcome::Failed);
                steps.push(id.clone());
            }
        }
        steps.sort_unstable();
        (lost.into_iter().collect(), steps)
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Start {
                time,
                verb,
                cluster,
                intent,
                plan,
                arguments,
                version,
                destroys,
                aside,
                controller,
                machines,
            } => {
                self.started.get_or_insert(time);
                self.last = Some(time);
                self.runs += 1;
                self.finished = None;
                (self.verb, self.cluster, self.intent) = (verb, cluster, intent);
                (self.plan, self.arguments) = (plan, arguments);
                (self.version, self.controller) = (version, controller);
                (self.destroys, self.aside) = (destroys, aside);
                self.machines.extend(machines);
            }
            Record::Begin { time, step, fingerprint, attempt } => {
                let at = Some(time);
                self.note(step, PastStep { fingerprint, attempt, at, ..PastStep::default() });
            }
            Record::End {
                time,
                step,
                fingerprint,
                attempt,
                outcome,
                duration_ms,
                log,
                message,
                moved: _,
            } => {
                let outcome = Some(outcome);
                let at = Some(time);
                self.note(
                    step,
                    PastStep { fingerprint, attempt, at, outcome, duration_ms, log, message },
                );
            }
            Record::Finish { time, outcome } => {
                self.last = Some(time);
                self.finished = Some(outcome);
            }
        }
    }

    fn note(&mut self, step: String, past: PastStep) {
        self.last = past.at;
        if self.steps.insert(step.clone(), past).is_none() {
            self.order.push(step);
        }
    }
}

pub fn path_of(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.jsonl"))
}

/// Returns the names of all journals, newest first; empty if the directory is missing.
pub fn list(directory: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = directory::list(directory)?
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.strip_suffix(".jsonl")?.to_owned()))
        .collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Returns the newest unfinished journal of the same intent. A finished journal of any intent ends
/// the search, and so does one that undid earlier work, because the state before it no longer
/// exists. A finished `aside` journal of another intent is skipped: the run that resumes knows what
/// it undid. An aborted run is not resumed.
pub fn unfinished(directory: &Path, intent: &str) -> Result<Option<Past>> {
    for id in list(directory)? {
        let past = Past::read(&path_of(directory, &id))?;
        if past.is_done() && past.aside && past.intent != intent {
            continue;
        }
        if past.is_done() {
            return Ok(None);
        }
        if past.intent == intent {
            return Ok((past.finished != Some(Outcome::Aborted)).then_some(past));
        }
        if past.destroys {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Returns the newest run of `verb`, unless it is complete or was given up, or a later run is complete.
pub fn unfinished_verb(directory: &Path, verb: &str) -> Result<Option<Past>> {
    for id in list(directory)? {
        let past = Past::read(&path_of(directory, &id))?;
        if past.verb == verb {
            let is_over = matches!(past.finished, Some(Outcome::Done | Outcome::Aborted));
            return Ok((!is_over).then_some(past));
        }
        if past.is_done() && !past.aside {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Returns, for each of `hosts` that should have the cluster's files, the machine-id that it had when a run
/// sent them; empty if that run did not know it. Hosts whose files a later run has begun to remove are left out.
pub fn machines_with_files<'a>(
    directory: &Path,
    hosts: impl IntoIterator<Item = &'a str>,
) -> Result<BTreeMap<String, String>> {
    let mut open: BTreeSet<&str> = hosts.into_iter().collect();
    let mut found = BTreeMap::new();
    for id in list(directory)? {
        if open.is_empty() {
            break;
        }
        let past = Past::read(&path_of(directory, &id))?;
        let knows = |host: &str| {
            let of_host = past.steps.iter().filter_map(|(id, step)| {
                let (phase, rest) = id.split_once('/')?;
                (rest.strip_suffix("/files")? == host).then_some((phase, step))
            });
            let (sent, removed): (Vec<_>, Vec<_>) = of_host.partition(|(phase, _)| *phase == SYNC);
            let is_sent = sent.iter().any(|(_, step)| step.outcome == Some(Outcome::Done));
            (removed.is_empty(), is_sent)
        };
        open.retain(|host| match knows(host) {
            (true, true) => {
                let machine = past.machines.get(*host).cloned().unwrap_or_default();
                found.insert((*host).to_owned(), machine);
                false
            }
            (is_kept, _) => is_kept,
        });
    }
    Ok(found)
}

/// Returns the length of all complete lines of the file, in bytes, and the state of the chain after
/// them.
pub(super) fn whole_length(path: &Path) -> Result<(u64, Chain)> {
    let mut length = 0;
    let mut chain = Chain::default();
    each_line(path, |_, line, whole| {
        if whole {
            length += line.len() as u64 + 1;
            chain.follows(line);
        }
        Ok(())
    })?;
    Ok((length, chain))
}

/// Passes each record of the file. Ignores a partial last line left by a crash.
pub fn each_record<R: DeserializeOwned>(path: &Path, mut take: impl FnMut(R)) -> Result<()> {
    let mut chain = Chain::default();
    each_line(path, |number, line, whole| {
        if whole && !chain.follows(line) {
            return Err(Error::bad_content(format!(
                "the journal {} was modified at or before line {number}",
                path.display()
            ))
            .hint(
                "restore it; or inspect the hosts and move the file away: the next run then \
                 starts from the beginning",
            ));
        }
        match serde_json::from_slice::<R>(line) {
            Ok(record) => take(record),
            Err(_) if !whole => {}
            Err(error) => {
                return Err(Error::bad_content(format!(
                    "the journal {} is damaged at line {number}",
                    path.display()
                ))
                .caused_by(error)
                .hint("move the file away: the next run then starts from the beginning"));
            }
        }
        Ok(())
    })
}

/// Passes each line with its number and whether it is complete.
pub(super) fn each_line(
    path: &Path,
    mut take: impl FnMut(usize, &[u8], bool) -> Result<()>,
) -> Result<()> {
    let file = File::open(path).path("open the journal", path)?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        let read = std::io::Read::take(&mut reader, LONGEST_LINE)
            .read_until(b'\n', &mut line)
            .path("read the journal", path)?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        let whole = line.last() == Some(&b'\n');
        if whole {
            line.pop();
        }
        take(number, &line, whole)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Journal;

    fn journal(directory: &Path, name: &str, intent: &str, outcome: Option<Outcome>) {
        let journal = Journal::create(directory, "x", false).unwrap();
        journal
            .append(&Record::Start {
                time: Timestamp::UNIX_EPOCH,
                verb: intent.into(),
                cluster: "c".into(),
                intent: intent.into(),
                plan: String::new(),
                arguments: Vec::new(),
                version: String::new(),
                destroys: intent.starts_with("reset"),
                aside: intent.starts_with("aside"),
                controller: String::new(),
                machines: [("b:22".to_owned(), "of b".to_owned())].into(),
            })
            .unwrap();
        if let Some(outcome) = outcome {
            let time = Timestamp::UNIX_EPOCH;
            journal.append(&Record::Finish { time, outcome }).unwrap();
        }
        std::fs::rename(journal.path(), path_of(directory, name)).unwrap();
    }

    /// Writes a journal with these steps, which are done, and no end.
    fn with_steps(directory: &Path, name: &str, verb: &str, steps: &[&str]) {
        journal(directory, name, verb, None);
        let journal = Journal::reopen(directory, name, false).unwrap();
        for step in steps {
            let record = Record::End {
                time: Timestamp::UNIX_EPOCH,
                step: (*step).to_owned(),
                fingerprint: String::new(),
                attempt: 1,
                outcome: Outcome::Done,
                duration_ms: 0,
                log: None,
                message: None,
                moved: BTreeMap::new(),
            };
            journal.append(&record).unwrap();
        }
    }

    #[test]
    fn the_newest_journal_that_knows_says_whether_a_host_has_files() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let found = || {
            let found = machines_with_files(directory, ["a:22", "b:22", "c:22"]).unwrap();
            found.into_iter().map(|(host, machine)| format!("{host} {machine}")).collect::<Vec<_>>()
        };
        assert!(found().is_empty());
        with_steps(
            directory,
            "1",
            "run",
            &["claim/a:22/uid", "sync/b:22/files", "sync/c:22/files"],
        );
        assert_eq!(found(), ["b:22 of b", "c:22 "]);
        with_steps(directory, "2", "delete", &["leave-clean/c:22/clean", "leave-clean/c:22/files"]);
        assert_eq!(found(), ["b:22 of b"]);
        with_steps(directory, "3", "add", &["sync/c:22/files"]);
        assert_eq!(found(), ["b:22 of b", "c:22 "]);
    }

    #[test]
    fn a_run_of_a_verb_is_open_until_it_or_a_later_one_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let open = || unfinished_verb(directory, "reset").unwrap().map(|past| past.id);
        assert_eq!(open(), None);
        journal(directory, "1", "reset", Some(Outcome::Failed));
        journal(directory, "2", "x", Some(Outcome::Failed));
        journal(directory, "3", "aside", Some(Outcome::Done));
        assert_eq!(open().as_deref(), Some("1"));
        journal(directory, "4", "x", Some(Outcome::Done));
        assert_eq!(open(), None);
        journal(directory, "5", "reset", None);
        assert_eq!(open().as_deref(), Some("5"));
        journal(directory, "6", "reset", Some(Outcome::Aborted));
        assert_eq!(open(), None);
    }

    #[test]
    fn the_newest_unfinished_run_of_the_same_intent_is_taken_up() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let found = |intent: &str| unfinished(directory, intent).unwrap().map(|past| past.id);
        assert_eq!(found("a"), None);
        journal(directory, "1", "a", Some(Outcome::Failed));
        journal(directory, "2", "b", None);
        assert_eq!(found("a").as_deref(), Some("1"));
        assert_eq!(found("b").as_deref(), Some("2"));
        // A reset has finished: the work of "a" no longer exists.
        journal(directory, "3", "reset", Some(Outcome::Done));
        assert_eq!(found("a"), None);
        journal(directory, "4", "a", Some(Outcome::Interrupted));
        assert_eq!(found("a").as_deref(), Some("4"));
        // Only a part was undone, and the resumed run knows which.
        journal(directory, "41", "aside", Some(Outcome::Done));
        assert_eq!(found("a").as_deref(), Some("4"));
        assert_eq!(found("aside"), None);
        // Even an unfinished reset invalidates the work of "a".
        journal(directory, "5", "reset", Some(Outcome::Failed));
        assert_eq!(found("a"), None);
        assert_eq!(found("reset").as_deref(), Some("5"));
    }
}
