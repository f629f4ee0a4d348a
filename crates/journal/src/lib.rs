//! Records of the work that a run has done: an append-only file, synced before the run continues; the events of a run
//! as it goes, and the request to stop it.
//!
//! Must not depend on plans or hosts: it knows steps by their identifiers and fingerprints. Holds
//! no secrets; the caller removes them before it appends.

pub mod event;
pub mod file;
pub mod interrupt;
pub mod past;
pub mod readable;
pub mod record;

pub use file::Journal;
pub use past::{Past, PastStep};
pub use record::Record;
