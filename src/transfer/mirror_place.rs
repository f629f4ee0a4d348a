//! The two ends of a mirror: a registry, or part of one, or a registry's tree on disk.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::image::{Digest, Reference};
use crate::registry::layout::Layout;
use crate::registry::{Client, Target};
use crate::transfer::mirror;
use crate::transfer::registry_sink::RegistrySink;
use crate::transfer::registry_source::RegistrySource;
use crate::transfer::sink::ImageSink;
use crate::transfer::source::ImageSource;
use crate::transfer::tree_sink::TreeSink;
use crate::transfer::tree_source::TreeSource;

/// Repositories and tags are read from a tree in pages of this size.
const PAGE: usize = 1000;

/// What people write for a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlaceName {
    /// `HOST[:PORT][/PREFIX]`; all repositories are below the prefix.
    Registry {
        host: String,
        prefix: Option<String>,
    },
    Directory(PathBuf),
}

impl PlaceName {
    /// Reads a place: `docker://HOST…` is a registry, `dir:PATH` and what looks like a path or is a
    /// directory is a tree, anything else a registry.
    pub(crate) fn parse(text: &OsStr) -> Result<Self> {
        let path = Path::new(text);
        let utf8 = text.to_str();
        if let Some(rest) = utf8.and_then(|text| text.strip_prefix("docker://")) {
            return registry(rest);
        }
        for scheme in ["dir:", "registry-dir:"] {
            if let Some(rest) = utf8.and_then(|text| text.strip_prefix(scheme)) {
                return Ok(Self::Directory(PathBuf::from(rest)));
            }
        }
        let bytes = text.as_encoded_bytes();
        let looks_like_path = ["/", "./", "../"]
            .iter()
            .any(|start| bytes.starts_with(start.as_bytes()));
        if looks_like_path || matches!(bytes, b"." | b"..") || path.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        match utf8 {
            Some(text) => registry(text),
            None => Ok(Self::Directory(path.to_owned())),
        }
    }

    /// Opens the place to read from.
    pub(crate) fn source(&self, client: &Client) -> Result<Place> {
        match self {
            Self::Directory(path) => Ok(Place::Tree(Layout::open(&tree(path), false)?)),
            Self::Registry { .. } => Ok(self.registry(client)),
        }
    }

    /// Opens the place to look at what it has; `None` for a tree that is not there yet.
    pub(crate) fn look(&self, client: &Client) -> Result<Option<Place>> {
        match self.source(client) {
            Ok(place) => Ok(Some(place)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the place to write to; a tree is made if it is not there. `sync`: what is written to
    /// it survives power loss.
    pub(crate) fn sink(&self, client: &Client, sync: bool) -> Result<Place> {
        match self {
            Self::Directory(path) => Ok(Place::Tree(
                Layout::create(&tree(path), sync)?.for_writing()?,
            )),
            Self::Registry { .. } => Ok(self.registry(client)),
        }
    }

    fn registry(&self, client: &Client) -> Place {
        let (host, prefix) = match self {
            Self::Registry { host, prefix } => (host.clone(), prefix.clone()),
            Self::Directory(_) => (String::new(), None),
        };
        Place::Registry {
            client: client.clone(),
            host,
            prefix,
        }
    }
}

/// An image's `registry/` directory counts as the tree that is in it.
fn tree(path: &Path) -> PathBuf {
    let inner = path.join("registry");
    let has = |path: &Path| path.join("docker/registry/v2").is_dir();
    match !has(path) && has(&inner) {
        true => inner,
        false => path.to_owned(),
    }
}

fn registry(text: &str) -> Result<PlaceName> {
    let text = text.trim_end_matches('/');
    let wrong = || {
        Error::usage(format!("`{text}` is neither a registry nor a directory"))
            .hint("a registry is written HOST:PORT or docker://HOST[/PREFIX], a directory ./PATH")
    };
    // The rules for names say what a host and a prefix are.
    let sample = Reference::parse(&format!("{text}/x")).map_err(|_| wrong())?;
    let host = sample.registry().ok_or_else(wrong)?.to_owned();
    let prefix = sample.repository().strip_suffix("/x");
    Ok(PlaceName::Registry {
        host,
        prefix: prefix.map(str::to_owned),
    })
}

impl fmt::Display for PlaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry { host, prefix: None } => f.write_str(host),
            Self::Registry {
                host,
                prefix: Some(prefix),
            } => write!(f, "{host}/{prefix}"),
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A place that is open.
pub(crate) enum Place {
    Registry {
        client: Client,
        host: String,
        prefix: Option<String>,
    },
    Tree(Layout),
}

impl Place {
    /// All repositories, without the prefix.
    pub(crate) fn repositories(&self) -> Result<Vec<String>> {
        match self {
            Self::Registry {
                client,
                host,
                prefix,
            } => {
                let mut all = client.catalog(host)?;
                if let Some(prefix) = prefix {
                    let below = |name: String| {
                        let rest = name.strip_prefix(prefix)?.strip_prefix('/')?;
                        Some(rest.to_owned())
                    };
                    all = all.into_iter().filter_map(below).collect();
                }
                Ok(all)
            }
            Self::Tree(layout) => pages(|after| layout.repositories(after, PAGE)),
        }
    }

    /// All tags of a repository; in a tree also the manifests that have none and belong to no index.
    pub(crate) fn targets(&self, repository: &str) -> Result<Vec<Target>> {
        let tags = match self {
            Self::Registry { client, .. } => client
                .repository(&self.reference(repository, None)?)?
                .tags()?,
            Self::Tree(layout) => pages(|after| {
                let tags = layout.tags(repository, after, PAGE)?;
                Ok(tags.unwrap_or_default())
            })?,
        };
        let mut targets: Vec<Target> = tags.into_iter().map(Target::Tag).collect();
        if let Self::Tree(layout) = self {
            let lone = layout.lone_manifests(repository)?;
            targets.extend(lone.into_iter().map(Target::Digest));
        }
        Ok(targets)
    }

    /// What a tag means, or whether a digest is there.
    pub(crate) fn digest(&self, repository: &str, target: &Target) -> Result<Option<Digest>> {
        match (self, target) {
            (Self::Registry { client, .. }, _) => {
                let reference = self.reference(repository, Some(target))?;
                let found = client.repository(&reference)?.head(target)?;
                Ok(found.map(|found| found.digest))
            }
            (Self::Tree(layout), Target::Tag(tag)) => layout.resolve_tag(repository, tag),
            (Self::Tree(layout), Target::Digest(digest)) => {
                let there = layout.has_revision(repository, digest)?;
                Ok(there.then(|| digest.clone()))
            }
        }
    }

    /// An image to be read.
    pub(crate) fn source(&self, repository: &str, target: &Target) -> Result<Box<dyn ImageSource>> {
        match self {
            Self::Registry { client, .. } => {
                let reference = self.reference(repository, Some(target))?;
                Ok(Box::new(RegistrySource::new(client, &reference)?))
            }
            Self::Tree(layout) => Ok(Box::new(TreeSource::new(
                layout,
                repository,
                target.clone(),
            ))),
        }
    }

    /// An image to be written.
    pub(crate) fn sink(&self, repository: &str, target: &Target) -> Result<Box<dyn ImageSink>> {
        match (self, target) {
            (Self::Registry { client, .. }, _) => {
                let reference = self.reference(repository, Some(target))?;
                Ok(Box::new(RegistrySink::new(client, &reference)?))
            }
            (Self::Tree(layout), Target::Tag(tag)) => {
                Ok(Box::new(TreeSink::new(layout, repository, Some(tag))))
            }
            (Self::Tree(layout), Target::Digest(_)) => {
                Ok(Box::new(TreeSink::new(layout, repository, None)))
            }
        }
    }

    /// What the registry itself calls a repository.
    pub(crate) fn repository(&self, repository: &str) -> String {
        match self {
            Self::Registry {
                prefix: Some(prefix),
                ..
            } => format!("{prefix}/{repository}"),
            _ => repository.to_owned(),
        }
    }

    fn reference(&self, repository: &str, target: Option<&Target>) -> Result<Reference> {
        let Self::Registry { host, .. } = self else {
            return Reference::parse(repository);
        };
        let name = format!("{host}/{}", self.repository(repository));
        Reference::parse(&match target {
            Some(target) => mirror::name(&name, target),
            None => name,
        })
    }
}

/// All of a listing that comes in pages.
fn pages(page: impl Fn(Option<&str>) -> Result<Vec<String>>) -> Result<Vec<String>> {
    let mut all: Vec<String> = Vec::new();
    loop {
        let next = page(all.last().map(String::as_str))?;
        if next.is_empty() {
            return Ok(all);
        }
        all.extend(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_told_from_directories() {
        let registry = |host: &str, prefix: Option<&str>| PlaceName::Registry {
            host: host.to_owned(),
            prefix: prefix.map(str::to_owned),
        };
        let directory = |path: &str| PlaceName::Directory(path.into());
        let here = tempfile::tempdir().unwrap();
        let existing = here.path().to_str().unwrap();
        for (text, place) in [
            ("localhost:5000", registry("localhost:5000", None)),
            ("docker://reg.io/", registry("reg.io", None)),
            ("reg.io/team/sub", registry("reg.io", Some("team/sub"))),
            ("[::1]:5000", registry("[::1]:5000", None)),
            ("./registry", directory("./registry")),
            ("/srv/registry", directory("/srv/registry")),
            ("dir:reg.io", directory("reg.io")),
            (existing, directory(existing)),
        ] {
            let parsed = PlaceName::parse(OsStr::new(text)).unwrap();
            assert_eq!(parsed, place, "{text}");
        }
        for wrong in ["registry", "reg.io/Upper", "reg.io/a:v1", "docker://", ""] {
            assert!(PlaceName::parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
