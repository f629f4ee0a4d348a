//! What happens to the steps of a run, whatever the format of its journal. Must not know journals or pages.

use serde::Serialize;

/// Phase, host and name of a step.
pub(super) type Step<'a> = (&'a str, &'a str, &'a str);

/// Splits the ID of a step into phase, host and name. Hosts have no slashes, but names may.
pub(super) fn parts(id: &str) -> Step<'_> {
    let (phase, rest) = id.split_once('/').unwrap_or(("", id));
    let (host, name) = rest.split_once('/').unwrap_or(("", rest));
    (phase, host, name)
}

/// A record, as a page that follows the run gets it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum ProgressEvent {
    /// A command began or resumed the run.
    Start { time: String, controller: String, version: String },
    /// A step began.
    Begin { time: String, host: String, phase: String, step: String, attempt: u32 },
    /// A step ended.
    #[serde(rename_all = "camelCase")]
    End {
        time: String,
        host: String,
        phase: String,
        step: String,
        attempt: u32,
        outcome: String,
        duration_ms: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// The command ended.
    Finish {
        time: String,
        outcome: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A line that cannot be read.
    Problem { text: String },
}
