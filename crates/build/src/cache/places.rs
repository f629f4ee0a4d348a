//! The places that keep caches: how they are named, and how one is opened.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::cache::directory::DirectoryPlace;
use crate::cache::gha::{GhaCache, GhaPlace};
use crate::cache::place::CachePlace;
use crate::cache::registry::RegistryPlace;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_registry::Client;
use imgctl_store::store::Store;

/// Where a cache is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A tag in a registry; the reference names one.
    Registry(Reference),
    /// A tag in an OCI image layout on disk.
    Directory { path: PathBuf, tag: String },
    /// GitHub's cache service.
    Gha(GhaCache),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry(reference) => write!(f, "{reference}"),
            Self::Directory { path, tag } => write!(f, "{}:{tag}", path.display()),
            Self::Gha(cache) => write!(f, "{cache}"),
        }
    }
}

impl Place {
    /// Returns the places to read from: a cache may consist of several.
    pub(crate) fn readable(&self) -> Vec<Self> {
        match self {
            Self::Gha(cache) => cache.readable().into_iter().map(Self::Gha).collect(),
            place => vec![place.clone()],
        }
    }

    /// Returns the place to write to.
    pub(crate) fn writable(&self) -> Result<Self> {
        match self {
            Self::Gha(cache) => cache.writable().map(Self::Gha),
            place => Ok(place.clone()),
        }
    }

    /// Opens the place; connects to nothing yet.
    pub(crate) fn open(
        &self,
        store: &Store,
        client: Option<&Client>,
    ) -> Result<Arc<dyn CachePlace>> {
        let client = || {
            client.ok_or_else(|| {
                Error::usage(format!("the build cache {self} needs a registry client"))
            })
        };
        Ok(match self {
            Self::Registry(reference) => Arc::new(RegistryPlace::new(store, client()?, reference)?),
            Self::Directory { path, tag } => Arc::new(DirectoryPlace::new(path, tag)),
            Self::Gha(cache) => Arc::new(GhaPlace::new(client()?, cache)?),
        })
    }
}
