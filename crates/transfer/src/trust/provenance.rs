//! How an image was built: an in-toto statement (v1) with a SLSA provenance (v1) predicate.
//!
//! Created after the build from the content of the store: base images come from manifest
//! annotations, embedded images from the registry tree inside the image. Contains no times or
//! random numbers, so that the same build gives the same text. Must not depend on the build.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::trust::sbom;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Reference};
use imgctl_store::store::Store;

/// Media type of the statement, and its artifact type as a referrer.
pub const MEDIA_TYPE: &str = "application/vnd.in-toto+json";

/// Type of the predicate.
pub const PREDICATE: &str = "https://slsa.dev/provenance/v1";

pub(crate) const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const BUILD_TYPE: &str = "urn:imgctl:kubefile:v1";
const BUILDER: &str = "urn:imgctl";

/// Annotations of image-spec, annotations.md.
const BASE_NAME: &str = "org.opencontainers.image.base.name";
const BASE_DIGEST: &str = "org.opencontainers.image.base.digest";

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
    /// Leave out the build arguments (BuildKit's `mode=min`).
    pub minimal: bool,
    /// URI of what runs the build, such as a CI job; `None` = imgctl.
    pub builder: Option<String>,
}

/// Writes the statement about `root` and the images below it.
pub fn statement(
    store: &Store,
    root: &Descriptor,
    names: &[Reference],
    invocation: &Invocation,
) -> Result<Vec<u8>> {
    let mut digests = vec![root.digest.clone()];
    // Keyed by name and digest, so that materials shared by several platforms are listed once.
    let mut materials: BTreeMap<(String, Digest), Value> = BTreeMap::new();
    for image in store.platform_images(root)? {
        digests.push(image.descriptor.digest.clone());
        let annotation = |name: &str| image.manifest.annotations.get(name);
        if let (Some(name), Some(digest)) = (annotation(BASE_NAME), annotation(BASE_DIGEST)) {
            let digest = Digest::parse(digest)?;
            materials.insert((name.clone(), digest.clone()), material(name, &digest));
        }
        for (name, digest) in sbom::embedded_images(store, &image)? {
            let value = material(&name, &digest);
            materials.insert((name, digest), value);
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
                "resolvedDependencies": materials.into_values().collect::<Vec<_>>(),
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

fn material(name: &str, digest: &Digest) -> Value {
    json!({ "uri": format!("docker://{name}"), "digest": digest_set(digest) })
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
