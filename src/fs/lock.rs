//! Advisory locks between imgctl processes (flock): they die with their holder, so none is stale.

use std::fs::File;
use std::path::Path;

use crate::error::Result;

/// A held lock; dropping it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// How to hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

impl Lock {
    /// Waits for the lock; `waiting` is called once if somebody else holds it.
    pub(crate) fn acquire(_path: &Path, _mode: Mode, _waiting: &mut dyn FnMut()) -> Result<Self> {
        todo!()
    }

    /// Takes the lock if it is free now.
    pub(crate) fn try_acquire(_path: &Path, _mode: Mode) -> Result<Option<Self>> {
        todo!()
    }
}
