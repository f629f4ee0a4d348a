//! The two endpoints of a mirror operation: a registry, part of one, or a registry's tree on disk.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::transfer::arbiter::Arbiter;
use crate::transfer::registry::{RegistrySink, RegistrySource};
use crate::transfer::sink::ImageSink;
use crate::transfer::source::ImageSource;
use crate::transfer::tree::{TreeSink, TreeSource};
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::{Digest, Reference};
use imgctl_registry::layout::Layout;
use imgctl_registry::{Client, Target};

/// Page size for listing repositories and tags of a tree.
const PAGE: usize = 1000;

/// A place as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceName {
    /// `HOST[:PORT][/PREFIX]`; all repositories are below the prefix.
    Registry {
        host: String,
        prefix: Option<String>,
    },
    Directory(PathBuf),
}

impl PlaceName {
    /// Parses a place: `docker://HOST…` is a registry; `dir:PATH`, anything that looks like a path,
    /// and existing directories are trees; everything else is a registry.
    pub fn parse(text: &OsStr) -> Result<Self> {
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
        let looks_like_path =
            ["/", "./", "../"].iter().any(|start| bytes.starts_with(start.as_bytes()));
        if looks_like_path || matches!(bytes, b"." | b"..") || path.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        match utf8 {
            Some(text) => registry(text),
            None => Ok(Self::Directory(path.to_owned())),
        }
    }

    /// Opens the place for reading.
    pub fn source(&self, client: &Client) -> Result<Place> {
        match self {
            Self::Directory(path) => {
                let layout = Layout::open(&tree(path), false)?;
                Ok(Place::Tree(layout, Arbiter::policy(client)))
            }
            Self::Registry { .. } => Ok(self.registry(client)),
        }
    }

    /// Opens the place to list its content; returns `None` for a tree that does not exist yet.
    pub fn look(&self, client: &Client) -> Result<Option<Place>> {
        self.source(client).found()
    }

    /// Opens the place for writing and creates a missing tree. With `sync`, written data survives
    /// power loss.
    pub fn sink(&self, client: &Client, sync: bool) -> Result<Place> {
        match self {
            Self::Directory(path) => {
                let layout = Layout::create(&tree(path), sync)?.for_writing()?;
                Ok(Place::Tree(layout, Arbiter::policy(client)))
            }
            Self::Registry { .. } => Ok(self.registry(client)),
        }
    }

    fn registry(&self, client: &Client) -> Place {
        let (host, prefix) = match self {
            Self::Registry { host, prefix } => (host.clone(), prefix.clone()),
            Self::Directory(_) => (String::new(), None),
        };
        Place::Registry { client: client.clone(), host, prefix }
    }
}

/// For the root of an image with a `registry/` directory, returns the tree in that directory.
fn tree(path: &Path) -> PathBuf {
    let inner = path.join("registry");
    let has = |path: &Path| path.join("docker/registry/v2").is_dir();
    if !has(path) && has(&inner) { inner } else { path.to_owned() }
}

fn registry(text: &str) -> Result<PlaceName> {
    let text = text.trim_end_matches('/');
    let wrong = || {
        Error::usage(format!("`{text}` is neither a registry nor a directory"))
            .hint("a registry is written HOST:PORT or docker://HOST[/PREFIX], a directory ./PATH")
    };
    // Validates host and prefix by the rules for image names.
    let sample = Reference::parse(&format!("{text}/x")).map_err(|_| wrong())?;
    let host = sample.registry().ok_or_else(wrong)?.to_owned();
    let prefix = sample.repository().strip_suffix("/x");
    Ok(PlaceName::Registry { host, prefix: prefix.map(str::to_owned) })
}

impl fmt::Display for PlaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry { host, prefix: None } => f.write_str(host),
            Self::Registry { host, prefix: Some(prefix) } => write!(f, "{host}/{prefix}"),
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}

/// An open place.
pub enum Place {
    Registry {
        client: Client,
        host: String,
        prefix: Option<String>,
    },
    /// The second decides about what is read from the tree.
    Tree(Layout, Arbiter),
}

impl Place {
    /// Returns all repositories, without the prefix.
    pub fn repositories(&self) -> Result<Vec<String>> {
        match self {
            Self::Registry { client, host, prefix } => {
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
            Self::Tree(layout, _) => pages(|after| layout.repositories(after, PAGE)),
        }
    }

    /// Returns all tags of a repository; for a tree, also the untagged manifests that belong to no
    /// index.
    pub fn targets(&self, repository: &str) -> Result<Vec<Target>> {
        let tags = match self {
            Self::Registry { client, .. } => {
                client.repository(&self.reference(repository, None)?)?.tags()?
            }
            Self::Tree(layout, _) => pages(|after| {
                let tags = layout.tags(repository, after, PAGE)?;
                Ok(tags.unwrap_or_default())
            })?,
        };
        let mut targets: Vec<Target> = tags.into_iter().map(Target::Tag).collect();
        if let Self::Tree(layout, _) = self {
            let lone = layout.lone_manifests(repository)?;
            targets.extend(lone.into_iter().map(Target::Digest));
        }
        Ok(targets)
    }

    /// Resolves a tag to its digest, or checks that a digest exists.
    pub fn digest(&self, repository: &str, target: &Target) -> Result<Option<Digest>> {
        match (self, target) {
            (Self::Registry { client, .. }, _) => {
                let reference = self.reference(repository, Some(target))?;
                let found = client.repository(&reference)?.head(target)?;
                Ok(found.map(|found| found.digest))
            }
            (Self::Tree(layout, _), Target::Tag(tag)) => layout.resolve_tag(repository, tag),
            (Self::Tree(layout, _), Target::Digest(digest)) => {
                let there = layout.has_revision(repository, digest)?;
                Ok(there.then(|| digest.clone()))
            }
        }
    }

    /// Opens an image for reading.
    pub fn source(&self, repository: &str, target: &Target) -> Result<Box<dyn ImageSource>> {
        match self {
            Self::Registry { client, .. } => {
                let reference = self.reference(repository, Some(target))?;
                Ok(Box::new(RegistrySource::new(client, &reference)?))
            }
            Self::Tree(layout, arbiter) => {
                Ok(Box::new(TreeSource::new(layout, repository, target.clone(), arbiter)))
            }
        }
    }

    /// Opens an image for writing.
    pub fn sink(&self, repository: &str, target: &Target) -> Result<Box<dyn ImageSink>> {
        match (self, target) {
            (Self::Registry { client, .. }, _) => {
                let reference = self.reference(repository, Some(target))?;
                Ok(Box::new(RegistrySink::new(client, &reference)?))
            }
            (Self::Tree(layout, _), Target::Tag(tag)) => {
                Ok(Box::new(TreeSink::new(layout, repository, Some(tag))))
            }
            (Self::Tree(layout, _), Target::Digest(_)) => {
                Ok(Box::new(TreeSink::new(layout, repository, None)))
            }
        }
    }

    /// The full name of a repository in the registry.
    pub fn repository(&self, repository: &str) -> String {
        match self {
            Self::Registry { prefix: Some(prefix), .. } => format!("{prefix}/{repository}"),
            _ => repository.to_owned(),
        }
    }

    fn reference(&self, repository: &str, target: Option<&Target>) -> Result<Reference> {
        let Self::Registry { host, .. } = self else {
            return Reference::parse(repository);
        };
        let name = format!("{host}/{}", self.repository(repository));
        Reference::parse(&match target {
            Some(target) => name_of(&name, target),
            None => name,
        })
    }
}

/// Collects all pages of a listing.
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

/// `repository:tag` or `repository@digest`.
pub fn name_of(repository: &str, target: &Target) -> String {
    match target {
        Target::Tag(tag) => format!("{repository}:{tag}"),
        Target::Digest(digest) => format!("{repository}@{digest}"),
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
