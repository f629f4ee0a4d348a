//! Facts that a registry needs about a manifest: its media type, the content it refers to, and its
//! subject.
//!
//! Less strict than `image::manifest`: artifacts and unknown types and members are stored without
//! being interpreted. As in distribution, the tree does not store the media type; it follows from
//! the document.

use serde::Deserialize;
use serde_json::{Map, Value};

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, manifest, media_type};

/// Maximum size of a manifest, in bytes (distribution-spec requires at least 4 MiB).
pub const MAX_MANIFEST: u64 = manifest::MAX_DOCUMENT;

/// A blob or manifest that a document refers to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    #[serde(default)]
    pub size: u64,
    #[serde(default)]
    pub urls: Option<Vec<String>>,
}

impl Part {
    /// Returns whether a registry may lack it: non-distributable and foreign layers, and content
    /// available elsewhere at its `urls`.
    pub(crate) fn may_be_absent(&self) -> bool {
        self.media_type.contains("nondistributable")
            || self.media_type.contains(".foreign.")
            || self.urls.as_ref().is_some_and(|urls| !urls.is_empty())
    }
}

/// A parsed manifest or index.
#[derive(Clone, Debug)]
pub struct Facts {
    pub media_type: String,
    /// `artifactType`, otherwise the config's media type (distribution-spec, "Listing Referrers").
    pub artifact_type: Option<String>,
    pub annotations: Option<Map<String, Value>>,
    /// Config and layers.
    pub blobs: Vec<Part>,
    /// Children of an index.
    pub manifests: Vec<Part>,
    pub subject: Option<Part>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: Option<u64>,
    media_type: Option<String>,
    artifact_type: Option<String>,
    config: Option<Part>,
    layers: Option<Vec<Part>>,
    blobs: Option<Vec<Part>>,
    manifests: Option<Vec<Part>>,
    subject: Option<Part>,
    annotations: Option<Map<String, Value>>,
}

impl Facts {
    /// Parses a document. The error describes the problem.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let refuse = |why: &str| Error::bad_content(format!("cannot use the manifest: {why}"));
        let raw: Raw = serde_json::from_slice(bytes)
            .map_err(|error| refuse("it is malformed").caused_by(error))?;
        if raw.schema_version == Some(1) {
            return Err(refuse("it is Docker schema 1, which has been obsolete since 2017"));
        }
        let is_index = raw.manifests.is_some();
        let is_manifest = raw.config.is_some() || raw.layers.is_some();
        if is_index && is_manifest {
            return Err(refuse("it claims to be both a manifest and an index"));
        }
        let media_type = match raw.media_type {
            Some(written) if !written.is_empty() => written,
            _ if is_index => media_type::OCI_INDEX.to_owned(),
            _ if is_manifest => media_type::OCI_MANIFEST.to_owned(),
            _ => return Err(refuse("it is neither a manifest nor an index")),
        };
        if !is_document(&media_type) {
            return Err(refuse(
                "its media type is not one of OCI or Docker, nor another application/...+json",
            ));
        }
        let artifact_type = raw
            .artifact_type
            .filter(|text| !text.is_empty())
            .or_else(|| raw.config.as_ref().map(|config| config.media_type.clone()));
        let mut blobs: Vec<Part> = raw.config.into_iter().collect();
        blobs.extend(raw.layers.into_iter().flatten());
        blobs.extend(raw.blobs.into_iter().flatten());
        Ok(Self {
            media_type,
            artifact_type,
            annotations: raw.annotations,
            blobs,
            manifests: raw.manifests.unwrap_or_default(),
            subject: raw.subject,
        })
    }
}

/// Returns whether `text` is a media type of manifests: JSON, which no browser shows as a page. It becomes the
/// value of a header.
fn is_document(text: &str) -> bool {
    let is_letter =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'+');
    let name = text.strip_prefix("application/").and_then(|text| text.strip_suffix("+json"));
    text.len() <= 255 && name.is_some_and(|name| !name.is_empty() && name.bytes().all(is_letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &Value) -> Result<Facts> {
        Facts::parse(value.to_string().as_bytes())
    }

    #[test]
    fn the_media_type_is_written_or_follows_from_the_shape() {
        let part = serde_json::json!({"mediaType": "a/b", "digest": Digest::of(b""), "size": 0});
        for (value, expected) in [
            (serde_json::json!({"manifests": []}), media_type::OCI_INDEX),
            (serde_json::json!({"config": part, "layers": null}), media_type::OCI_MANIFEST),
            (
                serde_json::json!({"mediaType": "application/vnd.x.y-2+json"}),
                "application/vnd.x.y-2+json",
            ),
        ] {
            assert_eq!(parse(&value).unwrap().media_type, expected);
        }
        let artifact = parse(&serde_json::json!({"config": part})).unwrap();
        assert_eq!(artifact.artifact_type.as_deref(), Some("a/b"));
        for bad in [
            serde_json::json!({}),
            serde_json::json!([]),
            serde_json::json!({"schemaVersion": 1, "mediaType": "application/x+json"}),
            serde_json::json!({"mediaType": "text/html"}),
            serde_json::json!({"mediaType": "text/x+json"}),
            serde_json::json!({"mediaType": "application/xhtml+xml"}),
            serde_json::json!({"mediaType": "application/json"}),
            serde_json::json!({"mediaType": "application/+json"}),
            serde_json::json!({"mediaType": "application/x;charset=+json"}),
            serde_json::json!({"manifests": [], "layers": []}),
            serde_json::json!({"mediaType": "application/x\r\nSet-Cookie: a+json"}),
            serde_json::json!({"layers": [{"digest": "sha256:../.."}]}),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(facts) = Facts::parse(bytes) {
                assert!(is_document(&facts.media_type));
            }
        });
    }
}
