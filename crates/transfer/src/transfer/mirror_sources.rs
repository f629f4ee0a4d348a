//! Images to copy under their own names: from registries, the store and archives.

use std::ffi::{OsStr, OsString};

use crate::transfer::copy::Copier;
use crate::transfer::location::Location;
use crate::transfer::mirror::{self, MirrorOptions, Mirrored};
use crate::transfer::mirror_images::{Found, find, items};
use crate::transfer::mirror_place::Place;
use crate::transfer::plan::{Platforms, Selection};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_base::progress::Reporter;
use imgctl_registry::Client;
use imgctl_store::store::Store;

/// Images to copy, as the user named them.
#[derive(Debug, Default)]
pub struct Sources {
    images: Vec<Reference>,
    archives: Vec<(Location, Reference)>,
}

impl Sources {
    /// Returns images given by name.
    pub fn of(words: &[OsString]) -> Result<Self> {
        let mut sources = Self::default();
        for word in words {
            let text = word.to_str().ok_or_else(|| {
                Error::usage(format!("`{}` is not an image name", word.display()))
            })?;
            sources.add_images([text])?;
        }
        Ok(sources)
    }

    pub fn is_empty(&self) -> bool {
        self.images.is_empty() && self.archives.is_empty()
    }

    /// Adds images of registries, of the store, and archives as for [`Self::add_tar`].
    pub fn add_images<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        for name in names {
            let reference = match Location::parse(OsStr::new(name))? {
                Location::Registry(reference) => reference,
                Location::Name(name) => Reference::parse(&name)?,
                _ => {
                    self.add_tar(name)?;
                    continue;
                }
            };
            if !self.images.contains(&reference) {
                self.images.push(reference);
            }
        }
        Ok(())
    }

    /// Adds images of registries; an archive of the same name takes precedence.
    pub fn add(&mut self, images: Vec<Reference>, archives: Vec<(Location, Reference)>) {
        let is_archived =
            |name: &Reference| archives.iter().any(|(_, reference)| reference == name);
        self.images.extend(images.into_iter().filter(|name| !is_archived(name)));
        self.archives.extend(archives);
    }

    /// Returns the number of images.
    pub fn count(&self) -> usize {
        self.images.len() + self.archives.len()
    }

    /// Adds an archive given as `docker-archive:FILE@NAME`.
    pub fn add_tar(&mut self, text: &str) -> Result<()> {
        let wrong = || {
            Error::usage(format!("`{text}` does not name the image"))
                .hint("write it as docker-archive:FILE@NAME:TAG or oci-archive:FILE@NAME:TAG")
        };
        let (place, name) = text.rsplit_once('@').ok_or_else(wrong)?;
        let place = Location::parse(OsStr::new(place))?;
        if matches!(place, Location::Name(_) | Location::Registry(_)) {
            return Err(wrong());
        }
        self.archives.push((place, Reference::parse(name)?.qualified()));
        Ok(())
    }

    /// Finds the images and copies them to a place under their own names, `jobs` at once.
    pub fn copy(
        &self,
        to: &Place,
        store: &Store,
        client: &Client,
        platforms: &Platforms,
        jobs: usize,
        reporter: &dyn Reporter,
    ) -> Result<Vec<Mirrored>> {
        // Archives are unpacked there.
        let scratch = store.scratch_directory()?;
        let mut found = Vec::new();
        for name in &self.images {
            found.push(find(store, client, name)?);
        }
        let reader = Copier::reading(store, client, reporter);
        for (place, reference) in &self.archives {
            let source = reader.source(place, &scratch)?;
            found.push(Found { reference: reference.clone(), source });
        }
        let options = MirrorOptions { selection: Selection::default(), images: jobs.max(1) };
        mirror::copy_all(&items(found, to, platforms)?, &options, reporter)
    }
}
