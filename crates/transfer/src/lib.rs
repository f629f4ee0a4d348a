//! Images between places: pull, push, copy, save and load, edits that make new images, and backups of clusters as
//! artifacts.
//!
//! Must not depend on builds or clusters.

pub mod backup;
pub mod edit;
pub mod transfer;
