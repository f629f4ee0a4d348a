//! Resolves image names in registries, to digests that identify the image of a running container.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Reference};
use imgctl_base::{image::manifest::Document, secret::Secret};
use imgctl_registry::{Client, ClientOptions, Target as Asked, credentials::Credentials};

/// The current state of an image in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Digest that the name resolves to: of the index, if the image has several platforms.
    pub digest: String,
    /// Images by architecture; `""`: any architecture.
    pub platforms: BTreeMap<String, Variant>,
}

/// The image for one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    pub manifest: String,
    /// Digest of the configuration: the image ID in a container runtime.
    pub config: String,
    /// Compressed size of its layers, in bytes.
    pub size: u64,
}

impl Target {
    /// Returns the image for Nodes of `architecture`.
    pub fn variant(&self, architecture: &str) -> Option<&Variant> {
        self.platforms.get(architecture).or_else(|| self.platforms.get(""))
    }

    /// Returns whether a container that reports `image_id` runs this image. Runtimes report the
    /// digest of the index, the manifest or the configuration.
    pub fn is(&self, image_id: &str, architecture: &str) -> bool {
        let Some(digest) = digest_of(image_id) else {
            return false;
        };
        let variant = self.variant(architecture);
        self.digest == digest
            || variant.is_some_and(|one| one.manifest == digest || one.config == digest)
    }
}

/// Returns the `sha256:…` at the end of an image ID as reported by a kubelet.
pub fn digest_of(image_id: &str) -> Option<&str> {
    let start = image_id.rfind("sha256:")?;
    Some(&image_id[start..])
}

/// Access to one image with the secrets of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The registry allows anonymous access, or the hosts of the cluster have its credentials.
    Open,
    /// One of the secrets grants access.
    Granted,
    /// The registry requires a login and accepts none of the secrets.
    Denied,
    /// The registry could not be queried, for this reason.
    Unknown(String),
}

pub trait Images {
    fn target(&self, image: &str) -> Result<Target>;

    /// Returns whether its registry grants access with these logins (the content of a
    /// `config.json`), or to anonymous clients.
    fn access(&self, image: &str, logins: Option<&Secret>) -> Access;
}

/// Registries: the cluster's own first, then the one in the image name.
pub struct RegistryImages {
    /// `HOST:PORT` of the endpoints that serve the cluster's embedded registry.
    pub embedded: Vec<String>,
    pub embedded_client: Option<Client>,
    pub client: Client,
    /// Options for clients with other credentials.
    pub options: ClientOptions,
}

impl Images for RegistryImages {
    fn target(&self, image: &str) -> Result<Target> {
        let reference = Reference::parse(image)?;
        if let Some(target) = self.in_cluster(&reference, ask)? {
            return Ok(target);
        }
        let reference = located(reference);
        ask(&self.client, &reference)?.ok_or_else(|| {
            Error::not_found(format!("no registry has {image}"))
                .hint("push it first, or add it to the cluster's registry through a cluster image")
        })
    }

    fn access(&self, image: &str, logins: Option<&Secret>) -> Access {
        match self.opens(image, logins) {
            Ok(access) => access,
            Err(error) if error.kind() == Kind::Denied => Access::Denied,
            Err(error) => Access::Unknown(error.to_string()),
        }
    }
}

impl RegistryImages {
    /// Returns the first answer of the cluster's own registry to `question`.
    fn in_cluster<T>(
        &self,
        reference: &Reference,
        question: impl Fn(&Client, &Reference) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let Some(client) = &self.embedded_client else {
            return Ok(None);
        };
        for host in &self.embedded {
            let moved = elsewhere(reference, host)?;
            match question(client, &moved) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => tracing::debug!("{error}"),
            }
        }
        Ok(None)
    }

    fn opens(&self, image: &str, logins: Option<&Secret>) -> Result<Access> {
        let reference = Reference::parse(image)?;
        if self.in_cluster(&reference, head)?.is_some() {
            return Ok(Access::Open);
        }
        let credentials = Credentials { inline: logins.cloned(), ..Credentials::default() };
        let client = Client::new(ClientOptions { credentials, ..self.options.clone() })?;
        let found = head(&client, &located(reference))?;
        Ok(match (found, logins) {
            (None, _) => Access::Unknown(format!("no registry has {image}")),
            (Some(_), None) => Access::Open,
            (Some(_), Some(_)) => Access::Granted,
        })
    }
}

/// Adds the default registry to a name without one.
fn located(reference: Reference) -> Reference {
    match reference.registry() {
        Some(_) => reference,
        None => reference.on_docker_hub(),
    }
}

/// Returns the same repository on another registry.
fn elsewhere(reference: &Reference, host: &str) -> Result<Reference> {
    let library = reference.clone().on_docker_hub();
    let repository = match reference.registry() {
        Some(_) => reference.repository(),
        None => library.repository(),
    };
    let mut name = format!("{host}/{repository}");
    if let Some(tag) = reference.tag() {
        name.push_str(&format!(":{tag}"));
    }
    if let Some(digest) = reference.digest() {
        name.push_str(&format!("@{digest}"));
    }
    Reference::parse(&name)
}

fn head(client: &Client, reference: &Reference) -> Result<Option<Descriptor>> {
    client.repository(reference)?.head(&Asked::of(reference))
}

fn ask(client: &Client, reference: &Reference) -> Result<Option<Target>> {
    let Some(head) = head(client, reference)? else {
        return Ok(None);
    };
    let repository = client.repository(reference)?;
    let read = |digest: &Digest| -> Result<Document> {
        let document = repository.document(&Asked::Digest(digest.clone()))?;
        Document::parse(&document.bytes, Some(&document.descriptor.media_type))
    };
    let mut platforms = BTreeMap::new();
    match read(&head.digest)? {
        Document::Manifest(manifest) => {
            let layers = manifest.layers.iter().map(|layer| layer.size);
            platforms.insert(
                String::new(),
                Variant {
                    manifest: head.digest.to_string(),
                    config: manifest.config.digest.to_string(),
                    size: layers.sum(),
                },
            );
        }
        Document::Index(index) => {
            for entry in &index.manifests {
                let Some(platform) = entry.platform.as_ref().filter(|one| one.os == "linux") else {
                    continue;
                };
                if platforms.contains_key(&platform.architecture) {
                    continue;
                }
                if let Document::Manifest(manifest) = read(&entry.digest)? {
                    let layers = manifest.layers.iter().map(|layer| layer.size);
                    platforms.insert(
                        platform.architecture.clone(),
                        Variant {
                            manifest: entry.digest.to_string(),
                            config: manifest.config.digest.to_string(),
                            size: layers.sum(),
                        },
                    );
                }
            }
        }
    }
    Ok(Some(Target { digest: head.digest.to_string(), platforms }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_image_is_known_by_any_of_its_digests() {
        let target = Target {
            digest: "sha256:index".to_owned(),
            platforms: BTreeMap::from([(
                "arm64".to_owned(),
                Variant {
                    manifest: "sha256:manifest".to_owned(),
                    config: "sha256:config".to_owned(),
                    size: 1,
                },
            )]),
        };
        assert!(target.is("docker.io/library/x@sha256:index", "amd64"));
        assert!(target.is("sha256:config", "arm64") && target.is("x@sha256:manifest", "arm64"));
        assert!(!target.is("sha256:config", "amd64") && !target.is("", "arm64"));
    }

    #[test]
    fn names_move_to_the_cluster_s_registry_as_container_runtimes_move_them() {
        let moved = |name: &str| {
            elsewhere(&Reference::parse(name).unwrap(), "10.0.0.1:5000").unwrap().to_string()
        };
        assert_eq!(moved("nginx:1"), "10.0.0.1:5000/library/nginx:1");
        assert_eq!(moved("sealos.hub:5000/a/b:1"), "10.0.0.1:5000/a/b:1");
    }
}
