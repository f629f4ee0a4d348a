//! Images between places: pull, push, copy, save and load, edits that make new images, and trust
//! (signatures, attestations, SBOMs), backups of clusters as artifacts, and the data of reports on
//! images.
//!
//! Must not depend on builds or clusters.

pub mod backup;
pub mod describe;
pub mod edit;
pub mod transfer;
pub mod trust;
