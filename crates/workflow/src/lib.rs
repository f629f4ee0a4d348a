//! Work on clusters as lists of steps over hosts: pipelines and their executor, the synchronisation of
//! images, backups, and applications on clusters of any origin.
//!
//! Must not print, exit, read the environment, know how upgrades are planned or depend on the command line.

pub mod apps;
pub mod backup;
pub mod hooks;
pub mod image_tree;
pub mod pipeline;
pub mod sync;
