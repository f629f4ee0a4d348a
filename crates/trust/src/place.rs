//! An image that is signed or verified, where it is: in a registry, in the store, in an OCI image layout
//! or in an archive of one. Must not know what signatures say.

use std::path::{Path, PathBuf};

use crate::payload::expanded;
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::{Descriptor, Digest, Reference};
use imgctl_layer::Limits;
use imgctl_registry::client::Shelf;
use imgctl_registry::{Client, Repository, Target};
use imgctl_store::store::{Named, Store};
use imgctl_transfer::transfer::copy::pack;
use imgctl_transfer::transfer::location::Archived;
use imgctl_transfer::transfer::save::OuterCompression;
use imgctl_transfer::transfer::shelf::{LayoutShelf, StoreShelf, unpack};

/// One image, and the documents about it.
pub struct Place<'a> {
    pub(super) shelf: Box<dyn Shelf + 'a>,
    /// Also has tags, where cosign keeps signatures.
    pub(super) repository: Option<Repository>,
    pub(super) reference: Option<Reference>,
    pub(super) root: Descriptor,
    shown: String,
    archive: Option<Archive>,
}

/// An archive whose layout is unpacked elsewhere.
struct Archive {
    layout: PathBuf,
    path: PathBuf,
    compression: OuterCompression,
}

impl<'a> Place<'a> {
    /// Finds the image that `reference` means in its registry.
    pub fn in_registry(client: &Client, reference: &Reference) -> Result<Self> {
        let repository = client.repository(reference)?;
        Ok(Self {
            root: repository.document(&Target::of(reference))?.descriptor,
            shelf: Box::new(repository.clone()),
            repository: Some(repository),
            reference: Some(reference.clone()),
            shown: expanded(reference).name(),
            archive: None,
        })
    }

    /// Takes an image of the store.
    pub fn in_store(store: &'a Store, image: &Named) -> Result<Self> {
        store.check_complete_image(&image.descriptor)?;
        let mut root = image.descriptor.clone();
        root.annotations.clear();
        Ok(Self {
            shelf: Box::new(StoreShelf::new(store)),
            repository: None,
            shown: match &image.reference {
                Some(reference) => expanded(reference).name(),
                None => "image".to_owned(),
            },
            reference: image.reference.clone(),
            root,
            archive: None,
        })
    }

    /// Finds an image in the OCI image layout of a directory.
    pub fn in_layout(place: &Archived) -> Result<Self> {
        let shelf = LayoutShelf::open(place)?;
        let (root, name) = shelf.image()?;
        // A tag alone says nothing about the repository.
        let name = name.filter(|name| name.contains(['/', ':']));
        Ok(Self {
            shown: shelf.name(),
            shelf: Box::new(shelf),
            repository: None,
            reference: name.and_then(|name| Reference::parse(&name).ok()),
            root,
            archive: None,
        })
    }

    /// Finds an image in the archive of a layout, which is unpacked into `scratch`. [`Self::finish`] writes
    /// the archive anew.
    pub fn in_archive(place: &Archived, scratch: &Path, limits: Limits) -> Result<Self> {
        let layout = unpack(&place.path, scratch, limits)?;
        let mut found =
            Self::in_layout(&Archived { path: layout.clone(), name: place.name.clone() })
                .context(|| format!("cannot use {}", place.path.display()))?;
        found.shown = format!("oci-archive:{}", place.path.display());
        let extension = place.path.extension().and_then(|extension| extension.to_str());
        found.archive = Some(Archive {
            layout,
            path: place.path.clone(),
            compression: match extension {
                Some("gz" | "tgz") => OuterCompression::Gzip,
                Some("zst" | "tzst") => OuterCompression::Zstd,
                _ => OuterCompression::None,
            },
        });
        Ok(found)
    }

    /// Writes what was added to an archive; other places have it already.
    pub fn finish(&self) -> Result<()> {
        match &self.archive {
            Some(Archive { layout, path, compression }) => pack(layout, path, *compression)
                .context(|| format!("cannot write {}", path.display())),
            None => Ok(()),
        }
    }

    /// Returns the image's name and place, for output.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the digest of the image's manifest or index.
    pub fn digest(&self) -> &Digest {
        &self.root.digest
    }

    /// Returns the name that signatures give the image: its repository.
    pub(super) fn signed_name(&self) -> Result<String> {
        match &self.reference {
            Some(reference) => Ok(expanded(reference).name()),
            None => Err(Error::usage(format!("{} has no name to sign", self.shown))
                .hint("pass --sign-container-identity REGISTRY/REPOSITORY")),
        }
    }
}
