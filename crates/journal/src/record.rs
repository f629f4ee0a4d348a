//! One line of a journal: a record, and a digest over the line and the previous one, so that an edit
//! is found.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::event::Outcome;
use imgctl_base::image::Digest;

/// One record. Unknown fields are ignored, so an older imgctl can read a newer journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// A run begins or resumes this journal.
    Start {
        time: Timestamp,
        verb: String,
        cluster: String,
        /// Runs with the same intent are the same operation.
        intent: String,
        /// Digest of the list of steps.
        plan: String,
        /// Command line without secrets.
        arguments: Vec<String>,
        version: String,
        /// The run undoes what earlier runs did.
        #[serde(default)]
        destroys: bool,
        /// The run undoes a part of an earlier run, which is resumed after it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        aside: bool,
        /// Host name of the controller.
        controller: String,
        /// machine-ids of hosts: another one belongs to another installation.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        machines: BTreeMap<String, String>,
    },
    /// A step is about to start.
    Begin {
        time: Timestamp,
        step: String,
        fingerprint: String,
        /// Starts at 1. Increases only when the result of the previous attempt is known.
        attempt: u32,
    },
    End {
        time: Timestamp,
        step: String,
        fingerprint: String,
        attempt: u32,
        outcome: Outcome,
        duration_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// Bytes that the step moved to its host, by source: `controller`, `registry` or a host.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        moved: BTreeMap<String, u64>,
    },
    Finish {
        time: Timestamp,
        outcome: Outcome,
    },
}

impl Record {
    /// Returns when it was written.
    pub fn time(&self) -> Timestamp {
        match self {
            Self::Start { time, .. }
            | Self::Begin { time, .. }
            | Self::End { time, .. }
            | Self::Finish { time, .. } => *time,
        }
    }
}

/// `,"chain":"` before the digits, `"}` after them.
const BEFORE: &[u8] = b",\"chain\":\"";
const BEHIND: &[u8] = b"\"}";
const DIGITS: usize = 16;

/// State of the chain after the last line. Empty before the first line. It protects against
/// mistakes, not against an attacker who can write the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain(String);

impl Chain {
    /// Turns `object`, a JSON object on one line, into the next line.
    pub(super) fn seal(&mut self, object: &mut Vec<u8>) {
        self.0 = self.link(object);
        object.pop();
        object.extend_from_slice(BEFORE);
        object.extend_from_slice(self.0.as_bytes());
        object.extend_from_slice(BEHIND);
    }

    /// Returns whether `line` is the next line. Lines without a digest, as written by older
    /// versions, may precede all others.
    pub(super) fn follows(&mut self, line: &[u8]) -> bool {
        let Some((object, link)) = parts(line) else {
            return self.0.is_empty();
        };
        let expected = self.link(&object);
        let is_next = expected.as_bytes() == link;
        self.0 = expected;
        is_next
    }

    fn link(&self, object: &[u8]) -> String {
        let digest = Digest::of(&[self.0.as_bytes(), object].concat());
        digest.hex().chars().take(DIGITS).collect()
    }
}

/// Returns the sealed object and its digest.
fn parts(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let rest = line.strip_suffix(BEHIND)?;
    let (rest, link) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let mut object = rest.strip_suffix(BEFORE)?.to_vec();
    object.push(b'}');
    Some((object, link))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Vec<u8>> {
        let mut chain = Chain::default();
        let mut seal = |text: &str| {
            let mut line = text.as_bytes().to_vec();
            chain.seal(&mut line);
            line
        };
        [r#"{"a":1}"#, r#"{"b":2}"#, r#"{"a":1}"#].map(&mut seal).into()
    }

    fn holds(lines: &[Vec<u8>]) -> bool {
        let mut chain = Chain::default();
        lines.iter().all(|line| chain.follows(line))
    }

    #[test]
    fn what_was_tampered_with_shows() {
        let whole = lines();
        assert!(holds(&whole));
        assert!(serde_json::from_slice::<serde_json::Value>(&whole[2]).is_ok());
        let mut edited = whole.clone();
        edited[1][2] = b'c';
        assert!(!holds(&edited));
        assert!(!holds(&[whole[0].clone(), whole[2].clone()]));
        assert!(!holds(&whole[1..]));
        let bare = br#"{"x":1}"#.to_vec();
        assert!(!holds(&[whole.clone(), vec![bare.clone()]].concat()));
        // A journal of an older version that was resumed.
        assert!(holds(&[vec![bare], whole].concat()));
    }
}
