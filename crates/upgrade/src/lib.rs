//! Cluster upgrades: observed, planned, executed host by host, and rolled back; and the adoption of clusters that
//! others made, which reads them in the same way.
//!
//! [`document`] is the plan as a value, a pure function of the observation. Pipelines are built
//! only from the document, so that a resumed upgrade is the one that was begun. Must not print,
//! prompt or read the environment.

pub mod adopt;
mod backup_copies;
mod batches;
pub mod document;
pub(crate) mod finding;
mod hazards;
pub mod hooks;
mod host_steps;
pub mod image_tree;
mod kubeadm_restarts;
pub mod mirror;
pub mod observation;
pub mod observe;
pub mod pause;
pub mod pipeline;
pub mod plan;
#[cfg(test)]
mod plan_tests;
pub mod preflight;
mod probes;
mod rehash;
pub mod report;
pub mod request;
pub mod restarts;
#[cfg(test)]
mod scale_tests;
mod settings;
mod skew;
pub mod stale;
mod static_pods;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "for tests only")]
pub mod testing;
pub mod upgrade_store;
pub mod window;
