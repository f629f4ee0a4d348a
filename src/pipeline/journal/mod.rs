//! Records of the work that a pipeline has done: an append-only file, synced before the pipeline
//! continues.
//!
//! Must not depend on plans or hosts: it knows steps by their identifiers and fingerprints. Holds
//! no secrets; the caller removes them before it appends.

mod chain;
pub(crate) mod file;
pub(crate) mod past;
pub(crate) mod record;

pub(crate) use file::Journal;
pub(crate) use past::{Past, PastStep};
pub(crate) use record::Record;
