//! Records what a run did to Pods and templates, line by line: `inplace/<id>.jsonl` in the
//! cluster's state. Each record is on disk before the next action starts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::inplace::marks::Before;
use crate::inplace::plan::Plan;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::sync_directory;
use imgctl_base::fs::lock::{Lock, Mode};

/// Maximum size of a journal, in bytes.
const LONGEST: u64 = 256 << 20;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// A run starts or resumes.
    Start { time: Timestamp, version: String, plan: Box<Plan> },
    Pod {
        time: Timestamp,
        uid: String,
        pod: String,
        phase: Phase,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        before: BTreeMap<String, Before>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    Template {
        time: Timestamp,
        workload: String,
        uid: String,
        phase: TemplatePhase,
        /// Former images of the template.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        images: BTreeMap<String, String>,
    },
    Finish {
        time: Timestamp,
        outcome: Outcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
}

/// Progress of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The Pod is about to be changed.
    Intent,
    Patched,
    Ready,
    Failed,
    /// The Pod has its former image again.
    Restored,
    /// The Pod was replaced by another one.
    Gone,
    /// No change was needed, or another party has changed the Pod.
    Skipped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TemplatePhase {
    Begin,
    Done,
    Kept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Done,
    Failed,
    Interrupted,
}

/// State read from the journal of an earlier run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// The first plan, which contains the original request.
    pub plan: Option<Plan>,
    /// Last phase, by UID.
    pub phases: BTreeMap<String, Phase>,
    /// State of the containers before their first change, by UID.
    pub before: BTreeMap<String, BTreeMap<String, Before>>,
    /// Former images of templates, by UID of the workload.
    pub templates: BTreeMap<String, BTreeMap<String, String>>,
    pub outcome: Option<Outcome>,
}

/// An open journal, exclusive to one process.
pub struct Journal {
    id: String,
    path: PathBuf,
    file: Mutex<File>,
    sync: bool,
    _lock: Lock,
}

impl Journal {
    /// Opens the journal of the run `id`, new or existing.
    pub fn open(directory: &Path, id: &str, sync: bool) -> Result<(Self, Past)> {
        check_id(id)?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .path("create the directory", directory)?;
        let path = path_of(directory, id);
        let lock = directory.join(format!(".{id}.lock"));
        let lock = Lock::try_acquire(&lock, Mode::Exclusive)?.ok_or_else(|| {
            Error::new(Kind::Busy, format!("run {id} is active in another process"))
        })?;
        let (past, whole) = read_whole(&path)?.unwrap_or_default();
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .path("open the journal", &path)?;
        // Removes a line that a crash left incomplete.
        file.set_len(whole).path("cut a torn line off", &path)?;
        if sync {
            sync_directory(directory)?;
        }
        let journal = Self { id: id.to_owned(), path, file: Mutex::new(file), sync, _lock: lock };
        Ok((journal, past))
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a record.
    pub(crate) fn append(&self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record)
            .map_err(|error| Error::failed("cannot write a record as JSON").caused_by(error))?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).path("write the journal", &self.path)?;
        if self.sync {
            file.sync_data().path("write the journal", &self.path)?;
        }
        Ok(())
    }
}

/// Returns what the run with this id did; `None`: there is no such run.
pub fn past(directory: &Path, id: &str) -> Result<Option<Past>> {
    check_id(id)?;
    Ok(read_whole(&path_of(directory, id))?.map(|(past, _)| past))
}

/// Returns the ids of all runs, sorted by name, oldest first.
pub fn ids(directory: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.path("read", directory)?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry.path("read", directory)?.file_name();
        if let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".jsonl")) {
            ids.push(id.to_owned());
        }
    }
    ids.sort();
    Ok(ids)
}

fn path_of(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.jsonl"))
}

fn check_id(id: &str) -> Result<()> {
    let sound = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !id.is_empty() && id.len() <= 128 && !id.starts_with('.') && id.chars().all(sound) {
        true => Ok(()),
        false => Err(Error::usage(format!("`{}` is not a run ID", id.escape_debug()))
            .hint("use letters, digits, -, _ and .")),
    }
}

/// Returns the run, and the number of bytes of its journal that form complete lines.
fn read_whole(path: &Path) -> Result<Option<(Past, u64)>> {
    let mut text = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => {
            let file = file.path("open the journal", path)?;
            file.take(LONGEST).read_to_end(&mut text).path("read the journal", path)?;
        }
    }
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut past = Past::default();
    for (number, line) in text[..whole].split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let record: Record = serde_json::from_slice(line).map_err(|error| {
            Error::bad_content(format!(
                "the journal {} is damaged at line {}",
                path.display(),
                number + 1
            ))
            .caused_by(error)
            .hint("move the file away; the annotations of Pods and workloads record what was done")
        })?;
        past.take(record);
    }
    Ok(Some((past, whole as u64)))
}

impl Past {
    /// Returns the UIDs of Pods that reached [`Phase::Ready`].
    pub fn done(&self) -> BTreeSet<String> {
        let ready = self.phases.iter().filter(|(_, phase)| **phase == Phase::Ready);
        ready.map(|(uid, _)| uid.clone()).collect()
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Start { plan, .. } => {
                self.plan.get_or_insert(*plan);
                self.outcome = None;
            }
            Record::Pod { uid, phase, before, .. } => {
                if !before.is_empty() {
                    self.before.entry(uid.clone()).or_insert(before);
                }
                self.phases.insert(uid, phase);
            }
            Record::Template { uid, images, .. } => {
                if !images.is_empty() {
                    self.templates.entry(uid).or_insert(images);
                }
            }
            Record::Finish { outcome, .. } => self.outcome = Some(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: Phase, image: &str) -> Record {
        let before = Before { image: image.to_owned(), ..Before::default() };
        Record::Pod {
            time: Timestamp::UNIX_EPOCH,
            uid: "u".to_owned(),
            pod: "a/b".to_owned(),
            phase,
            before: BTreeMap::from([("app".to_owned(), before)]),
            message: None,
        }
    }

    #[test]
    fn what_a_pod_was_first_is_remembered_and_a_torn_line_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let (journal, past) = Journal::open(directory.path(), "x", true).unwrap();
        assert_eq!(past, Past::default());
        journal.append(&pod(Phase::Patched, "a:1")).unwrap();
        journal.append(&pod(Phase::Ready, "a:2")).unwrap();
        assert!(Journal::open(directory.path(), "x", true).is_err(), "two at once");
        let path = journal.path().to_owned();
        drop(journal);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"record\":\"po").unwrap();
        let (journal, past) = Journal::open(directory.path(), "x", true).unwrap();
        assert_eq!(past.phases["u"], Phase::Ready);
        assert_eq!(past.before["u"]["app"].image, "a:1");
        journal.append(&pod(Phase::Gone, "a:2")).unwrap();
        drop(journal);
        let past = super::past(directory.path(), "x").unwrap().unwrap();
        assert_eq!(past.phases["u"], Phase::Gone);
        assert_eq!(ids(directory.path()).unwrap(), ["x"]);
        std::fs::write(&path, "no\n{}\n").unwrap();
        assert!(super::past(directory.path(), "x").is_err());
        assert!(super::past(directory.path(), "../x").is_err());
    }
}
