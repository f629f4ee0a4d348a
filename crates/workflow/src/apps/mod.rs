//! Applications and their objects. On a cluster that is reached through a kubeconfig alone, nothing is
//! known about its hosts, so the commands of images run on this machine ([`plan`]); on a cluster of hosts,
//! they run on its first control plane ([`managed`]).
//!
//! `kubectl` and `helm` of these commands are wrapped ([`wrapper`]): the objects that they send are
//! recorded, and on this machine references to pushed images are rewritten. The record lies in the cluster
//! itself ([`record`]), so that any operator can uninstall and prune.

mod arguments;
pub mod here;
pub mod images;
pub mod managed;
pub mod manifest;
pub mod objects;
pub mod plan;
pub mod prune;
pub mod record;
mod steps;
mod sudo;
pub mod target;
#[cfg(test)]
mod tests;
mod unseen;
pub mod wrapper;
#[cfg(test)]
mod wrapper_tests;
