//! The OCI model: names, digests, descriptors, manifests, configs, platforms.
//!
//! Pure data: converts text and bytes to values and back. Must not depend on files, stores or
//! networks.

pub(crate) mod config;
pub(crate) mod descriptor;
pub(crate) mod digest;
pub(crate) mod manifest;
pub(crate) mod media_type;
pub(crate) mod platform;
pub(crate) mod reference;
pub(crate) mod time;

pub(crate) use config::{ContainerConfig, Healthcheck, History, ImageConfig};
pub(crate) use descriptor::{Descriptor, EMBEDDED_IMAGES, LayerKind};
pub(crate) use digest::{Algorithm, Digest, Hasher};
pub(crate) use manifest::{Document, Index, Manifest};
pub(crate) use platform::Platform;
pub(crate) use reference::Reference;
