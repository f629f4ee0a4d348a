//! One file per verb: its arguments (the doc comments are the help), one call, presentation.

pub(crate) mod completion;
pub(crate) mod help_all;
pub(crate) mod man;
pub(crate) mod version;
