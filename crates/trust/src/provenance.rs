//! How an image was built: an in-toto statement (v1) with a SLSA provenance (v1) predicate.
//!
//! Created after the build, which says what it took from outside; embedded images come from the
//! registry tree inside the image. Contains no times or random numbers, so that the same build gives
//! the same text. Must not depend on the build.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::sbom;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Platform, Reference};
use imgctl_store::store::Store;

/// Media type of the statement, and its artifact type as a referrer.
pub const MEDIA_TYPE: &str = "application/vnd.in-toto+json";

/// Type of the predicate.
pub const PREDICATE: &str = "https://slsa.dev/provenance/v1";

pub(crate) const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const BUILD_TYPE: &str = "urn:imgctl:kubefile:v1";
const BUILDER: &str = "urn:imgctl";

/// Types of package URLs (package-url/purl-spec): an image of a registry, and one of an OCI layout.
const DOCKER: &str = "docker";
const OCI: &str = "oci";

/// Build arguments with these words in their names hold secrets.
const SECRET_WORDS: [&str; 6] = ["TOKEN", "PASS", "SECRET", "KEY", "CREDENTIAL", "AUTH"];

/// Parameters of the build.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    /// Name of the Kubefile, with its digest if it is a file.
    pub file: String,
    pub file_digest: Option<Digest>,
    pub build_args: BTreeMap<String, String>,
    pub target: Option<String>,
    /// What the build has taken from outside, without the embedded images.
    pub materials: BTreeSet<Material>,
    /// Leave out the build arguments (BuildKit's `mode=min`).
    pub minimal: bool,
    /// URI of what runs the build, such as a CI job; `None` = imgctl.
    pub builder: Option<String>,
}

/// Something that a build takes from outside, with the digest of what it was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Material {
    uri: String,
    algorithm: String,
    digest: String,
}

impl Material {
    /// Returns an image `name` of a registry or of the store.
    pub fn image(name: &str, platform: Option<&Platform>, digest: &Digest) -> Self {
        Self::with(package_url(DOCKER, name, platform), digest)
    }

    /// Returns an image of an OCI layout, which is the build context `name`.
    pub fn layout(name: &str, platform: &Platform, digest: &Digest) -> Self {
        // The context may have the name of an image with a tag, which says nothing about the layout.
        let bare = Reference::parse(name).map_or_else(|_| name.to_owned(), |name| name.name());
        Self::with(package_url(OCI, &format!("{bare}@{digest}"), Some(platform)), digest)
    }

    /// Returns the file at `url`, which must have no password.
    pub fn file(url: &str, digest: &Digest) -> Self {
        Self::with(url.to_owned(), digest)
    }

    /// Returns the commit that a git repository has at `reference`; `url` must have no password.
    pub fn repository(url: &str, reference: Option<&str>, commit: &str) -> Self {
        let uri = reference.map_or_else(|| url.to_owned(), |name| format!("{url}#{name}"));
        let algorithm = if commit.len() == 64 { "sha256" } else { "sha1" };
        Self { uri, algorithm: algorithm.to_owned(), digest: commit.to_owned() }
    }

    fn with(uri: String, digest: &Digest) -> Self {
        Self {
            uri,
            algorithm: digest.algorithm().as_str().to_owned(),
            digest: digest.hex().to_owned(),
        }
    }

    fn to_json(&self) -> Value {
        json!({ "uri": self.uri, "digest": { self.algorithm.as_str(): self.digest } })
    }
}

/// Returns the package URL of an image, as BuildKit writes it (`util/purl`): the name as docker shows
/// it, the tag as the version, digest and platform as qualifiers.
fn package_url(kind: &str, name: &str, platform: Option<&Platform>) -> String {
    let Ok(reference) = Reference::parse(name).map(Reference::with_default_tag) else {
        return format!("pkg:{kind}/{}", escaped(name));
    };
    let name = reference.name();
    let hub = name.strip_prefix("docker.io/");
    let shown = hub.map_or(&*name, |hub| hub.strip_prefix("library/").unwrap_or(hub));
    let mut url = format!("pkg:{kind}/{shown}");
    if let Some(tag) = reference.tag() {
        url.push_str(&format!("@{tag}"));
    }
    let digest = reference.digest().map(|digest| format!("digest={digest}"));
    let platform = platform.map(|platform| {
        let Platform { os, architecture, variant, .. } = platform;
        let normal = Platform::new(os, architecture, variant.as_deref());
        format!("platform={}", escaped(&normal.to_string()))
    });
    let qualifiers: Vec<String> = digest.into_iter().chain(platform).collect();
    if !qualifiers.is_empty() {
        url.push_str(&format!("?{}", qualifiers.join("&")));
    }
    url
}

/// Escapes everything that may have a meaning in a URL.
fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(
            |byte| {
                if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
            },
        )
        .collect()
}

/// Writes the statement about `root` and the images below it.
pub fn statement(
    store: &Store,
    root: &Descriptor,
    names: &[Reference],
    invocation: &Invocation,
) -> Result<Vec<u8>> {
    let mut digests = vec![root.digest.clone()];
    let mut materials = invocation.materials.clone();
    for image in store.platform_images(root)? {
        digests.push(image.descriptor.digest.clone());
        for (name, digest) in sbom::embedded_images(store, &image)? {
            materials.insert(Material::image(&name, None, &digest));
        }
    }
    digests.dedup();
    let name = names.first().map_or_else(|| root.digest.to_string(), Reference::name);
    let subjects: Vec<Value> = digests
        .iter()
        .map(|digest| json!({ "name": name, "digest": digest_set(digest) }))
        .collect();
    let mut kubefile = json!({ "name": invocation.file });
    if let Some(digest) = &invocation.file_digest {
        kubefile["digest"] = digest_set(digest);
    }
    let mut parameters = json!({ "kubefile": kubefile });
    if !invocation.minimal {
        parameters["buildArgs"] = arguments(invocation);
    }
    if let Some(target) = &invocation.target {
        parameters["target"] = target.as_str().into();
    }
    let statement = json!({
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": parameters,
                "resolvedDependencies": materials.iter().map(Material::to_json).collect::<Vec<_>>(),
            },
            "runDetails": {
                "builder": {
                    "id": invocation.builder.as_deref().unwrap_or(BUILDER),
                    "version": { "imgctl": env!("CARGO_PKG_VERSION") },
                },
            },
        },
    });
    let mut text = serde_json::to_vec_pretty(&statement)
        .map_err(|error| Error::failed("cannot write the provenance").caused_by(error))?;
    text.push(b'\n');
    Ok(text)
}

pub(crate) fn digest_set(digest: &Digest) -> Value {
    json!({ digest.algorithm().as_str(): digest.hex() })
}

/// Build arguments; the value is null if the name suggests a secret or the value is a URL with
/// credentials.
fn arguments(invocation: &Invocation) -> Value {
    let shown = |name: &str, value: &str| {
        let name = name.to_ascii_uppercase();
        let is_secret = SECRET_WORDS.iter().any(|word| name.contains(word));
        let has_login = value
            .split_once("://")
            .is_some_and(|(_, rest)| rest.split('/').next().is_some_and(|host| host.contains('@')));
        if is_secret || has_login { Value::Null } else { value.into() }
    };
    invocation
        .build_args
        .iter()
        .map(|(name, value)| (name.clone(), shown(name, value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_the_package_urls_of_buildkit() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let amd64 = Platform::new("linux", "amd64", None);
        for (name, platform, expected) in [
            ("library/alpine:3.15".to_owned(), None, "pkg:docker/library/alpine@3.15".to_owned()),
            ("docker.io/library/alpine".to_owned(), None, "pkg:docker/alpine@latest".to_owned()),
            (
                format!("docker.io/library/alpine@{digest}"),
                None,
                format!("pkg:docker/alpine?digest={digest}"),
            ),
            ("docker.io/user/test:v2".to_owned(), None, "pkg:docker/user/test@v2".to_owned()),
            ("ghcr.io/foo/bar:v2".to_owned(), None, "pkg:docker/ghcr.io/foo/bar@v2".to_owned()),
            (
                format!("docker.io/busybox:1@{digest}"),
                Some(&amd64),
                format!("pkg:docker/busybox@1?digest={digest}&platform=linux%2Famd64"),
            ),
        ] {
            assert_eq!(package_url(DOCKER, &name, platform), expected, "{name}");
        }
        let digest = Digest::parse(&digest).unwrap();
        let layout = Material::layout("base:v1", &amd64, &digest);
        assert_eq!(layout.uri, format!("pkg:oci/base?digest={digest}&platform=linux%2Famd64"));
    }

    #[test]
    fn values_that_may_be_secrets_are_left_out() {
        let pairs = [
            ("VERSION", "1.2"),
            ("GITHUB_TOKEN", "s"),
            ("db_password", "s"),
            ("MIRROR", "https://me:s@host/x"),
            ("SITE", "https://host/@me"),
        ];
        let invocation = Invocation {
            build_args: pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).into(),
            ..Invocation::default()
        };
        let expected = json!({
            "GITHUB_TOKEN": null, "MIRROR": null, "SITE": "https://host/@me",
            "VERSION": "1.2", "db_password": null,
        });
        assert_eq!(arguments(&invocation), expected);
    }
}
