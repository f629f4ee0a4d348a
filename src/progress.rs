//! How lower floors tell that long work goes on. They know this trait, never a terminal.

/// Receives progress. Implementations are cheap to call often and thread-safe.
pub(crate) trait Reporter: Send + Sync {
    /// Starts a task. `total` is in bytes for [`Unit::Bytes`], else a count; `None` = unknown.
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task>;

    /// Says one thing worth a line of its own that is not a failure (a step begins, a note).
    fn note(&self, message: &str);

    /// Passes on a line that a user's command (RUN) printed; `error_stream` = it came on stderr.
    fn output(&self, line: &[u8], error_stream: bool);
}

/// One piece of long work; dropping it ends it.
pub(crate) trait Task: Send + Sync {
    /// `amount` more is done.
    fn advance(&self, amount: u64);

    /// It has ended well; `summary` replaces the title where finished tasks stay visible.
    fn done(&self, summary: &str);
}

/// What a task's numbers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Items,
}

/// Says nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silent;

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
