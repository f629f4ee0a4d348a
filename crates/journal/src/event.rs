//! Events of an execution, for the screen and for `--json` (docs/operations.md has the schema: one
//! object per line, `event` names the kind, `time` is RFC 3339).

use std::collections::BTreeMap;

use serde::Serialize;

/// Name of the controller in lists of hosts.
pub const CONTROLLER: &str = "controller";
/// Prefix of output that says what a step waits for.
pub const WAITING: &str = "waiting: ";

/// How a step or a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Done,
    Failed,
    /// The step was ended on request.
    Interrupted,
    /// The connection was lost and could not be restored: the step may still run on its host.
    Lost,
    /// The step has ended, but the host cannot report its result.
    Unknown,
    /// Taken as done because of `--assume-done`.
    Assumed,
    /// This run has done all its work, and more follows in a later run.
    Paused,
    /// The run was aborted and is not resumed.
    Aborted,
}

impl Outcome {
    /// Returns the name used in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
            Self::Assumed => "assumed",
            Self::Paused => "paused",
            Self::Aborted => "aborted",
        }
    }
}

/// Numbers of bytes of files by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sources {
    pub controller: u64,
    /// Other hosts.
    pub hosts: u64,
    pub registry: u64,
}

/// Name of the site's registry among the sources of a host's files; hosts and the controller have their
/// own.
pub const REGISTRY: &str = "registry";

impl Sources {
    /// Sums up bytes by source, as the journal records them.
    pub fn of(moved: &BTreeMap<String, u64>) -> Self {
        let mut all = Self::default();
        for (source, bytes) in moved {
            match source.as_str() {
                CONTROLLER => all.controller += bytes,
                REGISTRY => all.registry += bytes,
                _ => all.hosts += bytes,
            }
        }
        all
    }

    /// Returns the bytes from all sources.
    pub fn sum(&self) -> u64 {
        self.controller + self.hosts + self.registry
    }
}

/// What happens in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    Start {
        journal: String,
        verb: String,
        cluster: String,
        hosts: usize,
        steps: usize,
        /// The run resumes one that did not finish.
        resumed: bool,
    },
    PhaseStart {
        phase: String,
        hosts: usize,
        steps: usize,
    },
    StepStart {
        phase: String,
        host: String,
        step: String,
        attempt: u32,
        says: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    StepSkipped {
        phase: String,
        host: String,
        step: String,
    },
    /// A line that a command printed, without secrets.
    Output {
        host: String,
        step: String,
        stream: &'static str,
        text: String,
    },
    /// Number of bytes that this step has moved so far.
    Progress {
        host: String,
        step: String,
        bytes: u64,
        from: Sources,
    },
    StepEnd {
        phase: String,
        host: String,
        step: String,
        outcome: Outcome,
        attempt: u32,
        duration_ms: u64,
        /// The step had run before this connection and was followed or recalled.
        recalled: bool,
        /// The bytes that the step has moved.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<Sources>,
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<String>,
    },
    Failure {
        host: String,
        step: String,
        message: String,
        causes: Vec<String>,
        hints: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<String>,
    },
    Note {
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        message: String,
    },
    PhaseEnd {
        phase: String,
        duration_ms: u64,
    },
    End {
        outcome: Outcome,
        done: usize,
        skipped: usize,
        failed: usize,
        duration_ms: u64,
        journal: String,
    },
}

/// Receives events. Called from many threads; must return quickly.
pub trait Listener: Sync {
    fn event(&self, event: &Event);
}

#[derive(Clone, Copy, Debug)]
pub struct NullListener;

impl Listener for NullListener {
    fn event(&self, _event: &Event) {}
}

/// Passes each event to both listeners, in order.
pub struct Both<'a>(pub &'a dyn Listener, pub &'a dyn Listener);

impl Listener for Both<'_> {
    fn event(&self, event: &Event) {
        self.0.event(event);
        self.1.event(event);
    }
}
