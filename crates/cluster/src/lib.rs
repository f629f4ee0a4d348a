//! Clusters: the Clusterfile and its model, runtimes (kubeadm, k3s, scripts), file synchronisation,
//! pipelines, upgrades and in-place updates.
//!
//! Must not print, exit, read the environment or depend on the command line.

pub mod cluster;
pub mod inplace;
pub mod pipeline;
pub mod runtime;
pub mod sync;
pub mod upgrade;
