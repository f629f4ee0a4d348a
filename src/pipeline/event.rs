//! What an execution tells as it goes: for the screen, for `--json` (docs/operations.md has the
//! schema: one object per line, `event` names the kind, `time` is RFC 3339).

use serde::Serialize;

/// How a step or a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Done,
    Failed,
    /// We were asked to stop and ended it.
    Interrupted,
    /// The connection was lost and could not be had again: the step may still run on its host.
    Lost,
    /// It is over, and the host cannot say how it ended.
    Unknown,
    /// Taken as done because `--assume-done` says so.
    Assumed,
    /// All that this run was to do is done, and more is to follow.
    Paused,
    /// Somebody gave the run up: nobody takes it up again.
    Aborted,
}

impl Outcome {
    /// As in JSON.
    pub(crate) fn word(self) -> &'static str {
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

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event {
    Start {
        journal: String,
        verb: String,
        cluster: String,
        hosts: usize,
        steps: usize,
        /// It takes up a run that did not finish.
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
    /// A line that a command printed, secrets taken out.
    Output {
        host: String,
        step: String,
        stream: &'static str,
        text: String,
    },
    /// Bytes that this step has moved so far.
    Progress {
        host: String,
        step: String,
        bytes: u64,
    },
    StepEnd {
        phase: String,
        host: String,
        step: String,
        outcome: Outcome,
        attempt: u32,
        duration_ms: u64,
        /// It had run before this connection and was followed or recalled.
        recalled: bool,
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

/// Gets events. Called from many threads; must be quick.
pub(crate) trait Listener: Sync {
    fn event(&self, event: &Event);
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deaf;

impl Listener for Deaf {
    fn event(&self, _event: &Event) {}
}

/// Tells one, then the other.
pub(crate) struct Both<'a>(pub(crate) &'a dyn Listener, pub(crate) &'a dyn Listener);

impl Listener for Both<'_> {
    fn event(&self, event: &Event) {
        self.0.event(event);
        self.1.event(event);
    }
}
