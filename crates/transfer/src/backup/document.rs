//! The documents of a backup: its config, which says only what is needed to choose one, and its
//! details, which are encrypted with it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, Manifest};

/// Artifact type of the manifest.
pub(super) const ARTIFACT: &str = "application/vnd.imgctl.backup.v1";
/// Media type of the config, which is never encrypted.
pub(super) const CONFIG: &str = "application/vnd.imgctl.backup.config.v1+json";
/// Media type of the first layer: what the backup is of, and the digests of all parts.
pub(super) const DETAILS: &str = "application/vnd.imgctl.backup.details.v1+json";
/// Media type of the other layers.
pub(super) const PART: &str = "application/vnd.imgctl.backup.part.v1+zstd";
/// End of a layer's media type if the layer is encrypted.
pub(super) const ENCRYPTED: &str = "+age";
/// Annotation of the manifest: name of the cluster.
pub(super) const CLUSTER: &str = "io.imgctl.backup.cluster";
/// Annotation of the manifest: when the backup began.
pub(super) const CREATED: &str = "org.opencontainers.image.created";
/// Annotation of a layer that is not encrypted: the part's file name.
pub(super) const TITLE: &str = "org.opencontainers.image.title";

/// Version of the format that is written and read.
pub(super) const VERSION: u32 = 1;
/// Maximum number of parts.
const MOST_PARTS: usize = 256;

/// Config of the artifact, in the clear.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    pub version: u32,
    /// Name of the cluster.
    pub cluster: String,
    /// When the backup began, RFC 3339 in UTC.
    pub created: String,
    /// Version of imgctl that wrote it.
    pub writer: String,
    /// `age`, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
}

impl Config {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let malformed = |error| Error::bad_content("its config is malformed").caused_by(error);
        let value: Value = serde_json::from_slice(bytes).map_err(malformed)?;
        check_version(&value)?;
        let config: Self = serde_json::from_value(value).map_err(malformed)?;
        match config.encryption.as_deref() {
            None | Some("age") => Ok(config),
            Some(other) => Err(Error::bad_content(format!(
                "it is encrypted with `{}`, which this imgctl does not know",
                other.escape_debug()
            ))),
        }
    }
}

fn check_version(value: &Value) -> Result<()> {
    match value["version"].as_u64() {
        Some(version) if version == u64::from(VERSION) => Ok(()),
        Some(version) => Err(Error::bad_content(format!(
            "it has version {version} of the format, and this imgctl reads version {VERSION}"
        ))
        .hint("use an imgctl that is at least as new as the one that wrote it")),
        None => Err(Error::bad_content("its config names no version")),
    }
}

/// One part of a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartRecord {
    /// File name: see [`is_name`].
    pub name: String,
    /// Digest and size of the file.
    pub digest: Digest,
    pub size: u64,
    /// Digest of the layer that contains it.
    pub blob: Digest,
}

/// First layer of the artifact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    pub version: u32,
    /// As in [`Config`]: so that nobody can pass one backup off as another.
    pub cluster: String,
    pub created: String,
    pub parts: Vec<PartRecord>,
    /// What the cluster says of itself.
    pub about: Map<String, Value>,
}

impl Details {
    /// Parses the details of the backup with this config.
    pub(super) fn parse(bytes: &[u8], config: &Config) -> Result<Self> {
        let details: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::bad_content("its details are malformed").caused_by(error))?;
        if details.version != VERSION
            || details.cluster != config.cluster
            || details.created != config.created
        {
            return Err(Error::bad_content(format!(
                "its config says that it is of cluster {} at {}, its details that it is of \
                 cluster {} at {}: it was edited",
                config.cluster.escape_debug(),
                config.created.escape_debug(),
                details.cluster.escape_debug(),
                details.created.escape_debug()
            )));
        }
        let names: BTreeSet<&str> = details.parts.iter().map(|part| part.name.as_str()).collect();
        if names.len() != details.parts.len()
            || names.len() > MOST_PARTS
            || !names.iter().all(|name| is_name(name))
        {
            return Err(Error::bad_content("its details list parts with unusable names"));
        }
        Ok(details)
    }

    /// Returns the part of this name.
    pub fn part(&self, name: &str) -> Option<&PartRecord> {
        self.parts.iter().find(|part| part.name == name)
    }
}

/// A backup in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub tag: String,
    pub digest: Digest,
    /// RFC 3339.
    pub created: String,
    pub cluster: String,
}

impl Kept {
    /// Returns a backup by the manifest of it; `None` if it is something else.
    pub(super) fn of(tag: &str, digest: &Digest, manifest: &Manifest) -> Option<Self> {
        let annotation = |name: &str| manifest.annotations.get(name).cloned();
        (manifest.artifact_type.as_deref() == Some(ARTIFACT)).then_some(())?;
        Some(Self {
            tag: tag.to_owned(),
            digest: digest.clone(),
            created: annotation(CREATED)?,
            cluster: annotation(CLUSTER)?,
        })
    }
}

/// Whether a part may have this name: letters, digits, `.`, `_` and `-`, and no dot at its beginning.
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    #[test]
    fn any_document_is_read_or_refused() {
        let config = Config {
            version: VERSION,
            cluster: "c".to_owned(),
            created: "2026-01-01T00:00:00Z".to_owned(),
            writer: "1".to_owned(),
            encryption: Some("age".to_owned()),
        };
        let details = Details {
            version: VERSION,
            cluster: config.cluster.clone(),
            created: config.created.clone(),
            parts: vec![PartRecord {
                name: "etcd.db".to_owned(),
                digest: Digest::of(b"x"),
                size: 1,
                blob: Digest::of(b"y"),
            }],
            about: Map::new(),
        };
        let valid = (serde_json::to_vec(&config).unwrap(), serde_json::to_vec(&details).unwrap());
        bolero::check!().for_each(|input: &[u8]| {
            for bytes in [input.to_vec(), damaged(&valid.0, input)] {
                if let Ok(read) = Config::parse(&bytes) {
                    let again = Config::parse(&serde_json::to_vec(&read).unwrap()).unwrap();
                    assert_eq!(again, read);
                }
            }
            for bytes in [input.to_vec(), damaged(&valid.1, input)] {
                if let Ok(read) = Details::parse(&bytes, &config) {
                    assert!(read.parts.iter().all(|part| is_name(&part.name)));
                    let again =
                        Details::parse(&serde_json::to_vec(&read).unwrap(), &config).unwrap();
                    assert_eq!(again, read);
                }
            }
        });
    }
}
