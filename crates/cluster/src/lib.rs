//! Clusters: runtimes (kubeadm, k3s, scripts), file synchronisation,
//! pipelines, backups, upgrades, adoption, and applications on clusters of others.
//!
//! Must not print, exit, read the environment or depend on the command line.

pub mod adopt;
pub mod apps;
pub mod backup;
pub mod pipeline;
pub mod renewal;
pub mod runtime;
pub mod sync;
pub mod upgrade;
