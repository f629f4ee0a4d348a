//! New images for running Pods, without rescheduling them.
//!
//! Must not print, prompt or read the environment.

pub(crate) mod batches;
pub(crate) mod marks;
pub(crate) mod object;
pub(crate) mod plan;
pub(crate) mod planner;
mod quantity;
pub(crate) mod request;
mod completion;
pub(crate) mod journal;
mod patch;
mod rollout;
mod selector;
pub(crate) mod target;
mod verdict;
pub(crate) mod world;
