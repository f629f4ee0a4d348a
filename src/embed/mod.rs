//! The embedded registry: which container images a cluster image needs, resolved to digests, fetched
//! and written as registry layers.
//!
//! Must not know the Kubefile language or the command line; the build gives the context's files.

pub(crate) mod chart;
pub(crate) mod found;
pub(crate) mod lock;
pub(crate) mod plan;
pub(crate) mod resolve;
pub(crate) mod search;
pub(crate) mod split;

pub(crate) use found::{ContextFiles, Found, FoundImage, Skipped};
