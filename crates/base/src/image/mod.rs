//! The OCI model: names, digests, descriptors, manifests, configs, platforms.
//!
//! Pure data: converts text and bytes to values and back. Must not depend on files, stores or
//! networks.

pub mod config;
pub mod descriptor;
pub mod digest;
pub mod manifest;
pub mod media_type;
mod null;
pub mod one_reading;
pub mod platform;
pub mod reference;
#[cfg(test)]
mod spec_tests;
pub mod time;
pub mod verdict;

pub use config::{ContainerConfig, Healthcheck, History, ImageConfig};
pub use descriptor::{Descriptor, EMBEDDED_IMAGES, LayerKind};
pub use digest::{Algorithm, Digest, Hasher, Sha256Sum};
pub use manifest::{Document, Index, Manifest};
pub use platform::Platform;
pub use reference::Reference;
pub use verdict::{Origin, Verdict};
