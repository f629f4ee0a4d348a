//! What is done to clusters: lists of steps over hosts, planned, journalled, executed.
//!
//! The top of the logic; must not print, prompt or read the environment.

pub(crate) mod event;
pub(crate) mod executor;
pub(crate) mod interrupt;
pub(crate) mod journal;
pub(crate) mod redact;
pub(crate) mod step;
