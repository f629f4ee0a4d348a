//! Where documents about an image are kept outside a registry: in the store, and in an OCI image layout,
//! whose index.json lists them without a name, as oras does. Must not know what they say.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::transfer::layout::{LayoutSink, LayoutSource};
use crate::transfer::location::Archived;
use crate::transfer::members::Members;
use crate::transfer::source::ImageSource;
use crate::transfer::verify::check_digest;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Reference, media_type};
use imgctl_base::progress::Silent;
use imgctl_registry::Client;
use imgctl_registry::client::Shelf;
use imgctl_store::layer::Limits;
use imgctl_store::store::images::is_platform;
use imgctl_store::store::{Options, Store};

/// Maximum number of manifests of a layout that are examined.
const MAX_ENTRIES: usize = 10_000;

/// Returns the descriptor by which an artifact is listed: with its type and annotations.
pub(crate) fn entry(manifest: &[u8]) -> Result<Descriptor> {
    match Document::parse(manifest, None)? {
        Document::Manifest(parsed) => {
            let media = parsed.media_type.as_deref().unwrap_or(media_type::OCI_MANIFEST);
            let size = manifest.len() as u64;
            let mut entry = Descriptor::new(media, Digest::of(manifest), size);
            entry.artifact_type = Some(parsed.artifact_type.unwrap_or(parsed.config.media_type));
            entry.annotations = parsed.annotations;
            Ok(entry)
        }
        Document::Index(_) => Err(Error::bad_content("an index is not an artifact")),
    }
}

/// The documents kept with images of the store.
pub struct StoreShelf<'a> {
    store: &'a Store,
}

impl<'a> StoreShelf<'a> {
    /// Returns the shelf of `store`.
    pub fn new(store: &'a Store) -> Self {
        Self { store }
    }

    /// Keeps an index that lists `manifest`, which is in the store without it: a signature of the index
    /// counts for what it lists.
    pub(crate) fn keep_index(&self, manifest: &Digest, index: &[u8]) -> Result<()> {
        let digest = self.store.put_blob(index)?;
        let entry = Descriptor::new(media_type::OCI_INDEX, digest, index.len() as u64);
        self.store.attach(manifest, &entry)
    }
}

impl Shelf for StoreShelf<'_> {
    fn name(&self) -> String {
        "the store".to_owned()
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        self.store.read_blob(digest, MAX_DOCUMENT)
    }

    fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>> {
        let mut found = self.store.referrers(subject)?;
        // An index has no artifact type; its media type asks for it.
        found.retain(|entry| {
            entry.artifact_type.as_deref().unwrap_or(&entry.media_type) == artifact_type
        });
        Ok(found)
    }

    fn open(&self, blob: &Descriptor) -> Result<Box<dyn Read + Send + 'static>> {
        Ok(Box::new(self.store.open_blob(&blob.digest)?))
    }

    fn attach(
        &self,
        subject: &Descriptor,
        blobs: &[(Descriptor, &[u8])],
        manifest: &[u8],
    ) -> Result<Digest> {
        for (blob, bytes) in blobs {
            self.store.import_blob(&mut &**bytes, &blob.digest, blob.size)?;
        }
        let entry = entry(manifest)?;
        self.store.put_blob(manifest)?;
        self.store.attach(&subject.digest, &entry)?;
        Ok(entry.digest)
    }
}

/// The documents in an OCI image layout, beside one of its images.
pub(crate) struct LayoutShelf {
    source: LayoutSource,
    sink: LayoutSink,
}

impl LayoutShelf {
    /// Opens the layout that has the image `place`.
    pub(crate) fn open(place: &Archived) -> Result<Self> {
        // A layout that does not exist is not created.
        let source = LayoutSource::oci(place)?;
        Ok(Self { source, sink: LayoutSink::open(&place.path, None)? })
    }

    /// Returns the image's descriptor, and the name by which the layout knows it.
    pub(crate) fn image(&self) -> Result<(Descriptor, Option<String>)> {
        let root = self.source.root()?;
        Ok((root.descriptor, self.source.ref_name()))
    }

    /// Reads the manifest of an entry if it is an artifact about `subject`.
    fn artifact(
        &self,
        entry: &Descriptor,
        subject: &Digest,
        wanted: &str,
    ) -> Result<Option<Descriptor>> {
        if !media_type::is_manifest(&entry.media_type)
            || entry.artifact_type.as_deref().is_some_and(|artifact| artifact != wanted)
            || entry.size > MAX_DOCUMENT
        {
            return Ok(None);
        }
        let bytes = self.manifest(&entry.digest)?;
        let Document::Manifest(manifest) = Document::parse(&bytes, Some(&entry.media_type))? else {
            return Ok(None);
        };
        let is_about = manifest.subject.is_some_and(|found| found.digest == *subject);
        let found = self::entry(&bytes)?;
        Ok((is_about && found.artifact_type.as_deref() == Some(wanted)).then_some(found))
    }
}

impl Shelf for LayoutShelf {
    fn name(&self) -> String {
        self.source.describe()
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        let bytes =
            self.source.document(&Descriptor::new(media_type::OCI_MANIFEST, digest.clone(), 0))?;
        check_digest(&bytes, digest)?;
        Ok(bytes)
    }

    fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        for entry in self.sink.index()?.manifests.iter().take(MAX_ENTRIES) {
            match self.artifact(entry, subject, artifact_type) {
                Ok(artifact) => found.extend(artifact),
                // Another entry of the layout is missing or damaged.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::BadContent) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn open(&self, blob: &Descriptor) -> Result<Box<dyn Read + Send + 'static>> {
        self.source.open(blob, 0)
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
pub(crate) fn unpack(path: &Path, scratch: &Path, limits: Limits) -> Result<PathBuf> {
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

/// Fails unless the image of the store may be used under this name.
pub fn admit(
    store: &Store,
    client: &Client,
    reference: Option<&Reference>,
    image: &Descriptor,
) -> Result<()> {
    if reference.is_none() {
        // Asked for by digest or ID: what its names demand counts, too.
        let mut names = store.names()?;
        names.retain(|named| named.descriptor.digest == image.digest && named.reference.is_some());
        if !names.is_empty() {
            let mut names = names.iter();
            return names
                .try_for_each(|named| admit(store, client, named.reference.as_ref(), image));
        }
    }
    let mut manifests = vec![image.digest.clone()];
    if media_type::is_index(&image.media_type)
        && let Document::Index(index) = store.document(image)?
    {
        // Of an index signed as a whole nothing else is needed; otherwise what is here counts.
        let mut here = Vec::new();
        for entry in index.manifests.iter().filter(|entry| is_platform(entry)) {
            if store.blob_size(&entry.digest)?.is_some() {
                here.push(entry.digest.clone());
            }
        }
        manifests = here;
    }
    client.admit_kept(reference, &image.digest, &manifests, &StoreShelf::new(store))
}
