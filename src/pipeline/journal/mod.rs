//! What of a pipeline has been done: an append-only file of records, synced before we go on.
//!
//! Must not know plans or hosts: steps are their identifiers and fingerprints. Holds no secrets;
//! whoever appends has taken them out.

mod chain;
pub(crate) mod file;
pub(crate) mod past;
pub(crate) mod record;

pub(crate) use file::Journal;
pub(crate) use past::{Past, PastStep};
pub(crate) use record::Record;
