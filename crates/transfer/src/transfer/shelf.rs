//! Where documents about an image are kept in an OCI image layout, whose index.json lists them without a
//! name, as oras does; and how those of an archive get into the store. Must not know what they say.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::transfer::arbiter::Arbiter;
use crate::transfer::layout::{LayoutSink, LayoutSource};
use crate::transfer::location::Archived;
use crate::transfer::members::Members;
use crate::transfer::source::ImageSource;
pub use crate::transfer::store_shelf::StoreShelf;
use crate::transfer::store_shelf::entry;
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document};
use imgctl_base::progress::Silent;
use imgctl_layer::Limits;
use imgctl_registry::client::Shelf;
use imgctl_store::store::{Options, Store};

/// The documents in an OCI image layout, beside one of its images.
pub struct LayoutShelf {
    source: LayoutSource,
    sink: LayoutSink,
}

impl LayoutShelf {
    /// Opens the layout that has the image `place`.
    pub fn open(place: &Archived) -> Result<Self> {
        // A layout that does not exist is not created.
        let source = LayoutSource::oci(place, &Arbiter::everything())?;
        Ok(Self { source, sink: LayoutSink::open(&place.path, None)? })
    }

    /// Returns the image's descriptor, and the name by which the layout knows it.
    pub fn image(&self) -> Result<(Descriptor, Option<String>)> {
        let root = self.source.root()?;
        Ok((root.descriptor, self.source.ref_name()))
    }
}

impl Shelf for LayoutShelf {
    fn name(&self) -> String {
        ImageSource::describe(&self.source)
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        Shelf::manifest(&self.source, digest)
    }

    fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>> {
        // The list grows with what is attached.
        self.source.artifacts(&self.sink.index()?.manifests, subject, artifact_type)
    }

    fn open(&self, blob: &Descriptor) -> Result<Box<dyn Read + Send + 'static>> {
        ImageSource::open(&self.source, blob, 0)
    }

    fn attach(
        &self,
        _subject: &Descriptor,
        blobs: &[(Descriptor, &[u8])],
        manifest: &[u8],
    ) -> Result<Digest> {
        for (blob, bytes) in blobs {
            self.sink.put(blob, bytes)?;
        }
        let entry = entry(manifest)?;
        self.sink.put(&entry, manifest)?;
        self.sink.list_artifact(&entry)?;
        Ok(entry.digest)
    }
}

/// Keeps the artifacts of an archive or a directory with the images that they are about; `listed` are
/// the entries of its index that are not images. Their blobs are in the store.
pub(crate) fn keep_loaded(
    store: &Store,
    images: &[&Descriptor],
    listed: &[Descriptor],
    note: &mut dyn FnMut(String),
) -> Result<()> {
    let shelf = StoreShelf::new(store);
    for artifact in listed {
        let Ok(Document::Manifest(manifest)) = store.document(artifact) else { continue };
        let Some(subject) = manifest.subject else {
            let what = artifact.artifact_type.as_deref().unwrap_or("unknown");
            note(format!("skipping {}: it is an artifact ({what}), not an image", artifact.digest));
            continue;
        };
        let parts = std::iter::once(&manifest.config).chain(&manifest.layers);
        let is_complete = parts.clone().all(|part| {
            part.size <= MAX_PART && matches!(store.verify_blob(&part.digest), Ok(true))
        });
        if !is_complete {
            note(format!("skipping {}: it is incomplete", artifact.digest));
            continue;
        }
        let bytes = store.read_blob(&artifact.digest, MAX_DOCUMENT)?;
        store.attach(&subject.digest, &entry(&bytes)?)?;
        // The index of a platform that was saved alone.
        if images.iter().all(|image| image.digest != subject.digest)
            && let Ok(index) = store.read_blob(&subject.digest, MAX_DOCUMENT)
            && let Ok(Document::Index(parsed)) = Document::parse(&index, None)
        {
            for image in images {
                if parsed.manifests.iter().any(|entry| entry.digest == image.digest) {
                    shelf.keep_index(&image.digest, &index)?;
                }
            }
        }
    }
    Ok(())
}

/// Maximum size of a blob of an artifact that is kept, in bytes: an SBOM can be long.
const MAX_PART: u64 = 256 << 20;

/// Unpacks the archive of an OCI image layout into `scratch`; returns the layout.
pub fn unpack(path: &Path, scratch: &Path, limits: Limits) -> Result<PathBuf> {
    let store = Store::open(scratch, Options { sync: false })?.with_limits(limits);
    let file = std::fs::File::open(path).path("open", path)?;
    let members = Members::read(&store, file, &mut Vec::new(), &Silent)
        .context(|| format!("cannot read {}", path.display()))?;
    if members.document("index.json").is_none() {
        return Err(Error::usage(format!("{} is not an OCI archive", path.display()))
            .hint("copy the image: imgctl copy docker-archive:FILE oci-archive:FILE"));
    }
    let layout = store.layout().to_owned();
    for name in ["index.json", "manifest.json", "repositories"] {
        if let Some(bytes) = members.document(name) {
            atomic::write(&layout.join(name), bytes, 0o644, Durability::Atomic)?;
        }
    }
    Ok(layout)
}
