//! The upgrade store in a cluster's state directory: the open upgrade and those that ended.
//!
//! ```text
//! upgrade/open              the ID of the upgrade that has begun and not ended
//! upgrade/<id>/plan.json    its document
//! upgrade/<id>/state        running, paused, failed, committed, aborted, rolled-back
//! upgrade/<id>/before.json  the cluster as observed before it
//! upgrade/<id>/pause        a request to stop at the next step
//! upgrade/<id>/install      images to install at its end
//! upgrade/<id>/again        hosts that were rolled back meanwhile, and when: their steps are repeated
//! upgrade/<id>/instead      a rollback: the upgrade that it reverts
//! upgrade/<id>/snapshot     a rollback: the file that it restores
//! upgrade/<id>/part         a rollback of some hosts: the upgrade that is reopened after it
//! upgrade/<id>/former       the previous Clusterfile, without secrets
//! upgrade/history           IDs of upgrades that ended, oldest first, with their result
//! ```
//!
//! Must not depend on the content of a document other than its ID.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::pipeline::event::Outcome;
use crate::pipeline::journal::{Journal, Past, Record, past};
use crate::pipeline::step::journals;
use crate::upgrade::document::{Direction, Document, Release};
use crate::upgrade::observation::Observation;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability, sync_directory};

/// Maximum size of a file that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// Status of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpgradeStatus {
    Running,
    Paused,
    Failed,
    Committed,
    Aborted,
    /// The operator rolled it back.
    RolledBack,
}

/// An upgrade that has ended.
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
#[derive(Clone, Debug, PartialEq)]
pub struct Again {
    /// Host ID.
    pub host: String,
    /// Steps completed on the host before this time are repeated.
    pub undone: Timestamp,
}

/// The upgrades of one cluster.
#[derive(Clone, Debug)]
pub struct UpgradeStore {
    directory: PathBuf,
}

impl UpgradeStore {
    /// Returns the store in the state directory of a cluster.
    pub fn of(state: &Path) -> Self {
        Self { directory: state.join("upgrade") }
    }

    /// Returns the document of the upgrade that has begun and not ended.
    pub fn open(&self) -> Result<Option<Document>> {
        match self.text(&self.directory.join("open"))? {
            None => Ok(None),
            Some(id) => self.document(id.trim()).map(Some),
        }
    }

    /// Returns the document with the ID `id`.
    pub fn document(&self, id: &str) -> Result<Document> {
        let path = self.of_id(id)?.join("plan.json");
        let text = self.text(&path)?.ok_or_else(|| {
            Error::not_found(format!("there is no upgrade `{id}`"))
                .hint("`imgctl upgrade status` lists them")
        })?;
        Document::parse(text.as_bytes(), &path.display().to_string())
    }

    /// Begins the upgrade; from now on it is the one to resume.
    pub fn begin(&self, document: &Document) -> Result<()> {
        let directory = self.of_id(&document.id)?;
        make(&directory)?;
        write(&directory.join("plan.json"), &document.to_json()?)?;
        self.stand_of(&document.id, UpgradeStatus::Running)?;
        match std::fs::remove_file(directory.join("pause")) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).path("remove", directory.join("pause"));
            }
            _ => {}
        }
        write(&self.directory.join("open"), &document.id)
    }

    /// Stores a document before the upgrade begins, with the upgrade it reverts and the snapshot it
    /// restores.
    pub fn keep(
        &self,
        document: &Document,
        instead: Option<&str>,
        snapshot: Option<&Path>,
    ) -> Result<()> {
        let directory = self.of_id(&document.id)?;
        make(&directory)?;
        write(&directory.join("plan.json"), &document.to_json()?)?;
        if let Some(instead) = instead {
            write(&directory.join("instead"), instead)?;
        }
        if let Some(snapshot) = snapshot {
            let path = std::path::absolute(snapshot).path("use", snapshot)?;
            write(&directory.join("snapshot"), &path.display().to_string())?;
        }
        Ok(())
    }

    /// Removes the files of an earlier upgrade with the same ID: an upgrade repeated after a
    /// rollback has the same ID again.
    pub fn fresh(&self, id: &str) -> Result<()> {
        let directory = self.of_id(id)?;
        for name in ["pause", "again", "instead", "snapshot", "install", "part", "former"] {
            let path = directory.join(name);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).path("remove", &path);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Stores the observation of the cluster before `id`.
    pub fn keep_before(&self, id: &str, before: &Observation) -> Result<()> {
        let directory = self.of_id(id)?;
        make(&directory)?;
        let mut before = before.clone();
        for host in &mut before.hosts {
            // Container environments may hold secrets, and nothing reads them later.
            host.containers.clear();
        }
        let text = serde_json::to_string(&before)
            .map_err(|error| Error::failed("cannot write the observation").caused_by(error))?;
        write(&directory.join("before.json"), &text)
    }

    /// See [`UpgradeStore::keep_before`]; returns `None` if it is missing or malformed.
    pub fn before(&self, id: &str) -> Result<Option<Observation>> {
        let text = self.text(&self.of_id(id)?.join("before.json"))?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Returns the upgrade that the rollback `id` reverts.
    pub fn instead(&self, id: &str) -> Result<Option<String>> {
        self.text(&self.of_id(id)?.join("instead"))
    }

    /// Returns the snapshot that the rollback `id` restores.
    pub fn snapshot(&self, id: &str) -> Result<Option<PathBuf>> {
        let text = self.text(&self.of_id(id)?.join("snapshot"))?;
        Ok(text.map(PathBuf::from))
    }

    /// Records that the rollback `id` covers only some hosts, and which upgrade is reopened after
    /// it.
    pub fn keep_part(&self, id: &str, reopens: Option<&str>) -> Result<()> {
        write(&self.of_id(id)?.join("part"), reopens.unwrap_or_default())
    }

    /// See [`UpgradeStore::keep_part`]; `None` if the rollback covers all hosts.
    pub fn part(&self, id: &str) -> Result<Option<Option<String>>> {
        let text = self.text(&self.of_id(id)?.join("part"))?;
        Ok(text.map(|id| Some(id).filter(|id| !id.is_empty())))
    }

    /// Stores the cluster's Clusterfile from before `id`: once the new one is recorded, no other
    /// copy of the previous one exists.
    pub fn keep_former(&self, id: &str, clusterfile: &str) -> Result<()> {
        let directory = self.of_id(id)?;
        make(&directory)?;
        write(&directory.join("former"), clusterfile)
    }

    /// See [`UpgradeStore::keep_former`]; `None` for upgrades begun by older versions.
    pub fn former(&self, id: &str) -> Result<Option<String>> {
        self.text(&self.of_id(id)?.join("former"))
    }

    /// Images to install at the end of `id`.
    pub fn install(&self, id: &str) -> Result<Vec<String>> {
        self.list(&self.of_id(id)?.join("install"))
    }

    /// See [`UpgradeStore::install`].
    pub fn keep_install(&self, id: &str, images: &[String]) -> Result<()> {
        let directory = self.of_id(id)?;
        make(&directory)?;
        write(&directory.join("install"), &images.join("\n"))
    }

    /// Hosts on which the upgrade `id` has been reverted meanwhile.
    pub fn again(&self, id: &str) -> Result<Vec<Again>> {
        let lines = self.list(&self.of_id(id)?.join("again"))?;
        let read = |line: &String| match line.split_once(' ') {
            Some((host, time)) => {
                Again { host: host.to_owned(), undone: time.parse().unwrap_or(Timestamp::MAX) }
            }
            // Older versions recorded no time.
            None => Again { host: line.clone(), undone: Timestamp::MAX },
        };
        Ok(lines.iter().map(read).collect())
    }

    /// Adds hosts to [`UpgradeStore::again`]: their steps completed so far count as reverted.
    pub fn do_again(&self, id: &str, hosts: &[String]) -> Result<()> {
        let mut all = self.again(id)?;
        all.retain(|one| !hosts.contains(&one.host));
        let now = Timestamp::now();
        all.extend(hosts.iter().map(|host| Again { host: host.clone(), undone: now }));
        let lines: Vec<String> =
            all.iter().map(|one| format!("{} {}", one.host, one.undone)).collect();
        write(&self.of_id(id)?.join("again"), &lines.join("\n"))
    }

    /// Returns the unfinished journal of `document`; `None` if there is none.
    pub fn journal(&self, state: &Path, document: &Document) -> Result<Option<Past>> {
        let plan = crate::upgrade::pipeline::empty(document)?;
        past::unfinished(&journals(state), &plan.intent)
    }

    /// Closes the journal of an abandoned run: when the same upgrade begins again, it repeats all
    /// steps, questions and records.
    pub fn close_journal(&self, state: &Path, past: &Past) -> Result<()> {
        let journal = Journal::reopen(&journals(state), &past.id, true)?;
        journal.append(&Record::Finish { time: Timestamp::now(), outcome: Outcome::Aborted })
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        let text = self.text(path)?.unwrap_or_default();
        Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// Records the status.
    pub fn stand_of(&self, id: &str, stand: UpgradeStatus) -> Result<()> {
        write(&self.of_id(id)?.join("state"), word(stand))
    }

    /// Returns the status.
    pub fn stand(&self, id: &str) -> Result<Option<UpgradeStatus>> {
        let text = self.text(&self.of_id(id)?.join("state"))?;
        Ok(text.and_then(|text| ALL.into_iter().find(|stand| word(*stand) == text.trim())))
    }

    /// Ends the upgrade.
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
        self.stand_of(&document.id, end)?;
        let mut history = self.history()?;
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
        // After a kill between the two writes, the upgrade is ended a second time.
        if history.last().is_none_or(|last| last.id != entry.id || last.end != end) {
            history.push(entry);
        }
        let text = serde_json::to_string_pretty(&history)
            .map_err(|error| Error::failed("cannot write the history").caused_by(error))?;
        write(&self.directory.join("history"), &text)?;
        let open = self.directory.join("open");
        if let Some(id) = reopens {
            self.stand_of(id, UpgradeStatus::Paused)?;
            return write(&open, id);
        }
        match std::fs::remove_file(&open) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).path("remove", &open),
            _ => sync_directory(&self.directory),
        }
    }

    /// Returns the upgrades that ended, oldest first.
    pub fn history(&self) -> Result<Vec<Ended>> {
        let path = self.directory.join("history");
        let Some(text) = self.text(&path)? else {
            return Ok(Vec::new());
        };
        serde_json::from_str(&text).map_err(|error| {
            Error::bad_content(format!("{} cannot be read", path.display())).caused_by(error)
        })
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
        match good {
            true => Ok(self.directory.join(id)),
            false => Err(Error::usage(format!("`{id}` is not a valid upgrade name"))),
        }
    }

    fn text(&self, path: &Path) -> Result<Option<String>> {
        use std::io::Read;
        let file = match std::fs::File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.path("open", path)?,
        };
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).path("read", path)?;
        Ok(Some(text))
    }
}

/// Fails for commands that must not change a cluster during an upgrade.
pub fn refuse_while_open(state: &Path, verb: &str) -> Result<()> {
    let Some(document) = UpgradeStore::of(state).open()? else {
        return Ok(());
    };
    Err(Error::new(
        Kind::Busy,
        format!(
            "cluster {} is in the middle of the upgrade {} from {} to {}: `{verb}` could undo part \
             of it",
            document.cluster,
            document.id,
            document.from.version,
            document.target().version
        ),
    )
    .hint(
        "continue with `imgctl upgrade resume`, go back with `imgctl rollback`, or end it with \
         `imgctl upgrade abort`",
    ))
}

const ALL: [UpgradeStatus; 6] = [
    UpgradeStatus::Running,
    UpgradeStatus::Paused,
    UpgradeStatus::Failed,
    UpgradeStatus::Committed,
    UpgradeStatus::Aborted,
    UpgradeStatus::RolledBack,
];

/// Returns the name used in files and JSON.
pub fn word(stand: UpgradeStatus) -> &'static str {
    match stand {
        UpgradeStatus::Running => "running",
        UpgradeStatus::Paused => "paused",
        UpgradeStatus::Failed => "failed",
        UpgradeStatus::Committed => "committed",
        UpgradeStatus::Aborted => "aborted",
        UpgradeStatus::RolledBack => "rolled-back",
    }
}

fn make(directory: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).path("make", directory)
}

fn write(path: &Path, text: &str) -> Result<()> {
    atomic::write(path, text.as_bytes(), 0o600, Durability::Durable)
}
