//! One line of a journal.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::pipeline::event::Outcome;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What is written down. Unknown fields are passed over: an older imgctl reads a newer journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub(crate) enum Record {
    /// A run begins, or takes up this journal again.
    Start {
        time: Timestamp,
        verb: String,
        cluster: String,
        /// Runs with the same intent are the same undertaking.
        intent: String,
        /// Digest of the list of steps.
        plan: String,
        /// The command line without secrets.
        arguments: Vec<String>,
        version: String,
        /// It undoes what earlier runs did.
        #[serde(default)]
        destroys: bool,
        /// It undoes a part of what one earlier run did, which is taken up again after it.
        #[serde(default, skip_serializing_if = "is_false")]
        aside: bool,
        /// Host name and process of the controller.
        controller: String,
    },
    /// A step is about to be done.
    Begin {
        time: Timestamp,
        step: String,
        fingerprint: String,
        /// From 1; a new one only when it is known how the one before ended.
        attempt: u32,
    },
    /// It has ended.
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
    },
    /// The run has ended.
    Finish { time: Timestamp, outcome: Outcome },
}
