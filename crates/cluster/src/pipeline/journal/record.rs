//! One line of a journal.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::pipeline::event::Outcome;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

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
        #[serde(default, skip_serializing_if = "is_false")]
        aside: bool,
        /// Host name of the controller.
        controller: String,
    },
    /// A step is about to start.
    Begin {
        time: Timestamp,
        step: String,
        fingerprint: String,
        /// Starts at 1. Increases only when the result of the previous attempt is known.
        attempt: u32,
    },
    /// The step has ended.
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
