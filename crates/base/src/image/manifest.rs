//! Image manifests and indexes, OCI and Docker schema 2, with checks that prevent one document from
//! having two interpretations (CVE-2021-41190).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::image::null::{or_default, or_defaults};
use crate::image::one_reading::{self, Members};
use crate::image::{Descriptor, Platform, media_type};

/// Maximum size of a manifest or index, in bytes (distribution-spec asks registries for 4 MiB).
pub const MAX_DOCUMENT: u64 = 16 << 20;
/// Maximum number of layers in one image.
pub const MAX_LAYERS: usize = 10_000;

/// The members of manifests and indexes that have a meaning (image-spec, manifest.md, image-index.md, descriptor.md). Annotations have
/// names of their own.
const DOCUMENT: Members = Members(&[
    ("schemaVersion", None),
    ("mediaType", None),
    ("artifactType", None),
    ("config", Some(&DESCRIPTOR)),
    ("layers", Some(&DESCRIPTOR)),
    ("manifests", Some(&DESCRIPTOR)),
    ("subject", Some(&DESCRIPTOR)),
    ("annotations", None),
]);
const DESCRIPTOR: Members = Members(&[
    ("mediaType", None),
    ("digest", None),
    ("size", None),
    ("urls", None),
    ("annotations", None),
    ("data", None),
    ("artifactType", None),
    ("platform", Some(&PLATFORM)),
]);
const PLATFORM: Members = Members(&[
    ("architecture", None),
    ("os", None),
    ("os.version", None),
    ("os.features", None),
    ("variant", None),
    ("features", None),
]);

/// Fails if programs read a manifest or index differently, whatever it is of.
pub fn check_members(bytes: &[u8]) -> Result<()> {
    one_reading::check(bytes, &DOCUMENT)
}

/// Manifest of an image for one platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    pub config: Descriptor,
    #[serde(default, deserialize_with = "or_default")]
    pub layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_defaults")]
    pub annotations: BTreeMap<String, String>,
}

/// Several manifests under one name, or the table of names of a layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub manifests: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_defaults")]
    pub annotations: BTreeMap<String, String>,
}

/// Types of configs in Docker manifests of images besides Docker's own: registries and clients of 2015
/// and 2016 wrote them, and docker still takes them for images (distribution#1621, moby#22378).
const OLD_DOCKER_CONFIGS: [&str; 4] =
    ["application/octet-stream", "application/json", "text/html", ""];

impl Manifest {
    /// Returns whether this is the manifest of an image, not of an artifact, by the type of its
    /// config.
    pub fn is_image(&self) -> bool {
        let config = &*self.config.media_type;
        media_type::is_config(config)
            || (self.media_type.as_deref() == Some(media_type::DOCKER_MANIFEST)
                && !self.layers.is_empty()
                && self.layers.iter().all(|layer| media_type::is_layer(&layer.media_type))
                && OLD_DOCKER_CONFIGS.contains(&config))
    }
}

impl Index {
    /// Returns an index of `manifests`.
    pub fn new(manifests: Vec<Descriptor>) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(media_type::OCI_INDEX.to_owned()),
            artifact_type: None,
            manifests,
            subject: None,
            annotations: BTreeMap::new(),
        }
    }

    /// Parses the table of names of a layout (`index.json`), which needs no media type.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        one_reading::check(bytes, &DOCUMENT)?;
        serde_json::from_slice(bytes)
            .map_err(|error| Error::bad_content("it is no index").caused_by(error))
    }

    /// Returns the entry that best matches `wanted`; attestations (`unknown/unknown`) never match. Fails if
    /// other programs choose another image, because a platform is spelt in two ways.
    pub fn select(&self, wanted: &Platform) -> Result<Option<&Descriptor>> {
        let distance = |entry: &Descriptor| match &entry.platform {
            Some(platform) => platform.distance_to(wanted),
            None => Some(u32::MAX),
        };
        let offered = || self.manifests.iter().filter_map(|entry| Some((distance(entry)?, entry)));
        let Some((_, chosen)) = offered().min_by_key(|(distance, _)| *distance) else {
            return Ok(None);
        };
        let Some(platform) = &chosen.platform else { return Ok(Some(chosen)) };
        for (_, other) in offered().filter(|(_, other)| other.digest != chosen.digest) {
            if let Some(rival) = other.platform.as_ref().filter(|it| platform.is_rivalled_by(it)) {
                return Err(Error::bad_content(format!(
                    "the index names an image for {platform}, {}, and another for {rival}, {}, which programs \
                     take for the same or not",
                    chosen.digest, other.digest
                ))
                .hint("choose one of them by its digest: NAME@sha256:..."));
            }
        }
        Ok(Some(chosen))
    }
}

/// A parsed manifest or index.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, never in numbers")]
pub enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    /// Parses `bytes`. `declared` is the media type from the descriptor or registry; the document
    /// must not contradict it.
    pub fn parse(bytes: &[u8], declared: Option<&str>) -> Result<Self> {
        let refuse = |why: &str| Error::bad_content(format!("cannot use the manifest: {why}"));
        let value: serde_json::Value = serde_json::from_slice(bytes)
            .map_err(|error| refuse("it is not JSON").caused_by(error))?;
        one_reading::check(bytes, &DOCUMENT)
            .map_err(|error| refuse("programs read it differently").caused_by(error))?;
        let object = value.as_object().ok_or_else(|| refuse("it is not a JSON object"))?;
        if object.get("schemaVersion").and_then(serde_json::Value::as_u64) == Some(1) {
            return Err(refuse("it is Docker schema 1, which has been obsolete since 2017")
                .hint("push the image again with a current tool"));
        }
        let has = |key: &str| object.get(key).is_some_and(|value| !value.is_null());
        if has("manifests") && (has("layers") || has("config")) {
            return Err(refuse("it claims to be both a manifest and an index"));
        }
        let written = object.get("mediaType").and_then(serde_json::Value::as_str);
        if let (Some(written), Some(declared)) = (written, declared)
            && written != declared
        {
            return Err(refuse(&format!(
                "it says it is {written} but was announced as {declared}"
            )));
        }
        let media = written.or(declared);
        let is_index = media.map_or_else(|| has("manifests"), media_type::is_index);
        if let Some(media) = media
            && !media_type::is_index(media)
            && !media_type::is_manifest(media)
        {
            return Err(refuse(&format!("its media type {media} is not an image's")));
        }
        let malformed = |error: serde_json::Error| refuse("it is malformed").caused_by(error);
        if is_index {
            if has("layers") {
                return Err(refuse("it is declared as an index but has layers"));
            }
            return Ok(Self::Index(serde_json::from_value(value).map_err(malformed)?));
        }
        if has("manifests") {
            return Err(refuse("it is declared as a manifest but lists manifests"));
        }
        let manifest: Manifest = serde_json::from_value(value).map_err(malformed)?;
        if manifest.layers.len() > MAX_LAYERS {
            return Err(refuse(&format!("it has more than {MAX_LAYERS} layers")));
        }
        Ok(Self::Manifest(manifest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Digest;

    fn descriptor(media: &str) -> Descriptor {
        Descriptor::new(media, Digest::of(b"x"), 1)
    }

    #[test]
    fn a_document_that_is_both_is_refused() {
        let json = serde_json::json!({
            "schemaVersion": 2,
            "config": descriptor(media_type::OCI_CONFIG),
            "layers": [],
            "manifests": [],
        });
        let error = Document::parse(json.to_string().as_bytes(), None).unwrap_err();
        assert!(error.to_string().contains("both a manifest"), "{error}");
    }

    #[test]
    fn the_announced_type_must_agree() {
        let json = serde_json::json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": [],
        });
        let bytes = json.to_string();
        assert!(Document::parse(bytes.as_bytes(), Some(media_type::OCI_MANIFEST)).is_err());
        assert!(Document::parse(bytes.as_bytes(), Some(media_type::OCI_INDEX)).is_ok());
    }

    #[test]
    fn a_member_in_another_case_is_refused_by_name() {
        let text = format!(
            r#"{{"schemaVersion": 2, "config": {{}}, "layers": [], "Layers": [{}]}}"#,
            serde_json::to_string(&descriptor(media_type::OCI_LAYER)).unwrap()
        );
        let error = Document::parse(text.as_bytes(), None).unwrap_err().to_string();
        assert!(error.contains("programs read it differently"), "{error}");
    }

    #[test]
    fn schema_1_is_refused_by_name() {
        let error = Document::parse(br#"{"schemaVersion":1}"#, None).unwrap_err();
        assert!(error.to_string().contains("schema 1"), "{error}");
    }

    #[test]
    fn the_nearest_platform_is_selected() {
        let entry = |platform: &str| {
            let mut entry = descriptor(media_type::OCI_MANIFEST);
            entry.digest = Digest::of(platform.as_bytes());
            entry.platform = Some(Platform::parse(platform).unwrap());
            entry
        };
        let index = Index::new(vec![
            entry("unknown/unknown"),
            entry("linux/arm/v6"),
            entry("linux/arm/v7"),
        ]);
        let wanted = Platform::parse("linux/arm/v7").unwrap();
        let selected = index.select(&wanted).unwrap().unwrap();
        assert_eq!(selected.digest, Digest::of(b"linux/arm/v7"));
        assert!(index.select(&Platform::parse("linux/amd64").unwrap()).unwrap().is_none());
    }

    #[test]
    fn a_platform_in_two_spellings_is_refused_unless_it_is_one_image() {
        let select = |wanted: &str, offered: &[(&str, &str, &str)], is_one: bool| {
            let entry = |(index, (os, architecture, variant)): (usize, &(&str, &str, &str))| {
                let mut entry = descriptor(media_type::OCI_MANIFEST);
                entry.digest =
                    Digest::of(&[u8::from(is_one) * 9 + index as u8 * u8::from(!is_one)]);
                entry.platform = Some(Platform {
                    architecture: (*architecture).to_owned(),
                    os: (*os).to_owned(),
                    os_version: None,
                    os_features: Vec::new(),
                    variant: (!variant.is_empty()).then(|| (*variant).to_owned()),
                });
                entry
            };
            let index = Index::new(offered.iter().enumerate().map(entry).collect());
            let selected = index.select(&Platform::parse(wanted).unwrap());
            selected.map(|found| found.is_some()).map_err(|error| error.to_string())
        };
        let plain = ("linux", "amd64", "");
        for other in [
            ("linux", "x86_64", ""),
            ("linux", "AMD64", ""),
            ("Linux", "amd64", ""),
            ("linux", "amd64", "v1"),
        ] {
            for offered in [[other, plain], [plain, other]] {
                let error = select("amd64", &offered, false).unwrap_err();
                for digest in [Digest::of(&[0]), Digest::of(&[1])] {
                    assert!(error.contains(&digest.to_string()), "{error}");
                }
                assert_eq!(select("amd64", &offered, true), Ok(true), "{other:?}");
                // Who asks for another platform gets it.
                assert_eq!(select("s390x", &offered, false), Ok(false), "{other:?}");
            }
        }
        let arm = |architecture, variant| ("linux", architecture, variant);
        for (offered, is_refused) in [
            (&[arm("arm64", ""), arm("arm64", "v8")][..], true),
            (&[arm("arm64", "v8"), arm("arm", "v7")], false),
            (&[arm("aarch64", ""), arm("arm", "v7")], false),
            (&[arm("arm64", "v8"), arm("arm64", "v8")], false),
        ] {
            assert_eq!(select("arm64", offered, false).is_err(), is_refused, "{offered:?}");
        }
        // A program that does not know the name takes the image for an older processor.
        assert!(select("linux/arm/v7", &[arm("armhf", ""), arm("arm", "v6")], false).is_err());
        assert_eq!(select("linux/arm/v7", &[arm("arm", "v7"), arm("arm", "v6")], false), Ok(true));
    }

    #[test]
    fn no_document_makes_the_parser_panic() {
        bolero::check!().for_each(|bytes: &[u8]| {
            for declared in [None, Some(media_type::OCI_MANIFEST), Some(media_type::OCI_INDEX)] {
                if let Ok(Document::Manifest(manifest)) = Document::parse(bytes, declared) {
                    assert!(manifest.layers.len() <= MAX_LAYERS);
                }
            }
            let _ = crate::image::ImageConfig::parse(bytes);
        });
    }
}
