//! Applications on clusters that are reached through a kubeconfig alone: nothing is known about their
//! hosts, so the commands of images run on this machine.
//!
//! `kubectl` and `helm` of these commands are wrapped ([`wrapper`]): references to pushed images are
//! rewritten in what they send, and the objects are recorded. The record lies in the cluster itself
//! ([`record`]), so that any operator can uninstall and prune.

pub mod here;
pub mod images;
pub mod manifest;
pub mod plan;
pub mod prune;
pub mod record;
mod steps;
pub mod target;
#[cfg(test)]
mod tests;
pub mod wrapper;
