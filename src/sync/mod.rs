//! Brings images to hosts: who lacks what, who gets it from whom, and the switch to it.
//!
//! Must not know pipelines. Plans are values; [`execute`] does what [`plan`] says.

pub(crate) mod brief;
pub(crate) mod execute;
pub(crate) mod plan;
mod reachability;
mod schedule;
mod summary;
#[cfg(test)]
mod test_hosts;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
pub(crate) mod watch;
