//! The embedded registry: determines which container images a cluster image needs, resolves them to
//! digests, fetches them and writes them as registry layers.
//!
//! Must not depend on the Kubefile language or the command line; the build provides the files of
//! the context.

pub mod chart;
pub mod found;
pub mod lock;
pub mod plan;
pub mod resolve;
pub mod search;
pub mod split;

pub use found::{ContextFiles, Found, FoundImage, Skipped};
