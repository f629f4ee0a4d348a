//! Cluster upgrades: observed, planned, executed host by host, and rolled back.
//!
//! [`document`] is the plan as a value, a pure function of the observation. Pipelines are built
//! only from the document, so that a resumed upgrade is the one that was begun. Must not print,
//! prompt or read the environment.

mod batches;
pub(crate) mod book;
pub(crate) mod document;
mod hazards;
pub(crate) mod hooks;
mod hops;
mod host_steps;
mod keepsakes;
mod kubeadm_restarts;
mod kubelet_removals;
pub(crate) mod mirror;
pub(crate) mod nodes;
pub(crate) mod observation;
pub(crate) mod observe;
pub(crate) mod patches;
pub(crate) mod pause;
pub(crate) mod pipeline;
pub(crate) mod plan;
#[cfg(test)]
mod plan_tests;
pub(crate) mod preflight;
pub(crate) mod report;
pub(crate) mod request;
mod restarts;
#[cfg(test)]
mod scale_tests;
mod skew;
pub(crate) mod stale;
#[cfg(test)]
pub(crate) mod test_clusters;
