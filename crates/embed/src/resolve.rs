//! Resolves references to documents: what each image is now (or was when it was locked), for the
//! requested platforms.
//!
//! Documents come from the store if it has them, otherwise from the registry, and are kept in the
//! store. Blobs are only listed here. Must not depend on the layout of the layers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::found::Place;
use crate::lock::Lock;
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{
    Descriptor, Digest, Document, ImageConfig, Index, Manifest, Platform, Reference, Verdict,
    media_type,
};
use imgctl_base::progress::Reporter;
use imgctl_registry::{Client, Repository, Target};
use imgctl_store::store::Store;
use imgctl_transfer::transfer::arbiter::Arbiter;

/// Maximum nesting depth of indexes.
const MAX_NESTING: usize = 4;
/// Maximum number of manifests and indexes in an image; they stay in memory, so their bytes are
/// limited as well.
const MAX_DOCUMENTS: usize = 10_000;
const MAX_DOCUMENT_BYTES: u64 = 256 << 20;

/// The exact bytes of a manifest or index.
#[derive(Clone, Debug)]
pub struct RawDocument {
    pub descriptor: Descriptor,
    pub bytes: Arc<[u8]>,
}

/// Where an image's blobs are.
#[derive(Clone)]
pub enum Origin {
    /// In a registry, and possibly in the store.
    Registry(Repository),
    /// Only in the store (archives, images built here, offline).
    Store,
}

/// An image and everything that it consists of.
#[derive(Clone)]
pub struct ResolvedImage {
    /// The reference as found.
    pub reference: Reference,
    pub places: Vec<Place>,
    /// Descriptor that the reference resolves to.
    pub root: Descriptor,
    /// The root and, for an index, the requested manifests, without duplicates.
    pub documents: Vec<RawDocument>,
    /// The manifest for each requested platform.
    pub platforms: Vec<(Platform, Digest)>,
    /// Every manifest of the index is included, not only those of some platforms.
    pub is_whole: bool,
    /// Configs and layers, without duplicates, in manifest order.
    pub blobs: Vec<Descriptor>,
    /// Digests of the configs, which are in the store.
    pub configs: Vec<Digest>,
    pub origin: Origin,
}

impl std::fmt::Debug for ResolvedImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}", self.reference, self.root.digest)
    }
}

impl ResolvedImage {
    /// Returns the total size of all documents and blobs, in bytes.
    pub fn size(&self) -> u64 {
        let documents = self.documents.iter().map(|document| &document.descriptor);
        let sizes = documents.chain(&self.blobs).map(|part| part.size);
        sizes.fold(0, u64::saturating_add)
    }
}

/// An image to resolve.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub reference: Reference,
    pub places: Vec<Place>,
    /// Descriptor of an image that is already in the store (a loaded archive).
    pub stored: Option<Descriptor>,
}

/// Settings for resolving images.
pub struct Resolver<'a> {
    pub store: &'a Store,
    /// `None` = only the store is used.
    pub client: Option<&'a Client>,
    pub lock: Option<&'a Lock>,
    pub platforms: &'a [Platform],
    /// Includes every platform that an index lists (`--all`).
    pub all: bool,
    /// Maximum number of images that are resolved concurrently.
    pub parallel: usize,
    pub reporter: &'a dyn Reporter,
}

impl Resolver<'_> {
    /// Resolves all of `wanted`, in order; returns the first error.
    pub fn resolve_all(&self, wanted: &[Wanted]) -> Result<Vec<ResolvedImage>> {
        self.try_all(wanted).into_iter().collect()
    }

    /// Resolves each of `wanted`, in order.
    pub fn try_all(&self, wanted: &[Wanted]) -> Vec<Result<ResolvedImage>> {
        let next = AtomicUsize::new(0);
        let done: Mutex<BTreeMap<usize, Result<ResolvedImage>>> = Mutex::default();
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(image) = wanted.get(index) else {
                    return;
                };
                let resolved = self.resolve(image);
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                done.insert(index, resolved);
            }
        };
        std::thread::scope(|threads| {
            for _ in 1..self.parallel.min(wanted.len()) {
                threads.spawn(work);
            }
            work();
        });
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.into_values().collect()
    }

    fn resolve(&self, wanted: &Wanted) -> Result<ResolvedImage> {
        let reference = &wanted.reference;
        let places: Vec<String> = wanted.places.iter().map(ToString::to_string).collect();
        self.resolve_one(wanted).map_err(|error| {
            let error = error.context(format!(
                "cannot embed the image {reference} that {} names",
                places.first().map_or("the context", String::as_str)
            ));
            match error.kind() {
                Kind::Network => error.hint(
                    "build where the registry can be reached, or name a mirror of it in \
                     registries.conf",
                ),
                Kind::NotFound | Kind::Denied => error.hint(
                    "to skip this image, list it in .sealignore on a line of its own; \
                     --save-image=false embeds no images",
                ),
                _ => error,
            }
        })
    }

    fn resolve_one(&self, wanted: &Wanted) -> Result<ResolvedImage> {
        let reference = &wanted.reference;
        let (origin, root) = match &wanted.stored {
            Some(descriptor) => (Origin::Store, self.stored(descriptor)?),
            None if reference.registry() == Some(imgctl_base::image::reference::LOCAL_REGISTRY) => {
                let named = self.store.resolve(&reference.to_string())?;
                if let Some(client) = self.client {
                    let _admitted: Verdict =
                        Arbiter::policy(client).admit_input(self.store, &named)?;
                }
                (Origin::Store, self.stored(&named.descriptor)?)
            }
            None => {
                let client = self.client.ok_or_else(|| {
                    Error::not_found(
                        "it is not in the store, and registries cannot be queried \
                                      here",
                    )
                })?;
                let repository = client.repository(reference)?;
                let root = self.root(reference, &repository)?;
                (Origin::Registry(repository), root)
            }
        };
        let mut parts = Parts::default();
        self.gather(&root, &origin, &mut parts, 0)?;
        if let Some(digest) = self.lock.and_then(|lock| lock.digest(reference))
            && *digest != root.descriptor.digest
        {
            return Err(Error::bad_content(format!(
                "its digest is {}, but {digest} is locked",
                root.descriptor.digest
            )));
        }
        if let (Origin::Registry(_), Some(client)) = (&origin, self.client) {
            let manifests: Vec<Digest> =
                parts.platforms.iter().map(|(_, digest)| digest.clone()).collect();
            let _admitted: Verdict =
                client.admit(reference, &root.descriptor.digest, &manifests)?;
        }
        Ok(ResolvedImage {
            reference: reference.clone(),
            places: wanted.places.clone(),
            root: root.descriptor,
            documents: parts.documents,
            platforms: parts.platforms,
            is_whole: self.all,
            blobs: parts.blobs,
            configs: parts.configs,
            origin,
        })
    }

    /// Returns the document that the reference names: by its own digest, by the locked digest, or
    /// by the registry's current tag.
    fn root(&self, reference: &Reference, repository: &Repository) -> Result<RawDocument> {
        let locked = self.lock.and_then(|lock| lock.digest(reference));
        if let Some(digest) = reference.digest().or(locked) {
            return self.by_digest(digest, &Origin::Registry(repository.clone()));
        }
        let tag = Target::of(reference);
        // HEAD is cheap, and Docker Hub does not count it toward its rate limit.
        if let Ok(Some(descriptor)) = repository.head(&tag)
            && let Some(known) = self.in_store(&descriptor.digest)?
        {
            return Ok(known);
        }
        let document = repository.document(&tag)?;
        self.keep(document.descriptor, document.bytes)
    }

    fn stored(&self, descriptor: &Descriptor) -> Result<RawDocument> {
        self.by_digest(&descriptor.digest, &Origin::Store)
    }

    fn by_digest(&self, digest: &Digest, origin: &Origin) -> Result<RawDocument> {
        if let Some(known) = self.in_store(digest)? {
            return Ok(known);
        }
        match origin {
            Origin::Store => Err(Error::not_found(format!("{digest} is not in the store"))),
            Origin::Registry(repository) => {
                let document = repository.document(&Target::Digest(digest.clone()))?;
                self.keep(document.descriptor, document.bytes)
            }
        }
    }

    fn in_store(&self, digest: &Digest) -> Result<Option<RawDocument>> {
        if self.store.blob_size(digest)?.is_none() {
            return Ok(None);
        }
        let bytes = self.store.read_blob(digest, MAX_DOCUMENT)?;
        let media = match Document::parse(&bytes, None)? {
            Document::Index(index) => index.media_type,
            Document::Manifest(manifest) => {
                Some(manifest.media_type.unwrap_or_else(|| media_type::OCI_MANIFEST.to_owned()))
            }
        };
        let media = media.unwrap_or_else(|| media_type::OCI_INDEX.to_owned());
        // Claims the document so that the store keeps it.
        self.keep(Descriptor::new(&media, digest.clone(), bytes.len() as u64), bytes).map(Some)
    }

    fn keep(&self, descriptor: Descriptor, bytes: Vec<u8>) -> Result<RawDocument> {
        self.store.import_blob(&mut &*bytes, &descriptor.digest, bytes.len() as u64)?;
        Ok(RawDocument { descriptor, bytes: bytes.into() })
    }

    /// Adds a document and everything that it references.
    fn gather(
        &self,
        document: &RawDocument,
        origin: &Origin,
        parts: &mut Parts,
        nesting: usize,
    ) -> Result<()> {
        if !parts.add_document(document)? {
            return Ok(());
        }
        let parsed = Document::parse(&document.bytes, Some(&document.descriptor.media_type))?;
        match parsed {
            Document::Index(_) if nesting >= MAX_NESTING => {
                Err(Error::bad_content(format!("it nests more than {MAX_NESTING} indexes")))
            }
            Document::Index(index) => {
                for child in self.children(&index)? {
                    let document = self
                        .by_digest(&child.digest, origin)
                        .context(|| format!("cannot read its manifest {}", child.digest))?;
                    self.gather(&document, origin, parts, nesting + 1)?;
                }
                Ok(())
            }
            Document::Manifest(manifest) => {
                let digest = &document.descriptor.digest;
                self.gather_manifest(manifest, digest, origin, parts, nesting)
            }
        }
    }

    fn gather_manifest(
        &self,
        manifest: Manifest,
        digest: &Digest,
        origin: &Origin,
        parts: &mut Parts,
        nesting: usize,
    ) -> Result<()> {
        let config = self.config(&manifest, origin)?;
        if let Some(platform) = config.map(|config| config.platform()) {
            let serves = |wanted: &Platform| platform.distance_to(wanted).is_some();
            if nesting == 0
                && !self.all
                && let Some(missing) = self.platforms.iter().find(|wanted| !serves(wanted))
            {
                self.reporter.note(&format!(
                    "image {digest} is for {platform}, and there is no image for {missing}"
                ));
            }
            parts.platforms.push((platform, digest.clone()));
            parts.configs.push(manifest.config.digest.clone());
        }
        for blob in std::iter::once(manifest.config).chain(manifest.layers) {
            // Non-distributable layers stay at the location that their URLs specify.
            if blob.urls.is_empty() {
                parts.add_blob(blob)?;
            }
        }
        Ok(())
    }

    /// Returns the config and keeps it in the store: nothing else specifies the platform of a
    /// standalone manifest.
    fn config(&self, manifest: &Manifest, origin: &Origin) -> Result<Option<ImageConfig>> {
        let descriptor = &manifest.config;
        if !manifest.is_image() {
            return Ok(None);
        }
        if descriptor.size > MAX_CONFIG {
            return Err(Error::bad_content(format!("its config has {} bytes", descriptor.size)));
        }
        if self.store.blob_size(&descriptor.digest)? != Some(descriptor.size)
            && let Origin::Registry(repository) = origin
        {
            let mut reader = repository.blob(descriptor, 0)?;
            self.store.import_blob(&mut reader, &descriptor.digest, descriptor.size)?;
        }
        let bytes = self.store.read_blob(&descriptor.digest, MAX_CONFIG)?;
        ImageConfig::parse(&bytes).map(Some)
    }

    /// Returns the entries of an index that are requested.
    fn children(&self, index: &Index) -> Result<Vec<Descriptor>> {
        if self.all {
            let is_document = |entry: &&Descriptor| {
                media_type::is_index(&entry.media_type)
                    || media_type::is_manifest(&entry.media_type)
            };
            return Ok(index.manifests.iter().filter(is_document).cloned().collect());
        }
        let wanted = self.platforms.iter().map(|platform| {
            index.select(platform)?.cloned().ok_or_else(|| {
                let offered: Vec<String> = index
                    .manifests
                    .iter()
                    .filter_map(|entry| entry.platform.as_ref())
                    .filter(|platform| platform.os != "unknown")
                    .map(ToString::to_string)
                    .collect();
                Error::not_found(format!(
                    "it is not available for {platform}, only for {}",
                    offered.join(", ")
                ))
            })
        });
        wanted.collect()
    }
}

/// Parts of an image, collected while it is resolved.
#[derive(Default)]
struct Parts {
    documents: Vec<RawDocument>,
    platforms: Vec<(Platform, Digest)>,
    blobs: Vec<Descriptor>,
    configs: Vec<Digest>,
    /// Documents already in the list.
    known: HashSet<Digest>,
    /// Total size of the documents, in bytes.
    bytes: u64,
    /// Blobs already in the list, with their sizes.
    sizes: HashMap<Digest, u64>,
}

impl Parts {
    /// Adds a document; returns whether it is new.
    fn add_document(&mut self, document: &RawDocument) -> Result<bool> {
        if !self.known.insert(document.descriptor.digest.clone()) {
            return Ok(false);
        }
        self.bytes += document.bytes.len() as u64;
        if self.known.len() > MAX_DOCUMENTS || self.bytes > MAX_DOCUMENT_BYTES {
            return Err(Error::bad_content(format!(
                "it references more than {MAX_DOCUMENTS} manifests, or more than \
                 {MAX_DOCUMENT_BYTES} bytes of manifests"
            )));
        }
        self.documents.push(document.clone());
        Ok(true)
    }

    /// Adds a blob unless it is already in the list; two different sizes for one digest are an
    /// error.
    fn add_blob(&mut self, blob: Descriptor) -> Result<()> {
        match self.sizes.insert(blob.digest.clone(), blob.size) {
            None => self.blobs.push(blob),
            Some(size) if size != blob.size => {
                return Err(Error::bad_content(format!(
                    "its blob {} is listed with two sizes, {size} and {} bytes",
                    blob.digest, blob.size
                )));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(number: usize) -> RawDocument {
        let bytes: Arc<[u8]> = number.to_string().into_bytes().into();
        let size = bytes.len() as u64;
        RawDocument {
            descriptor: Descriptor::new(media_type::OCI_MANIFEST, Digest::of(&bytes), size),
            bytes,
        }
    }

    #[test]
    fn an_index_without_end_is_refused() {
        let mut parts = Parts::default();
        for number in 0..MAX_DOCUMENTS {
            assert!(parts.add_document(&document(number)).unwrap());
        }
        assert!(!parts.add_document(&document(7)).unwrap());
        let error = parts.add_document(&document(MAX_DOCUMENTS)).unwrap_err();
        assert!(error.to_string().contains("more than 10000"), "{error}");
    }

    #[test]
    fn a_blob_of_two_sizes_is_refused() {
        let mut parts = Parts::default();
        let blob = |size| Descriptor::new(media_type::OCI_LAYER, Digest::of(b"x"), size);
        parts.add_blob(blob(1)).unwrap();
        parts.add_blob(blob(1)).unwrap();
        assert_eq!(parts.blobs.len(), 1);
        assert!(parts.add_blob(blob(2)).is_err());
    }
}
