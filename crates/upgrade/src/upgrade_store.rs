//! The upgrade store in a cluster's state directory: the open upgrade and those that ended.
//!
//! ```text
//! upgrade/state.json        which upgrade is open, how far each is, and those that ended
//! upgrade/<id>/plan.json    its document
//! upgrade/<id>/before.json  the cluster as observed before it
//! upgrade/<id>/report.json  the cluster afterwards, compared with the plan
//! upgrade/<id>/former       the previous Clusterfile, without secrets
//! upgrade/<id>/settings-*   the Clusterfile with the old and the new settings
//! upgrade/<id>/pause        a request to stop at the next step, by another process
//! ```
//!
//! Must not depend on the content of a document other than its ID.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::document::{Direction, Document, Release};
use crate::observation::Observation;
use crate::report::Report;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, write_private as write};
use imgctl_base::fs::directory;
use imgctl_journal::event::Outcome;
use imgctl_journal::{Journal, Past, Record, past};
use imgctl_model::state_files::StateFiles;
use imgctl_workflow::pipeline::step::journals;

/// Maximum size of a file that is read, in bytes.
const LONGEST: u64 = 64 << 20;
pub(super) const STATE: &str = "state.json";
/// Below the state directory.
const DIRECTORY: &str = "upgrade";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpgradeStatus {
    Running,
    Paused,
    /// Until the next upgrade window opens.
    Waiting,
    Failed,
    Committed,
    Aborted,
    RolledBack,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    pub id: String,
    pub direction: Direction,
    pub from: Release,
    pub to: Release,
    pub end: UpgradeStatus,
    /// RFC 3339.
    pub time: String,
    /// IDs of the hosts in its scope. Older versions recorded none.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// IDs of the skipped hosts.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// A host on which an open upgrade was reverted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Again {
    /// Host ID.
    pub host: String,
    /// Steps completed on the host before this time are repeated.
    pub undone: Timestamp,
}

/// Content of `state.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct State {
    /// The upgrade that has begun and not ended.
    open: Option<String>,
    upgrades: BTreeMap<String, Progress>,
    /// Upgrades that ended, oldest first.
    history: Vec<Ended>,
}

/// What is known of one upgrade besides its documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Progress {
    status: Option<UpgradeStatus>,
    /// Images to install at its end.
    install: Vec<String>,
    again: Vec<Again>,
    /// A rollback: the upgrade that it reverts, and the file that it restores.
    instead: Option<String>,
    snapshot: Option<PathBuf>,
    /// A rollback of some hosts, and the upgrade that is reopened after it.
    is_part: bool,
    reopens: Option<String>,
}

#[derive(Clone, Debug)]
pub struct UpgradeStore {
    files: StateFiles,
    directory: PathBuf,
}

impl UpgradeStore {
    pub fn of(files: &StateFiles) -> Self {
        Self { files: files.clone(), directory: files.path(DIRECTORY) }
    }

    /// Returns the document of the upgrade that has begun and not ended.
    pub fn open(&self) -> Result<Option<Document>> {
        self.state()?.open.map(|id| self.document(&id)).transpose()
    }

    pub fn document(&self, id: &str) -> Result<Document> {
        let path = self.of_id(id)?.join("plan.json");
        let text = read(&path)?.ok_or_else(|| {
            Error::not_found(format!("there is no upgrade `{id}`"))
                .hint("`imgctl upgrade status` lists them")
        })?;
        Document::parse(text.as_bytes(), &path.display().to_string())
    }

    /// Begins the upgrade; from now on it is the one to resume.
    pub fn begin(&self, document: &Document) -> Result<()> {
        let directory = self.of_id(&document.id)?;
        write(&directory.join("plan.json"), &document.to_json()?)?;
        atomic::remove_tree(&directory.join("pause"))?;
        self.change(|state| {
            state.of(&document.id).status = Some(UpgradeStatus::Running);
            state.open = Some(document.id.clone());
        })
    }

    /// Stores a document before the upgrade begins, with the upgrade it reverts and the snapshot it
    /// restores.
    pub fn keep(
        &self,
        document: &Document,
        instead: Option<&str>,
        snapshot: Option<&Path>,
    ) -> Result<()> {
        write(&self.of_id(&document.id)?.join("plan.json"), &document.to_json()?)?;
        let snapshot =
            snapshot.map(|path| std::path::absolute(path).path("use", path)).transpose()?;
        self.change(|state| {
            let progress = state.of(&document.id);
            progress.instead = instead.map(str::to_owned);
            progress.snapshot = snapshot;
        })
    }

    /// Removes what an earlier upgrade with the same ID left: an upgrade repeated after a rollback
    /// has the same ID again.
    pub fn fresh(&self, id: &str) -> Result<()> {
        let directory = self.of_id(id)?;
        atomic::remove_tree(&directory.join("pause"))?;
        atomic::remove_tree(&directory.join("former"))?;
        self.change(|state| {
            state.upgrades.remove(id);
        })
    }

    /// Stores the observation of the cluster before `id`.
    pub fn keep_before(&self, id: &str, before: &Observation) -> Result<()> {
        let mut before = before.clone();
        for host in &mut before.hosts {
            // Container environments may hold secrets, and nothing reads them later.
            host.containers.clear();
        }
        let text =
            serde_json::to_string(&before).doing(|| "cannot write the observation".to_owned())?;
        self.of_id(id)?;
        self.files.write(before_file(id), &text)
    }

    /// See [`UpgradeStore::keep_before`]; returns `None` if it is missing or malformed.
    pub fn before(&self, id: &str) -> Result<Option<Observation>> {
        self.of_id(id)?;
        let text = self.files.read(before_file(id), LONGEST)?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Stores the comparison of the cluster after the upgrade `id` with its plan.
    pub fn keep_report(&self, id: &str, report: &Report) -> Result<()> {
        let text = serde_json::to_string(report).doing(|| "cannot write the report".to_owned())?;
        write(&self.of_id(id)?.join("report.json"), &text)
    }

    /// See [`UpgradeStore::keep_report`]; `None` if it is missing or malformed.
    pub fn report(&self, id: &str) -> Result<Option<Report>> {
        let text = read(&self.of_id(id)?.join("report.json"))?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Returns the document of the run whose journal has this intent, if it is an upgrade's.
    pub fn of_intent(&self, intent: &str) -> Result<Option<Document>> {
        let state = self.state()?;
        let ended = state.history.iter().rev().map(|ended| ended.id.clone());
        for id in state.open.into_iter().chain(ended) {
            match self.document(&id) {
                Ok(document) if crate::pipeline::empty(&document)?.intent == intent => {
                    return Ok(Some(document));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!("upgrade {id}: {error}"),
            }
        }
        Ok(None)
    }

    /// Returns the upgrade that the rollback `id` reverts.
    pub fn instead(&self, id: &str) -> Result<Option<String>> {
        Ok(self.progress(id)?.instead)
    }

    /// Returns the snapshot that the rollback `id` restores.
    pub fn snapshot(&self, id: &str) -> Result<Option<PathBuf>> {
        Ok(self.progress(id)?.snapshot)
    }

    /// Records that the rollback `id` covers only some hosts, and which upgrade is reopened after
    /// it.
    pub fn keep_part(&self, id: &str, reopens: Option<&str>) -> Result<()> {
        self.change(|state| {
            let progress = state.of(id);
            progress.is_part = true;
            progress.reopens = reopens.map(str::to_owned);
        })
    }

    /// See [`UpgradeStore::keep_part`]; `None` if the rollback covers all hosts.
    pub fn part(&self, id: &str) -> Result<Option<Option<String>>> {
        let progress = self.progress(id)?;
        Ok(progress.is_part.then_some(progress.reopens))
    }

    /// Stores the cluster's Clusterfile from before `id`: once the new one is recorded, no other
    /// copy of the previous one exists.
    pub fn keep_former(&self, id: &str, clusterfile: &str) -> Result<()> {
        write(&self.of_id(id)?.join("former"), clusterfile)
    }

    /// See [`UpgradeStore::keep_former`]; `None` for upgrades begun by older versions.
    pub fn former(&self, id: &str) -> Result<Option<String>> {
        read(&self.of_id(id)?.join("former"))
    }

    /// Stores the Clusterfile with the old and with the new settings, for a change of settings.
    pub fn keep_settings(&self, id: &str, old: &str, new: &str) -> Result<()> {
        self.of_id(id)?;
        self.files.write(format!("{DIRECTORY}/{id}/settings-old"), old)?;
        self.files.write(format!("{DIRECTORY}/{id}/settings-new"), new)
    }

    /// See [`UpgradeStore::keep_settings`]: the old and the new Clusterfile; `None` for an upgrade.
    pub fn settings(&self, id: &str) -> Result<Option<(String, String)>> {
        self.of_id(id)?;
        let read =
            |which: &str| self.files.read(format!("{DIRECTORY}/{id}/settings-{which}"), LONGEST);
        Ok(read("old")?.zip(read("new")?))
    }

    pub fn install(&self, id: &str) -> Result<Vec<String>> {
        Ok(self.progress(id)?.install)
    }

    /// See [`UpgradeStore::install`].
    pub fn keep_install(&self, id: &str, images: &[String]) -> Result<()> {
        self.change(|state| state.of(id).install = images.to_vec())
    }

    /// Hosts on which the upgrade `id` has been reverted meanwhile.
    pub fn again(&self, id: &str) -> Result<Vec<Again>> {
        Ok(self.progress(id)?.again)
    }

    /// Adds hosts to [`UpgradeStore::again`]: their steps completed so far count as reverted.
    pub fn do_again(&self, id: &str, hosts: &[String]) -> Result<()> {
        let undone = Timestamp::now();
        self.change(|state| {
            let again = &mut state.of(id).again;
            again.retain(|one| !hosts.contains(&one.host));
            again.extend(hosts.iter().map(|host| Again { host: host.clone(), undone }));
        })
    }

    /// Returns the unfinished journal of `document`; `None` if there is none.
    pub fn journal(&self, state: &Path, document: &Document) -> Result<Option<Past>> {
        let plan = crate::pipeline::empty(document)?;
        past::unfinished(&journals(state), &plan.intent)
    }

    /// Closes the journal of an abandoned run: when the same upgrade begins again, it repeats all
    /// steps, questions and records.
    pub fn close_journal(&self, state: &Path, past: &Past) -> Result<()> {
        let journal = Journal::reopen(&journals(state), &past.id, true)?;
        journal.append(&Record::Finish { time: Timestamp::now(), outcome: Outcome::Aborted })
    }

    pub fn set_status(&self, id: &str, status: UpgradeStatus) -> Result<()> {
        self.change(|state| state.of(id).status = Some(status))
    }

    pub fn status(&self, id: &str) -> Result<Option<UpgradeStatus>> {
        Ok(self.progress(id)?.status)
    }

    pub fn end(&self, document: &Document, end: UpgradeStatus, time: &str) -> Result<()> {
        self.end_for(document, end, time, None)
    }

    /// Like [`UpgradeStore::end`], but reopens the upgrade `reopens`.
    pub fn end_for(
        &self,
        document: &Document,
        end: UpgradeStatus,
        time: &str,
        reopens: Option<&str>,
    ) -> Result<()> {
        let ids = |left_out: bool| -> Vec<String> {
            let hosts = document.hosts.iter();
            let hosts = hosts.filter(|(_, host)| host.skipped.is_some() == left_out);
            hosts.map(|(id, _)| id.clone()).collect()
        };
        let entry = Ended {
            id: document.id.clone(),
            direction: document.direction,
            from: document.from.clone(),
            to: document.target().clone(),
            end,
            time: time.to_owned(),
            hosts: ids(false),
            left_out: ids(true),
        };
        self.change(|state| {
            state.of(&document.id).status = Some(end);
            // After a kill before the journal's last record, the upgrade is ended a second time.
            if state.history.last().is_none_or(|last| last.id != entry.id || last.end != end) {
                state.history.push(entry);
            }
            if let Some(id) = reopens {
                state.of(id).status = Some(UpgradeStatus::Paused);
            }
            state.open = reopens.map(str::to_owned);
        })
    }

    /// Returns the upgrades that ended, oldest first.
    pub fn history(&self) -> Result<Vec<Ended>> {
        Ok(self.state()?.history)
    }

    /// Requests that the upgrade stop before the next step.
    pub fn ask_pause(&self, id: &str) -> Result<()> {
        write(&self.pause_file(id)?, "")
    }

    /// The file that [`UpgradeStore::ask_pause`] writes and the running upgrade checks for.
    pub fn pause_file(&self, id: &str) -> Result<PathBuf> {
        Ok(self.of_id(id)?.join("pause"))
    }

    fn of_id(&self, id: &str) -> Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let good = !id.is_empty() && !id.starts_with('.') && id.chars().all(plain);
        if !good {
            return Err(Error::usage(format!("`{id}` is not a valid upgrade name")));
        }
        Ok(self.directory.join(id))
    }

    fn progress(&self, id: &str) -> Result<Progress> {
        self.of_id(id)?;
        Ok(self.state()?.upgrades.remove(id).unwrap_or_default())
    }

    fn state(&self) -> Result<State> {
        let path = self.directory.join(STATE);
        match read(&path)? {
            Some(text) => parsed(&path, &text),
            None => self.older(),
        }
    }

    /// Changes the state in one step. Only the holder of the cluster's lock does this.
    fn change(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.state()?;
        change(&mut state);
        let text = serde_json::to_string_pretty(&state)
            .doing(|| "cannot write the state of upgrades".to_owned())?;
        write(&self.directory.join(STATE), &text)
    }

    /// Reads the layout before `state.json`, which had a file for each value.
    fn older(&self) -> Result<State> {
        let line = |path: PathBuf| -> Result<Option<String>> {
            Ok(read(&path)?.map(|text| text.trim().to_owned()))
        };
        let mut state = State { open: line(self.directory.join("open"))?, ..State::default() };
        let history = self.directory.join("history");
        if let Some(text) = read(&history)? {
            state.history = parsed(&history, &text)?;
        }
        for directory in directory::list(&self.directory)? {
            let file = |name: &str| line(directory.join(name));
            let Some(id) = directory.file_name().and_then(|name| name.to_str()) else { continue };
            if !directory.is_dir() {
                continue;
            }
            let part = file("part")?;
            let again = file("again")?.unwrap_or_default();
            let again =
                again.lines().filter_map(|line| line.split_once(' ')).map(|(host, time)| {
                    let undone = time.parse().unwrap_or(Timestamp::MAX);
                    Again { host: host.to_owned(), undone }
                });
            let install = file("install")?.unwrap_or_default();
            let progress = Progress {
                status: file("state")?.and_then(|word| serde_json::from_value(word.into()).ok()),
                install: install.lines().map(str::to_owned).collect(),
                again: again.collect(),
                instead: file("instead")?,
                snapshot: file("snapshot")?.map(PathBuf::from),
                is_part: part.is_some(),
                reopens: part.filter(|id| !id.is_empty()),
            };
            state.upgrades.insert(id.to_owned(), progress);
        }
        Ok(state)
    }
}

impl State {
    fn of(&mut self, id: &str) -> &mut Progress {
        self.upgrades.entry(id.to_owned()).or_default()
    }
}

/// Fails for commands that must not change a cluster during an upgrade.
pub fn refuse_while_open(state: &StateFiles, verb: &str) -> Result<()> {
    let Some(document) = UpgradeStore::of(state).open()? else { return Ok(()) };
    let way = if document.is_reconfiguration() {
        String::new()
    } else {
        format!(" from {} to {}", document.from.version, document.target().version)
    };
    Err(Error::busy(format!(
        "cluster {} is in the middle of the {} {}{way}: `{verb}` could undo part of it",
        document.cluster,
        document.kind(),
        document.id,
    ))
    .hint(format!(
        "continue with `imgctl upgrade resume --cluster {0}`, go back with `imgctl rollback --cluster {0}`, or \
         end it with `imgctl upgrade abort --cluster {0}`",
        document.cluster
    )))
}

/// Returns the name used in files and JSON.
pub fn word(status: UpgradeStatus) -> &'static str {
    match status {
        UpgradeStatus::Running => "running",
        UpgradeStatus::Paused => "paused",
        UpgradeStatus::Waiting => "waiting",
        UpgradeStatus::Failed => "failed",
        UpgradeStatus::Committed => "committed",
        UpgradeStatus::Aborted => "aborted",
        UpgradeStatus::RolledBack => "rolled-back",
    }
}

/// Of these files, this one alone may hold secrets: Pods have variables.
fn before_file(id: &str) -> String {
    format!("{DIRECTORY}/{id}/before.json")
}

fn read(path: &Path) -> Result<Option<String>> {
    directory::read_text(path, LONGEST)
}

fn parsed<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    serde_json::from_str(text).doing(|| format!("{} cannot be read", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{document, kubernetes, request};

    fn upgrade(id: &str) -> Document {
        let mut document =
            document(&kubernetes(1, 1, "v1.33.4"), &request("v1.33.4", &["v1.34.1"]));
        document.id = id.to_owned();
        document
    }

    #[test]
    fn an_upgrade_and_its_rollback_are_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let store = UpgradeStore::of(&StateFiles::plain(directory.path()));
        assert_eq!(store.open().unwrap(), None);
        let (forward, back) = (upgrade("u1"), upgrade("u1-back-0"));
        store.keep_install("u1", &["app:v1".to_owned()]).unwrap();
        store.begin(&forward).unwrap();
        store.ask_pause("u1").unwrap();
        assert_eq!(store.open().unwrap().unwrap().id, "u1");
        assert_eq!(store.status("u1").unwrap(), Some(UpgradeStatus::Running));
        store.set_status("u1", UpgradeStatus::Failed).unwrap();

        // One host goes back; then the upgrade is open again, and repeats this host.
        store.keep(&back, Some("u1"), Some(Path::new("snapshot.db"))).unwrap();
        store.keep_part("u1-back-0", Some("u1")).unwrap();
        store.begin(&back).unwrap();
        store.do_again("u1", &["10.0.0.1:22".to_owned()]).unwrap();
        assert_eq!(store.part("u1-back-0").unwrap(), Some(Some("u1".to_owned())));
        assert!(store.snapshot("u1-back-0").unwrap().unwrap().is_absolute());
        let reopens = store.part("u1-back-0").unwrap().unwrap();
        store.end_for(&back, UpgradeStatus::Committed, "now", reopens.as_deref()).unwrap();
        assert_eq!(store.open().unwrap().unwrap().id, "u1");
        assert_eq!(store.status("u1").unwrap(), Some(UpgradeStatus::Paused));
        assert_eq!(store.again("u1").unwrap()[0].host, "10.0.0.1:22");
        assert_eq!(store.install("u1").unwrap(), ["app:v1"]);

        store.end(&forward, UpgradeStatus::Committed, "now").unwrap();
        assert_eq!(store.open().unwrap(), None);
        let history: Vec<_> = store.history().unwrap().into_iter().map(|one| one.id).collect();
        assert_eq!(history, ["u1-back-0", "u1"]);
        let mut files: Vec<_> = std::fs::read_dir(directory.path().join("upgrade"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        assert_eq!(files, ["state.json", "u1", "u1-back-0"]);

        // The same upgrade once more has nothing of the first one.
        store.fresh("u1").unwrap();
        assert!(store.again("u1").unwrap().is_empty() && store.status("u1").unwrap().is_none());
        assert!(!store.pause_file("u1").unwrap().exists());
        assert!(store.status("../u1").is_err());
    }

    #[test]
    fn what_a_killed_upgrade_of_an_older_imgctl_left_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let store = UpgradeStore::of(&StateFiles::plain(directory.path()));
        let write = |name: &str, text: &str| {
            let path = directory.path().join("upgrade").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("u1/plan.json", &upgrade("u1").to_json().unwrap());
        write("u1/state", "rolled-back");
        write("u1/install", "a:1\nb:2");
        write("u1/again", "10.0.0.1:22 2026-01-01T00:00:00Z\n10.0.0.2:22 2026-01-02T00:00:00Z");
        write("u1-back-0/plan.json", &upgrade("u1-back-0").to_json().unwrap());
        write("u1-back-0/state", "running\n");
        write("u1-back-0/instead", "u1");
        write("u1-back-0/snapshot", "/backup/snapshot.db");
        write("u1-back-0/part", "");
        write("open", "u1-back-0");
        write("history", "[]");
        assert_eq!(store.open().unwrap().unwrap().id, "u1-back-0");
        assert_eq!(store.status("u1").unwrap(), Some(UpgradeStatus::RolledBack));
        assert_eq!(store.install("u1").unwrap(), ["a:1", "b:2"]);
        assert_eq!(store.again("u1").unwrap().len(), 2);
        let told = (store.instead("u1-back-0").unwrap(), store.part("u1-back-0").unwrap());
        assert_eq!(told, (Some("u1".to_owned()), Some(None)));
        assert_eq!(store.snapshot("u1-back-0").unwrap().unwrap(), Path::new("/backup/snapshot.db"));
        // The first change writes the new layout with everything of the old one.
        let before = store.state().unwrap();
        store.set_status("u1-back-0", UpgradeStatus::Paused).unwrap();
        let mut after = store.state().unwrap();
        after.of("u1-back-0").status = Some(UpgradeStatus::Running);
        assert_eq!(after, before);
    }

    #[test]
    fn any_state_is_read_or_refused() {
        let mut state = State { open: Some("u1".to_owned()), ..State::default() };
        state.of("u1").status = Some(UpgradeStatus::Paused);
        let state = serde_json::to_string(&state).unwrap();
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), imgctl_base::testing::damaged(state.as_bytes(), input)] {
                let text = String::from_utf8_lossy(&text);
                let Ok(read) = parsed::<State>(Path::new("s"), &text) else { continue };
                let again = serde_json::to_string(&read).unwrap();
                let again = parsed::<State>(Path::new("s"), &again).unwrap();
                assert_eq!((again.open, again.upgrades), (read.open, read.upgrades));
            }
        });
    }
}
