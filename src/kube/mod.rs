//! Kubernetes from a client's point of view: the API, draining Nodes, and what kubelets do to
//! containers.
//!
//! Must not depend on runtimes, pipelines or how a cluster was created.

pub(crate) mod api;
pub(crate) mod client;
#[cfg(test)]
mod credentials;
pub(crate) mod drain;
pub(crate) mod failover;
pub(crate) mod hash;
pub(crate) mod lease;
#[cfg(test)]
mod real;
#[cfg(test)]
mod real_server;
#[cfg(test)]
mod recorded;
pub(crate) mod restart;
pub(crate) mod selector;
#[cfg(test)]
pub(crate) mod stand_in;
