//! Records of the work that a pipeline has done: an append-only file, synced before the pipeline
//! continues.
//!
//! Must not depend on plans or hosts: it knows steps by their identifiers and fingerprints. Holds
//! no secrets; the caller removes them before it appends.

pub mod file;
pub mod past;
pub mod readable;
pub mod record;

pub use file::Journal;
pub use past::{Past, PastStep};
pub use record::Record;
