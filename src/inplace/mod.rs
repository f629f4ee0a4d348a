//! Updates images of running Pods without rescheduling them.
//!
//! Must not print, prompt or read the environment.

pub(crate) mod batches;
mod completion;
pub(crate) mod drift;
pub(crate) mod engine;
#[cfg(test)]
mod engine_tests;
pub(crate) mod event;
mod gates;
pub(crate) mod host_puller;
pub(crate) mod job_puller;
pub(crate) mod journal;
mod marks;
pub(crate) mod object;
mod patch;
pub(crate) mod plan;
pub(crate) mod planner;
mod pod_change;
pub(crate) mod pre_pull;
pub(crate) mod pull_access;
mod quantity;
pub(crate) mod request;
pub(crate) mod rollback;
mod rollout;
mod selector;
pub(crate) mod target;
mod template;
#[cfg(test)]
mod test_cluster;
mod verdict;
pub(crate) mod world;
