//! Records what a run did to Pods and templates: the journal `inplace/<id>.jsonl` in the cluster's
//! state. Each record is on disk before the next action starts. Also the events that a run shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{marks::Before, plan::Plan, restarts::After};
use imgctl_base::error::{Error, Result};
use imgctl_journal::past::{each_record, list, path_of};
use imgctl_journal::{readable, readable::Readable};

pub use imgctl_journal::Journal;
pub use imgctl_journal::event::Outcome;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// A run starts or resumes.
    Start {
        time: Timestamp,
        version: String,
        plan: Box<Plan>,
        /// Host name of the controller. Absent from journals of older versions.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        controller: String,
    },
    Pod {
        time: Timestamp,
        uid: String,
        pod: String,
        phase: Phase,
        /// Node of the Pod. Absent from journals of older versions.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        node: String,
        /// Number of the Pod's batch, from 1; absent for a Pod that appeared during the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<usize>,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        before: BTreeMap<String, Before>,
        /// What the containers did, once that is known.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        after: BTreeMap<String, After>,
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

impl Record {
    /// Returns when it was written.
    pub fn time(&self) -> Timestamp {
        match self {
            Self::Start { time, .. }
            | Self::Pod { time, .. }
            | Self::Template { time, .. }
            | Self::Finish { time, .. } => *time,
        }
    }
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

/// Opens the journal of the run `id`, new or existing.
pub fn open(directory: &Path, id: &str, sync: bool) -> Result<Journal> {
    check_id(id)?;
    Journal::open(directory, id, sync)
}

/// Returns what the run with this id did; `None`: there is no such run.
pub fn past(directory: &Path, id: &str) -> Result<Option<Past>> {
    check_id(id)?;
    let path = path_of(directory, id);
    if !path.exists() {
        return Ok(None);
    }
    let mut past = Past::default();
    each_record(&path, |record| past.take(record))?;
    Ok(Some(past))
}

/// Reads as much of a journal as is readable, for reports.
pub fn read(path: &Path) -> Result<Readable<Record>> {
    readable::read_as(path, record)
}

/// Reads a record of one line. The error is a sentence for the operator.
pub fn record(line: &[u8]) -> Result<(Record, Option<String>), String> {
    readable::record_as(line, &["start", "pod", "template", "finish"])
}

/// Returns the ids of all runs, sorted by name, oldest first.
pub fn ids(directory: &Path) -> Result<Vec<String>> {
    let mut ids = list(directory)?;
    ids.reverse();
    Ok(ids)
}

fn check_id(id: &str) -> Result<()> {
    let sound = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !id.is_empty() && id.len() <= 128 && !id.starts_with('.') && id.chars().all(sound) {
        Ok(())
    } else {
        Err(Error::usage(format!("`{}` is not a run ID", id.escape_debug()))
            .hint("use letters, digits, -, _ and ."))
    }
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

/// One event; docs/inplace.md describes the JSON.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Number of images pulled to their Nodes.
    Pulled {
        images: usize,
    },
    Batch {
        number: usize,
        of: usize,
        pods: usize,
    },
    Pod {
        pod: String,
        uid: String,
        phase: Phase,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    Template {
        workload: String,
        message: String,
    },
    Note {
        message: String,
    },
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
            node: String::new(),
            batch: None,
            before: BTreeMap::from([("app".to_owned(), before)]),
            after: BTreeMap::new(),
            message: None,
        }
    }

    #[test]
    fn what_a_pod_was_first_is_remembered_and_a_torn_line_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let read = || past(directory.path(), "x").unwrap();
        assert_eq!(read(), None);
        let journal = open(directory.path(), "x", true).unwrap();
        journal.append(&pod(Phase::Patched, "a:1")).unwrap();
        journal.append(&pod(Phase::Ready, "a:2")).unwrap();
        let path = journal.path().to_owned();
        drop(journal);
        // Journals of older versions have no chain of digests.
        let older = |line: &str| format!("{}}}\n", line.split_once(",\"chain\"").unwrap().0);
        let text: String = std::fs::read_to_string(&path).unwrap().lines().map(older).collect();
        std::fs::write(&path, text + "{\"record\":\"po").unwrap();
        let past = read().unwrap();
        assert_eq!(past.phases["u"], Phase::Ready);
        assert_eq!(past.before["u"]["app"].image, "a:1");
        let journal = open(directory.path(), "x", true).unwrap();
        journal.append(&pod(Phase::Gone, "a:2")).unwrap();
        drop(journal);
        assert_eq!(read().unwrap().phases["u"], Phase::Gone);
        assert_eq!(ids(directory.path()).unwrap(), ["x"]);
        std::fs::write(&path, "no\n{}\n").unwrap();
        assert!(super::past(directory.path(), "x").is_err());
        assert!(super::past(directory.path(), "../x").is_err());
    }
}
