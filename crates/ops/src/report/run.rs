//! The data of a run's report: from its journal, its logs, and what an upgrade predicted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::report::in_place::Reader;
use crate::report::journals::{Found, Kind as JournalKind, Places, absent};
use crate::report::progress::{ProgressEvent, Step, parts};
use crate::session::Session;
use imgctl_base::error::Result;
use imgctl_base::fs::lock;
use imgctl_inplace::journal as in_place;
use imgctl_journal::{Record, readable};
use imgctl_kube::restart::{Actual, ContainerPrediction, Verdict};
use imgctl_model::state::State;
use imgctl_report::model::run::{
    Attempt, HostRestarts, HostRun, Link, Log, RestartResult, RunIdentity, RunReport, RunSession,
    StepRun,
};
use imgctl_report::model::{About, Kind};
use imgctl_upgrade::document::Document;
use imgctl_upgrade::report::Report;
use imgctl_upgrade::restarts::forward;
use imgctl_upgrade::upgrade_store::UpgradeStore;

/// Bytes of a failed step's log, from its end.
const LOG_OF_FAILED: u64 = 256 << 10;
/// The same of another step.
const LOG: u64 = 16 << 10;
/// Bytes of all logs of steps that did not fail.
const ALL_LOGS: u64 = 8 << 20;

/// Which run to describe.
#[derive(Clone, Debug)]
pub struct RunRequest {
    pub cluster: String,
    /// ID of the run; `None`, `last`: the newest.
    pub run: Option<String>,
    /// Program and version that asks.
    pub generator: String,
    /// Now: RFC 3339.
    pub created: Option<String>,
}

/// Collects the data of a run over hosts or of an in-place update, which may still be going on.
pub fn of_run(request: &RunRequest, session: &Session<'_>) -> Result<RunReport> {
    let state = session.state(&request.cluster)?;
    let own = Places::of_cluster(state.directory());
    let found = match request.run.as_deref() {
        None | Some("last") => own.newest()?,
        Some(run) => match own.find(run)? {
            Some(found) => Some(found),
            None => Places::of_kubeconfigs(session.state_root()?).find(run)?,
        },
    };
    let found = found.ok_or_else(|| absent(&request.cluster, request.run.as_deref()))?;
    of_journal(request, &found, Some(&state)).map(|(report, _)| report)
}

/// Describes the run of one journal; `state` is that of the cluster, unless the run went through a
/// kubeconfig. Also returns how much of the journal was read: the length of its complete lines, in bytes.
pub(super) fn of_journal(
    request: &RunRequest,
    found: &Found,
    state: Option<&State>,
) -> Result<(RunReport, u64)> {
    // Before the journal is read: a run that ends meanwhile is shown as running, not as killed.
    let is_running = lock::is_held(&found.path);
    if found.kind == JournalKind::InPlace {
        return of_in_place(request, found, is_running);
    }
    let read = readable::read(&found.path)?;
    let mut run = Reading { problems: read.problems, ..Reading::default() };
    run.id.id.clone_from(&found.id);
    for record in read.records {
        run.take(record);
    }
    run.finish(is_running);
    let restarts = state.map(|state| run.upgrade_restarts(state)).transpose()?.unwrap_or_default();
    Ok((run.report(request, restarts), read.length))
}

fn of_in_place(request: &RunRequest, found: &Found, is_running: bool) -> Result<(RunReport, u64)> {
    let read = in_place::read(&found.path)?;
    let mut run = Reading { problems: read.problems, ..Reading::default() };
    let mut reader = Reader::default();
    run.id.id.clone_from(&found.id);
    for record in read.records {
        if let Some(event) = reader.take(record) {
            run.event(event);
        }
    }
    run.id.verb = reader.verb().to_owned();
    run.id.cluster =
        if found.by_kubeconfig { reader.server.clone() } else { request.cluster.clone() };
    run.finish(is_running);
    let (restarts, problems) = reader.restarts();
    run.problems.extend(problems);
    Ok((run.report(request, restarts), read.length))
}
/// What has been read of a journal.
#[derive(Default)]
struct Reading {
    id: RunIdentity,
    intent: String,
    sessions: Vec<RunSession>,
    hosts: Vec<HostRun>,
    /// Where the steps are: host and step, by key.
    places: HashMap<String, (usize, usize)>,
    host_places: HashMap<String, usize>,
    /// The logs, by the key of their step.
    logs: BTreeMap<String, String>,
    /// Bytes by source and host.
    moved: BTreeMap<(String, String), u64>,
    problems: Vec<String>,
}

impl Reading {
    fn report(self, request: &RunRequest, restarts: Vec<HostRestarts>) -> RunReport {
        RunReport {
            about: About::new(Kind::Run, &request.generator, request.created.clone()),
            links: self.links(),
            run: self.id,
            sessions: self.sessions,
            hosts: self.hosts,
            restarts,
            problems: self.problems,
        }
    }

    /// Returns the restarts of the upgrade or rollback that the run belongs to, if it has ended.
    fn upgrade_restarts(&mut self, state: &State) -> Result<Vec<HostRestarts>> {
        let upgrades = UpgradeStore::of(state.files());
        let document = match upgrades.of_intent(&self.intent) {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(Vec::new()),
            Err(error) => {
                self.problems.push(format!("the upgrade's records cannot be read: {error}"));
                return Ok(Vec::new());
            }
        };
        if let Some(report) = upgrades.report(&document.id)? {
            return Ok(restarts(report, &document));
        }
        if self.id.state == "done" {
            self.problems.push(
                "the comparison of predicted and actual restarts was not recorded".to_owned(),
            );
        }
        Ok(Vec::new())
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Start {
                time, verb, cluster, intent, arguments, version, controller, ..
            } => {
                (self.id.verb, self.id.cluster) = (verb, cluster);
                (self.id.arguments, self.intent) = (arguments, intent);
                self.start(time.to_string(), controller, version);
            }
            Record::Begin { time, step, attempt, .. } => {
                self.begin(&time.to_string(), parts(&step), attempt);
            }
            Record::End {
                time, step, attempt, outcome, duration_ms, log, message, moved, ..
            } => {
                if let Some(log) = log {
                    self.logs.insert(key(parts(&step)), log);
                }
                let host = parts(&step).1.to_owned();
                for (from, bytes) in moved {
                    let sum = self.moved.entry((from, host.clone())).or_default();
                    *sum = sum.saturating_add(bytes);
                }
                let end = Attempt {
                    number: attempt,
                    began: None,
                    ended: Some(time.to_string()),
                    duration_ms: Some(duration_ms),
                    outcome: Some(outcome.word().to_owned()),
                    message,
                };
                self.end(parts(&step), end);
            }
            Record::Finish { time, outcome } => {
                self.end_session(&time.to_string(), outcome.word(), None);
            }
        }
    }

    /// Takes what a reader of other records has found.
    fn event(&mut self, event: ProgressEvent) {
        match event {
            ProgressEvent::Start { time, controller, version } => {
                self.start(time, controller, version);
            }
            ProgressEvent::Begin { time, host, phase, step, attempt } => {
                self.begin(&time, (&phase, &host, &step), attempt);
            }
            ProgressEvent::End {
                time,
                host,
                phase,
                step,
                attempt,
                outcome,
                duration_ms,
                message,
            } => {
                let end = Attempt {
                    number: attempt,
                    began: None,
                    ended: Some(time),
                    duration_ms: Some(duration_ms),
                    outcome: Some(outcome),
                    message,
                };
                self.end((&phase, &host, &step), end);
            }
            ProgressEvent::Finish { time, outcome, message } => {
                self.end_session(&time, &outcome, message);
            }
            ProgressEvent::Problem { text } => self.problems.push(text),
        }
    }

    fn start(&mut self, time: String, controller: String, version: String) {
        self.id.started.get_or_insert_with(|| time.clone());
        let (started, last) = (time.clone(), time);
        self.sessions.push(RunSession {
            started,
            last,
            outcome: None,
            message: None,
            controller,
            version,
        });
    }

    fn begin(&mut self, time: &str, step: Step<'_>, number: u32) {
        self.last(time);
        self.step(step).attempts.push(Attempt {
            number,
            began: Some(time.to_owned()),
            ended: None,
            duration_ms: None,
            outcome: None,
            message: None,
        });
    }

    /// Ends an attempt. Its beginning may be in a part that could not be read, or it was only assumed.
    fn end(&mut self, step: Step<'_>, end: Attempt) {
        self.last(end.ended.as_deref().unwrap_or_default());
        let attempts = &mut self.step(step).attempts;
        match attempts.last_mut() {
            Some(open) if open.number == end.number && open.outcome.is_none() => {
                *open = Attempt { began: open.began.take(), ..end };
            }
            _ => attempts.push(end),
        }
    }

    fn end_session(&mut self, time: &str, outcome: &str, message: Option<String>) {
        self.last(time);
        if let Some(session) = self.sessions.last_mut() {
            session.outcome = Some(outcome.to_owned());
            session.message = message;
        }
    }

    fn last(&mut self, time: &str) {
        let time = time.to_owned();
        if let Some(session) = self.sessions.last_mut() {
            session.last = time;
        } else {
            // The beginning of the journal is missing.
            self.sessions.push(RunSession {
                started: time.clone(),
                last: time,
                outcome: None,
                message: None,
                controller: String::new(),
                version: String::new(),
            });
        }
    }

    fn step(&mut self, step: Step<'_>) -> &mut StepRun {
        let id = key(step);
        let (host_place, step_place) = match self.places.get(&id) {
            Some(places) => *places,
            None => {
                let (phase, host, name) = step;
                let hosts = &mut self.hosts;
                let host_place = *self.host_places.entry(host.to_owned()).or_insert_with(|| {
                    hosts.push(HostRun { host: host.to_owned(), steps: Vec::new() });
                    hosts.len() - 1
                });
                let steps = &mut self.hosts[host_place].steps;
                steps.push(StepRun {
                    phase: phase.to_owned(),
                    name: name.to_owned(),
                    attempts: Vec::new(),
                    log: None,
                });
                let places = (host_place, steps.len() - 1);
                self.places.insert(id, places);
                places
            }
        };
        &mut self.hosts[host_place].steps[step_place]
    }

    /// Determines the state, and reads the logs.
    fn finish(&mut self, is_running: bool) {
        let last = self.sessions.last();
        self.id.last = last.map(|session| session.last.clone());
        self.id.state = match last.and_then(|session| session.outcome.clone()) {
            _ if is_running => "running".to_owned(),
            Some(outcome) => outcome,
            None => "unfinished".to_owned(),
        };
        if self.id.started.is_none() {
            self.problems.push(
                "the beginning of the journal is missing: who ran what is not known".to_owned(),
            );
        }
        let mut room = ALL_LOGS;
        for (id, path) in &self.logs {
            let Some((host, step)) = self.places.get(id) else { continue };
            let step = &mut self.hosts[*host].steps[*step];
            let outcome = step.attempts.last().and_then(|last| last.outcome.as_deref());
            let went_well = matches!(outcome, Some("done" | "assumed"));
            let most = if went_well { LOG.min(room) } else { LOG_OF_FAILED };
            match tail(Path::new(path), most) {
                Ok((text, omitted)) => {
                    if went_well {
                        room = room.saturating_sub(text.len() as u64);
                    }
                    step.log = Some(Log { path: path.clone(), text, omitted });
                }
                Err(error) => self.problems.push(format!("the log {path} is missing: {error}")),
            }
        }
    }

    fn links(&self) -> Vec<Link> {
        let link = |((from, to), bytes): (&(String, String), &u64)| Link {
            from: from.clone(),
            to: to.clone(),
            bytes: *bytes,
        };
        self.moved.iter().map(link).collect()
    }
}

/// Returns what identifies a step, whatever its names contain.
fn key((phase, host, name): Step<'_>) -> String {
    [phase, host, name].join("\0")
}

/// Returns the last bytes of a file, from the beginning of a line, and how many are before them.
fn tail(path: &Path, most: u64) -> std::io::Result<(String, u64)> {
    let mut file = File::open(path)?;
    let mut start = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    if start > 0
        && let Some(end) = bytes.iter().position(|byte| *byte == b'\n')
    {
        bytes.drain(..=end);
        start += end as u64 + 1;
    }
    Ok((String::from_utf8_lossy(&bytes).into_owned(), start))
}

fn restarts(report: Report, document: &Document) -> Vec<HostRestarts> {
    let mut hosts: Vec<HostRestarts> = Vec::new();
    for host in report.hosts {
        let compared = host.restarts.unwrap_or_default();
        let others: Vec<_> = compared.mismatches.into_iter().chain(compared.undecided).collect();
        let strange: HashSet<&str> = others.iter().map(|one| one.predicted.id.as_str()).collect();
        let planned = forward(document, &host.host).map(|told| told.containers);
        let agreed = planned.into_iter().flatten().filter(|one| !strange.contains(one.id.as_str()));
        let agreed = agreed.filter_map(|one| {
            let actual = match one.verdict {
                Verdict::Restart => Actual::Restarted,
                Verdict::Recreate => Actual::Recreated,
                Verdict::Keep | Verdict::Unknown => return None,
            };
            Some(result(one, actual, None))
        });
        hosts.push(HostRestarts {
            agreed: match compared.agreed {
                // Nothing was compared there.
                0 => Vec::new(),
                _ => agreed.collect(),
            },
            host: host.host,
            as_predicted: compared.agreed as u64,
            problems: host.problems,
            others: others
                .into_iter()
                .map(|one| result(one.predicted, one.actual, one.why))
                .collect(),
        });
    }
    hosts
}

fn result(predicted: ContainerPrediction, actual: Actual, why: Option<String>) -> RestartResult {
    RestartResult {
        actual: actual.word().to_owned(),
        restarts: None,
        why,
        namespace: predicted.namespace,
        pod: predicted.pod,
        container: predicted.container,
        predicted: predicted.verdict.word().to_owned(),
        reason: predicted.reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_journal::event::Outcome;
    use jiff::Timestamp;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn start(second: i64) -> Record {
        Record::Start {
            time: at(second),
            verb: "run".into(),
            cluster: "c".into(),
            intent: "i".into(),
            plan: String::new(),
            arguments: vec!["run".into()],
            version: "1".into(),
            destroys: false,
            aside: false,
            controller: "me".into(),
            machines: BTreeMap::new(),
        }
    }

    fn begin(second: i64, step: &str, attempt: u32) -> Record {
        let (step, fingerprint) = (step.to_owned(), String::new());
        Record::Begin { time: at(second), step, fingerprint, attempt }
    }

    fn end(second: i64, step: &str, attempt: u32, outcome: Outcome, log: &Path) -> Record {
        Record::End {
            time: at(second),
            step: step.to_owned(),
            fingerprint: String::new(),
            attempt,
            outcome,
            duration_ms: 1000,
            log: Some(log.display().to_string()),
            message: (outcome != Outcome::Done).then(|| "broken".to_owned()),
            moved: BTreeMap::from([("controller".to_owned(), 7)]),
        }
    }

    #[test]
    fn attempts_retries_and_a_kill_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("x.log");
        std::fs::write(&log, "first\nlast\n").unwrap();
        let mut run = Reading::default();
        for record in [
            start(0),
            begin(1, "files/10.0.0.1:22/sync", 1),
            end(2, "files/10.0.0.1:22/sync", 1, Outcome::Lost, &log),
            begin(3, "files/10.0.0.1:22/sync", 2),
            end(4, "files/10.0.0.1:22/sync", 2, Outcome::Done, &log),
            begin(5, "init/10.0.0.1:22/a/b", 1),
            start(100),
            begin(101, "init/10.0.0.1:22/a/b", 1),
            end(102, "init/10.0.0.1:22/a/b", 1, Outcome::Failed, &log.join("absent")),
            Record::Finish { time: at(103), outcome: Outcome::Failed },
        ] {
            run.take(record);
        }
        run.finish(false);
        assert_eq!(run.id.state, "failed");
        assert_eq!((run.sessions.len(), run.sessions[0].outcome.clone()), (2, None));
        let steps = &run.hosts[0].steps;
        assert_eq!((run.hosts.len(), steps.len()), (1, 2));
        let outcomes = |step: &StepRun| -> Vec<Option<String>> {
            step.attempts.iter().map(|attempt| attempt.outcome.clone()).collect()
        };
        assert_eq!(outcomes(&steps[0]), [Some("lost".into()), Some("done".into())]);
        assert_eq!(outcomes(&steps[1]), [None, Some("failed".into())]);
        assert_eq!((&*steps[1].phase, &*steps[1].name), ("init", "a/b"));
        assert_eq!(steps[0].log.as_ref().unwrap().text, "first\nlast\n");
        assert!(run.problems[0].contains("absent"), "{:?}", run.problems);
        let link = run.links().remove(0);
        assert_eq!((&*link.from, &*link.to, link.bytes), ("controller", "10.0.0.1:22", 21));
    }

    #[test]
    fn of_a_long_log_the_end_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("x.log");
        std::fs::write(&log, "aaaa\nbbbb\ncccc\n").unwrap();
        assert_eq!(tail(&log, 8).unwrap(), ("cccc\n".to_owned(), 10));
        assert_eq!(tail(&log, 100).unwrap(), ("aaaa\nbbbb\ncccc\n".to_owned(), 0));
    }

    #[test]
    fn a_journal_without_its_beginning_is_described() {
        let mut run = Reading::default();
        run.take(begin(1, "odd", 1));
        run.finish(false);
        assert_eq!((&*run.id.state, &*run.hosts[0].steps[0].name), ("unfinished", "odd"));
        assert!(run.problems[0].contains("beginning"), "{:?}", run.problems);
    }
}
