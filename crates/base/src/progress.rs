//! Progress reports of lower layers on long-running work. They depend on this trait, never on a
//! terminal.

/// Receives progress. Implementations are thread-safe and cheap to call often.
pub trait Reporter: Send + Sync {
    /// Starts a task. `total` is in bytes for [`Unit::Bytes`], otherwise a count; `None` = unknown.
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task>;

    /// Reports one message that is not a failure, such as the start of a step or a note.
    fn note(&self, message: &str);

    /// Passes on a line that a user's command (RUN) printed; `error_stream` = it was printed on
    /// stderr.
    fn output(&self, line: &[u8], error_stream: bool);

    /// Reports the beginning of a step. What follows belongs to it, until the next one.
    fn step(&self, title: &str) {
        self.note(title);
    }

    /// Returns a reporter for one of several sequences of steps that run at the same time, if this
    /// one keeps them apart; otherwise all of them report here.
    fn sequence(&self) -> Option<Box<dyn Reporter + '_>> {
        None
    }
}

/// Formats a size in decimal units, as docker does.
#[allow(clippy::cast_precision_loss, reason = "a few digits are shown")]
pub fn decimal(bytes: u64) -> String {
    let size = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", size / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", size / 1e6),
        _ => format!("{:.2} GB", size / 1e9),
    }
}

/// One long-running task. Dropping it ends it.
pub trait Task: Send + Sync {
    /// Adds `amount` to the completed work.
    fn advance(&self, amount: u64);

    /// Ends the task successfully. `summary` replaces the title where finished tasks stay visible.
    fn done(&self, summary: &str);
}

/// Unit of a task's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Items,
}

/// Reports nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Reporter for Silent {
    fn start(&self, _title: &str, _unit: Unit, _total: Option<u64>) -> Box<dyn Task> {
        Box::new(Silent)
    }

    fn note(&self, _message: &str) {}

    fn output(&self, _line: &[u8], _error_stream: bool) {}
}

impl Task for Silent {
    fn advance(&self, _amount: u64) {}

    fn done(&self, _summary: &str) {}
}
