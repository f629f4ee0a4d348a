//! Kubernetes as a client sees it: its API, draining Nodes, what its kubelets do to containers.
//!
//! Must not know runtimes, pipelines or how a cluster was made.

pub(crate) mod api;
#[cfg(test)]
pub(crate) mod stand_in;
