//! Image configurations: the OCI members plus Docker's (HEALTHCHECK, SHELL, ONBUILD), which
//! BuildKit and imgctl also write into OCI configs, because readers expect them there.
//!
//! Unknown members are kept (`extra`), so that an image that passes through stays unmodified.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::image::null::{or_default, or_defaults};
use crate::image::one_reading::{self, Members};
use crate::image::{Digest, Platform};

/// Maximum size of a config, in bytes.
pub const MAX_CONFIG: u64 = 32 << 20;

type Extra = serde_json::Map<String, serde_json::Value>;

/// The members of a config that have a meaning. Labels, ports and volumes have names of their own.
const CONFIG: Members = Members(&[
    ("created", None),
    ("author", None),
    ("architecture", None),
    ("variant", None),
    ("os", None),
    ("os.version", None),
    ("os.features", None),
    ("config", Some(&CONTAINER)),
    ("rootfs", Some(&Members(&[("type", None), ("diff_ids", None)]))),
    ("history", Some(&HISTORY)),
]);
const CONTAINER: Members = Members(&[
    ("User", None),
    ("ExposedPorts", None),
    ("Env", None),
    ("Entrypoint", None),
    ("Cmd", None),
    ("Healthcheck", Some(&HEALTHCHECK)),
    ("Volumes", None),
    ("WorkingDir", None),
    ("OnBuild", None),
    ("Labels", None),
    ("StopSignal", None),
    ("Shell", None),
    ("ArgsEscaped", None),
]);
const HEALTHCHECK: Members = Members(&[
    ("Test", None),
    ("Interval", None),
    ("Timeout", None),
    ("StartPeriod", None),
    ("StartInterval", None),
    ("Retries", None),
]);
const HISTORY: Members = Members(&[
    ("created", None),
    ("created_by", None),
    ("author", None),
    ("comment", None),
    ("empty_layer", None),
]);

/// Config blob of one image (image-spec, config.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub architecture: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub os: String,
    #[serde(rename = "os.version", skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    #[serde(
        rename = "os.features",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "or_default"
    )]
    pub os_features: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub config: ContainerConfig,
    #[serde(deserialize_with = "or_default")]
    pub rootfs: RootFs,
    #[serde(deserialize_with = "or_default")]
    pub history: Vec<History>,
    #[serde(flatten)]
    pub extra: Extra,
}

impl ImageConfig {
    /// Parses a config blob.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        one_reading::check(bytes, &CONFIG).map_err(|error| {
            Error::bad_content("programs read the image's config differently").caused_by(error)
        })?;
        serde_json::from_slice(bytes)
            .map_err(|error| Error::bad_content("the image's config is malformed").caused_by(error))
    }

    /// Returns the platform of the image.
    pub fn platform(&self) -> Platform {
        Platform::new(&self.os, &self.architecture, self.variant.as_deref())
    }
}

/// Runtime settings for a container of the image. Member names are Docker's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ContainerConfig {
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub user: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_defaults")]
    pub exposed_ports: BTreeMap<String, Empty>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_defaults")]
    pub volumes: BTreeMap<String, Empty>,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub working_dir: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub on_build: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_defaults")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub stop_signal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// `{}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Empty {}

/// HEALTHCHECK; durations are nanoseconds (Docker's config).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Healthcheck {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub test: Vec<String>,
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub interval: i64,
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub timeout: i64,
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub start_period: i64,
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub start_interval: i64,
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub retries: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Layers, lowest first, by the digest of their uncompressed tar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RootFs {
    #[serde(rename = "type", default, deserialize_with = "or_default")]
    pub kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub diff_ids: Vec<Digest>,
}

impl Default for RootFs {
    fn default() -> Self {
        Self { kind: "layers".to_owned(), diff_ids: Vec::new() }
    }
}

/// One line of `imgctl history`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not", deserialize_with = "or_default")]
    pub empty_layer: bool,
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

    #[test]
    fn null_is_as_good_as_absent() {
        let full = serde_json::json!({
            "created": null, "author": null, "architecture": "amd64", "variant": null, "os": "linux",
            "os.version": null, "os.features": null,
            "config": {
                "User": null, "ExposedPorts": {"80/tcp": null}, "Env": null, "Entrypoint": null, "Cmd": null,
                "Healthcheck": {"Test": null, "Interval": null, "Retries": null}, "Volumes": {"/a": null},
                "WorkingDir": null, "OnBuild": null, "Labels": {"a": null}, "StopSignal": null, "Shell": null,
            },
            "rootfs": {"type": "layers", "diff_ids": null},
            "history": [{"created": null, "created_by": "x", "comment": null, "author": null, "empty_layer": null}],
        });
        let config = ImageConfig::parse(full.to_string().as_bytes()).unwrap();
        assert_eq!(config.config.labels["a"], "");
        assert!(config.config.volumes.contains_key("/a"));
        assert!(config.config.exposed_ports.contains_key("80/tcp"));
        assert!(!config.history[0].empty_layer);
        for member in ["config", "rootfs", "history", "os"] {
            let mut one = full.clone();
            one[member] = serde_json::Value::Null;
            ImageConfig::parse(one.to_string().as_bytes()).unwrap();
        }
    }
}
