//! Transfers images to hosts: which host lacks which blobs, where it gets them from, and the switch
//! to the new trees.
//!
//! Must not depend on pipelines. Plans are values; [`execute`] executes what [`plan`] returns.

pub(crate) mod brief;
pub mod execute;
mod limits;
pub mod plan;
mod pull;
mod reachability;
pub mod recipe;
mod schedule;
#[cfg(any(test, feature = "testing"))]
pub mod simulation;
pub mod source;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tree;
mod watch;
