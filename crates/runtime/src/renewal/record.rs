//! The record of a host's timer: what was renewed when, what failed, and what is waited for. `imgctl
//! status` shows it.

use serde::{Deserialize, Serialize};

/// Name of the record below [`super::settings::directory`].
pub const FILE: &str = "status.json";
/// Number of renewals and failures that are remembered.
const LONGEST: usize = 50;

/// How the last run of the timer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing was due, or all that was due is renewed.
    #[default]
    Well,
    /// Something is due, and another host or command comes first, or the cluster is not well.
    Waiting,
    /// Something is due and could not be renewed. The files are what they were.
    Failed,
}

/// What the timer of one host did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// RFC 3339.
    pub checked: String,
    pub state: State,
    /// Why the state is not `well`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The newest last.
    #[serde(default)]
    pub renewed: Vec<Renewed>,
    #[serde(default)]
    pub failed: Vec<Failure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    pub file: String,
    /// RFC 3339.
    pub at: String,
    #[serde(rename = "notAfter")]
    pub not_after: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// RFC 3339.
    pub at: String,
    pub message: String,
}

impl Record {
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(crate) fn renewed(&mut self, file: &str, at: &str, not_after: &str) {
        self.renewed.push(Renewed {
            file: file.to_owned(),
            at: at.to_owned(),
            not_after: not_after.to_owned(),
        });
        shorten(&mut self.renewed);
    }

    /// Tells whether the renewal of `file` until `not_after` is recorded.
    pub(crate) fn has(&self, file: &str, not_after: &str) -> bool {
        self.renewed.iter().any(|one| one.file == file && one.not_after == not_after)
    }

    pub(crate) fn failed(&mut self, at: &str, message: String) {
        // A failure that repeats is one failure.
        self.failed.retain(|known| known.message != message);
        self.failed.push(Failure { at: at.to_owned(), message });
        shorten(&mut self.failed);
    }
}

fn shorten<T>(list: &mut Vec<T>) {
    let more = list.len().saturating_sub(LONGEST);
    list.drain(..more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_stays_short() {
        let mut record = Record::default();
        for number in 0..100 {
            record.renewed(&number.to_string(), "now", "then");
            record.failed("now", "the same".to_owned());
        }
        assert_eq!((record.renewed.len(), record.failed.len()), (50, 1));
        assert_eq!(record.renewed[0].file, "50");
        let text = serde_json::to_vec(&record).unwrap();
        assert_eq!(Record::read(&text), Some(record));
    }
}
