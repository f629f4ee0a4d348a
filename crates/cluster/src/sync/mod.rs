//! Transfers images to hosts: which host lacks which blobs, where it gets them from, and the switch
//! to the new trees.
//!
//! Must not depend on pipelines. Plans are values; [`execute`] executes what [`plan`] returns.

pub(crate) mod brief;
pub mod execute;
pub mod plan;
mod reachability;
pub mod recipe;
mod schedule;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tree;
