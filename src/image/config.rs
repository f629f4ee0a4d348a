//! Image configurations: the OCI members plus Docker's (HEALTHCHECK, SHELL, ONBUILD), which
//! BuildKit and imgctl also write into OCI configs, because readers expect them there.
//!
//! Unknown members are kept (`extra`), so that an image that passes through stays unmodified.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::image::descriptor::null_as_default;
use crate::image::{Digest, Platform};

/// Maximum size of a config, in bytes.
pub(crate) const MAX_CONFIG: u64 = 32 << 20;

type Extra = serde_json::Map<String, serde_json::Value>;

/// Config blob of one image (image-spec, config.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImageConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) author: Option<String>,
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(
        rename = "os.version",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) os_version: Option<String>,
    #[serde(rename = "os.features", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) os_features: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) config: ContainerConfig,
    #[serde(default)]
    pub(crate) rootfs: RootFs,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) history: Vec<History>,
    #[serde(flatten)]
    pub(crate) extra: Extra,
}

impl ImageConfig {
    /// Parses a config blob.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes)
            .map_err(|error| Error::bad_content("the image's config is malformed").caused_by(error))
    }

    /// Returns the platform of the image.
    pub(crate) fn platform(&self) -> Platform {
        Platform::new(&self.os, &self.architecture, self.variant.as_deref())
    }
}

/// Runtime settings for a container of the image. Member names are Docker's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ContainerConfig {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) user: String,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub(crate) exposed_ports: BTreeMap<String, Empty>,
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub(crate) env: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) entrypoint: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cmd: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) healthcheck: Option<Healthcheck>,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub(crate) volumes: BTreeMap<String, Empty>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) working_dir: String,
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub(crate) on_build: Vec<String>,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) stop_signal: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shell: Option<Vec<String>>,
    #[serde(flatten)]
    pub(crate) extra: Extra,
}

/// `{}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Empty {}

/// HEALTHCHECK; durations are nanoseconds (Docker's config).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Healthcheck {
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub(crate) test: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) interval: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) timeout: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) start_period: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) start_interval: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) retries: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Layers, lowest first, by the digest of their uncompressed tar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RootFs {
    #[serde(rename = "type", default)]
    pub(crate) kind: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) diff_ids: Vec<Digest>,
}

impl Default for RootFs {
    fn default() -> Self {
        Self {
            kind: "layers".to_owned(),
            diff_ids: Vec::new(),
        }
    }
}

/// One line of `imgctl history`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct History {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) author: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) comment: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) empty_layer: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_members_and_nulls_pass_through() {
        let text = r#"{"architecture":"amd64","os":"linux","config":{"Env":null,"Labels":null,"Image":"sha256:x","ArgsEscaped":true},"rootfs":{"type":"layers","diff_ids":null},"history":null,"docker_version":"1"}"#;
        let config = ImageConfig::parse(text.as_bytes()).unwrap();
        assert!(config.config.env.is_empty());
        let back = serde_json::to_value(&config).unwrap();
        assert_eq!(back["docker_version"], "1");
        assert_eq!(back["config"]["ArgsEscaped"], true);
    }
}
