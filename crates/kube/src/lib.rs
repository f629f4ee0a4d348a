//! Kubernetes from a client's point of view: the API, draining Nodes, and what kubelets do to
//! containers.
//!
//! Must not depend on runtimes, pipelines or how a cluster was created.

pub mod api;
pub mod client;
pub mod drain;
pub mod failover;
pub mod hash;
pub mod lease;
pub mod objects;
pub mod presented;
pub mod probe;
pub mod restart;
pub mod selector;
pub mod succession;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "for tests only")]
pub mod testing;
