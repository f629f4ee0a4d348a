//! Clusters go from version to version and back: real etcd under a client that never pauses, and a
//! small image that counts what its scripts do.

mod aborts;
mod batches;
mod copies;
pub(crate) mod counting;
mod distribution;
mod hooks;
mod kills;
mod plans;
mod replace;
pub(crate) mod rolling;
mod snapshots;
mod stops;
mod windows;
pub(crate) mod writer;
