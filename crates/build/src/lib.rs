//! From a Kubefile to an image: the build engine, and the container images that charts and manifests
//! name, embedded as a registry.
//!
//! Must not depend on clusters or hosts.

pub mod build;
pub mod cache;
pub mod report;
