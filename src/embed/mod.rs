//! The embedded registry: determines which container images a cluster image needs, resolves them to
//! digests, fetches them and writes them as registry layers.
//!
//! Must not depend on the Kubefile language or the command line; the build provides the files of
//! the context.

pub(crate) mod chart;
pub(crate) mod found;
pub(crate) mod lock;
pub(crate) mod plan;
pub(crate) mod resolve;
pub(crate) mod search;
pub(crate) mod split;

pub(crate) use found::{ContextFiles, Found, FoundImage, Skipped};
