//! Where hosts get the layers of a cluster's images: from this machine, or from a registry that both
//! know. Finds the access that hosts get for the duration of a pull.

use std::collections::BTreeMap;

use crate::front_end::Logins;
use crate::session::{Needed, Session};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::Reference;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_registry::Client;
use imgctl_registry::client::access::Access;
use imgctl_workflow::sync::source::{RegistryLayers, Source};

/// `--source`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LayerSource {
    /// This machine sends them.
    #[default]
    Controller,
    /// Hosts pull them from the registry in each image's name.
    ImageRegistry,
    /// Hosts pull them from this repository.
    Repository(Reference),
}

impl LayerSource {
    /// Returns which layers an operation with this source needs in the store.
    pub(crate) fn needed(&self) -> Needed {
        match self {
            Self::Controller => Needed::Layers,
            Self::ImageRegistry | Self::Repository(_) => Needed::FilesRead,
        }
    }

    /// Parses `controller`, `registry` or `registry=HOST/REPOSITORY`.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once('=') {
            None if text == "controller" => Ok(Self::Controller),
            None if text == "registry" => Ok(Self::ImageRegistry),
            Some(("registry", name)) => {
                let reference = Reference::parse(name)?;
                let is_repository = reference.registry().is_some()
                    && reference.tag().is_none()
                    && reference.digest().is_none();
                if is_repository {
                    Ok(Self::Repository(reference))
                } else {
                    Err(Error::usage(format!("`{name}` is not the name of a repository"))
                        .hint("write --source registry=HOST/REPOSITORY, without a tag"))
                }
            }
            _ => Err(Error::usage(format!("`{text}` is no source of layers"))
                .hint("sources are controller, registry and registry=HOST/REPOSITORY")),
        }
    }

    /// Returns the client that knows the way to registries; `None` if none is needed.
    pub(crate) fn client(&self, session: &Session<'_>) -> Result<Option<Client>> {
        match self {
            Self::Controller => Ok(None),
            Self::ImageRegistry | Self::Repository(_) => {
                Client::new(session.front.registry_options(Logins::OfUser)?).map(Some)
            }
        }
    }

    /// Returns where `hosts` get the layers of the context's images. `client` is that of
    /// [`LayerSource::client`].
    pub(crate) fn find(
        &self,
        client: Option<&Client>,
        context: &ClusterContext,
        hosts: &[Host],
    ) -> Result<Source> {
        let Some(client) = client else {
            return Ok(Source::Controller);
        };
        let mut repositories = BTreeMap::new();
        for image in context.images.iter().filter(|image| image.has_files()) {
            let names = match self {
                Self::Repository(reference) => vec![reference.clone()],
                _ => client.candidates(&Reference::parse(&image.name)?)?,
            };
            let access = |name: &Reference| -> Result<Access> {
                let access = client.repository(name)?.access()?;
                if *self == Self::ImageRegistry {
                    check_is_reachable(&access, hosts).map(|()| access)
                } else {
                    Ok(access)
                }
            };
            let found = names.iter().map(access).collect::<Result<Vec<_>>>();
            let found = found
                .context(|| format!("hosts cannot pull image {} from its registry", image.name))?;
            repositories.insert(image.name.clone(), found);
        }
        Ok(Source::Registry(RegistryLayers::new(repositories)))
    }
}

/// Fails if the registry is this machine by a name that means another machine on `hosts`.
fn check_is_reachable(access: &Access, hosts: &[Host]) -> Result<()> {
    match hosts.iter().find(|host| !host.local) {
        Some(host) if access.is_loopback() => Err(Error::usage(format!(
            "{} is on this machine; on host {} that name means the host itself",
            access.name(),
            host.id()
        ))
        .hint("name the registry as hosts reach it: --source registry=HOST:PORT/REPOSITORY")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_parsed() {
        let parse = |text: &str| LayerSource::parse(text).map_err(|error| error.to_string());
        assert_eq!(parse("controller"), Ok(LayerSource::Controller));
        assert_eq!(parse("registry"), Ok(LayerSource::ImageRegistry));
        let repository = Reference::parse("r.example.com:5000/a/b").unwrap();
        assert_eq!(
            parse("registry=r.example.com:5000/a/b"),
            Ok(LayerSource::Repository(repository))
        );
        for wrong in
            ["", "peers", "registry=", "registry=a", "registry=r.io/a:v1", "controller=r.io/a"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
