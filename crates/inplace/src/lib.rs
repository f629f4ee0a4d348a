//! Updates images of running Pods without rescheduling them.
//!
//! Must not print, prompt or read the environment.

pub mod batches;
mod completion;
pub mod drift;
pub mod engine;
#[cfg(test)]
mod engine_tests;
pub mod journal;
mod marks;
pub mod object;
pub mod plan;
pub mod planner;
mod pod_change;
pub mod pre_pull;
pub mod pull_access;
pub mod request;
pub mod restarts;
pub mod rollback;
mod rollout;
pub mod target;
mod template;
#[cfg(test)]
mod testing;
mod verdict;
pub mod world;
