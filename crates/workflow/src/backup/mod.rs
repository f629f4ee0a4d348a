//! Backups of clusters: what one consists of, the steps that make it, and the record of the last one.
//!
//! How the parts are packed, encrypted and kept is `imgctl-transfer`'s business; what a runtime saves
//! and restores is that of `runtime/`. pipeline/restore.rs brings a cluster back.

pub mod last;
pub mod plan;
pub mod schedule;
