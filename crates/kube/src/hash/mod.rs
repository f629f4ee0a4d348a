//! The hash that a kubelet assigns to every container it starts, computed as in each release.
//!
//! The kubelet stores it in the container's annotation [`ANNOTATION`] and compares it with the hash
//! of the pod's spec at every sync. If they differ, it restarts the container; it does not know the
//! formula of any other release. There are two formulas ([`Era`]) in the
//! releases that imgctl supports. Everything is computed
//! from bytes alone, without access to a host, an API server or a clock.

mod differences;
mod go_json;
mod json_era;
mod minor;
mod quantity;
mod raw_pod;
mod schema;
mod spew;

#[cfg(test)]
mod vector_tests;

use std::{fmt, num::ParseIntError, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use imgctl_base::error::Result;

pub(crate) use crate::hash::json_era::name_and_image_hash;
pub(crate) use differences::fields_added;
pub(crate) use go_json::has_unsettled_escape;
pub use json_era::{Resources, json, json_hash};
pub use minor::{Era, Minor};
pub use raw_pod::{Pod, PodContainer, Role, pods};

/// Annotation in the container runtime that contains the hash of a container.
pub const ANNOTATION: &str = "io.kubernetes.container.hash";
/// Second hash annotation, which kubelets 1.27 to 1.30 write where pods can be resized in place.
pub(crate) const ANNOTATION_WITHOUT_RESOURCES: &str =
    "io.kubernetes.container.hashWithoutResources";

/// Hash of a container: 32 bits, written as by the kubelet, in lower-case hex without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ContainerHash(pub u32);

impl fmt::Display for ContainerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl FromStr for ContainerHash {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u32::from_str_radix(text, 16).map(Self)
    }
}

impl From<ContainerHash> for String {
    fn from(hash: ContainerHash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for ContainerHash {
    type Error = ParseIntError;

    fn try_from(text: String) -> Result<Self, ParseIntError> {
        text.parse()
    }
}

/// Returns the hash that a kubelet of `minor` computes for `container`, an object of
/// `spec.containers`.
///
/// Fails with [`imgctl_base::error::Kind::BadContent`] if that kubelet could not read the container,
/// and for kubelets older than 1.16.
pub fn container_hash(container: &Map<String, Value>, minor: Minor) -> Result<ContainerHash> {
    match minor.era()? {
        Era::Json => json(container, minor, Resources::Kept).map(|json| json_hash(&json)),
        Era::NameAndImage => {
            let text = |key: &str| container.get(key).and_then(Value::as_str).unwrap_or_default();
            Ok(name_and_image_hash(text("name"), text("image")))
        }
    }
}
