//! From references to documents: what each image is at this moment (or was when it was locked), for
//! the platforms that are wanted.
//!
//! Documents come from the store where it has them, else from the registry, and are kept in the
//! store. Blobs are only listed here. Must not know where images will lie.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::embed::found::Place;
use crate::embed::lock::Lock;
use crate::error::{Context, Error, Kind, Result};
use crate::image::config::MAX_CONFIG;
use crate::image::manifest::MAX_DOCUMENT;
use crate::image::{
    Descriptor, Digest, Document, ImageConfig, Index, Manifest, Platform, Reference, media_type,
};
use crate::progress::Reporter;
use crate::registry::{Client, Repository, Target};
use crate::store::Store;

/// Indexes in indexes deeper than this are refused.
const MAX_NESTING: usize = 4;
/// An image with more manifests and indexes, or more bytes of them, is refused: they stay in memory.
const MAX_DOCUMENTS: usize = 10_000;
const MAX_DOCUMENT_BYTES: u64 = 256 << 20;

/// A manifest or index as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct RawDocument {
    pub(crate) descriptor: Descriptor,
    pub(crate) bytes: Arc<[u8]>,
}

/// Where an image's blobs are.
#[derive(Clone)]
pub(crate) enum Origin {
    /// In a registry, and perhaps in the store.
    Registry(Repository),
    /// In the store only (archives, images built here, offline).
    Store,
}

/// An image with everything that it consists of.
#[derive(Clone)]
pub(crate) struct ResolvedImage {
    /// As found.
    pub(crate) reference: Reference,
    pub(crate) places: Vec<Place>,
    /// What the reference names.
    pub(crate) root: Descriptor,
    /// The root and, of an index, the manifests that are wanted; each once.
    pub(crate) documents: Vec<RawDocument>,
    /// The manifest for each platform wanted.
    pub(crate) platforms: Vec<(Platform, Digest)>,
    /// Every manifest of the index is wanted, not only those of some platforms.
    pub(crate) is_whole: bool,
    /// Configs and layers, each once, in the order of the manifests.
    pub(crate) blobs: Vec<Descriptor>,
    /// The configs among them, which the store has.
    pub(crate) configs: Vec<Digest>,
    pub(crate) origin: Origin,
}

impl std::fmt::Debug for ResolvedImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}", self.reference, self.root.digest)
    }
}

impl ResolvedImage {
    /// Bytes of all documents and blobs.
    pub(crate) fn size(&self) -> u64 {
        let documents = self.documents.iter().map(|document| &document.descriptor);
        let sizes = documents.chain(&self.blobs).map(|part| part.size);
        sizes.fold(0, u64::saturating_add)
    }
}

/// One image that is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) reference: Reference,
    pub(crate) places: Vec<Place>,
    /// It is in the store under this descriptor (an archive has been loaded).
    pub(crate) stored: Option<Descriptor>,
}

/// How images are resolved.
pub(crate) struct Resolver<'a> {
    pub(crate) store: &'a Store,
    /// `None` = the store is all there is.
    pub(crate) client: Option<&'a Client>,
    pub(crate) lock: Option<&'a Lock>,
    pub(crate) platforms: &'a [Platform],
    /// Every platform that an index lists (`--all`).
    pub(crate) all: bool,
    /// Images that are asked for side by side.
    pub(crate) parallel: usize,
    pub(crate) reporter: &'a dyn Reporter,
}

impl Resolver<'_> {
    /// Resolves all of `wanted`, in their order; the first failure is told.
    pub(crate) fn resolve_all(&self, wanted: &[Wanted]) -> Result<Vec<ResolvedImage>> {
        self.try_all(wanted).into_iter().collect()
    }

    /// Resolves each of `wanted`, in their order.
    pub(crate) fn try_all(&self, wanted: &[Wanted]) -> Vec<Result<ResolvedImage>> {
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
                Kind::NotFound | Kind::Denied | Kind::Network => error.hint(
                    "an image that is not wanted goes into .sealignore, on a line of its own; --save-image=false embeds none",
                ),
                _ => error,
            }
        })
    }

    fn resolve_one(&self, wanted: &Wanted) -> Result<ResolvedImage> {
        let reference = &wanted.reference;
        let (origin, root) = match &wanted.stored {
            Some(descriptor) => (Origin::Store, self.stored(descriptor)?),
            None if reference.registry() == Some(crate::image::reference::LOCAL_REGISTRY) => {
                let named = self.store.resolve(&reference.to_string())?;
                (Origin::Store, self.stored(&named.descriptor)?)
            }
            None => {
                let client = self.client.ok_or_else(|| {
                    Error::not_found("it is not in the store, and no registry may be asked")
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
            let manifests: Vec<Digest> = parts
                .platforms
                .iter()
                .map(|(_, digest)| digest.clone())
                .collect();
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

    /// The document that the reference names: by its own digest, by the locked one, else as the
    /// registry says now.
    fn root(&self, reference: &Reference, repository: &Repository) -> Result<RawDocument> {
        let locked = self.lock.and_then(|lock| lock.digest(reference));
        if let Some(digest) = reference.digest().or(locked) {
            return self.by_digest(digest, &Origin::Registry(repository.clone()));
        }
        let tag = Target::of(reference);
        // HEAD is cheap, and Docker Hub does not count it.
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
            Document::Manifest(manifest) => Some(
                manifest
                    .media_type
                    .unwrap_or_else(|| media_type::OCI_MANIFEST.to_owned()),
            ),
        };
        let media = media.unwrap_or_else(|| media_type::OCI_INDEX.to_owned());
        // Claims it, so that it stays.
        self.keep(
            Descriptor::new(&media, digest.clone(), bytes.len() as u64),
            bytes,
        )
        .map(Some)
    }

    fn keep(&self, descriptor: Descriptor, bytes: Vec<u8>) -> Result<RawDocument> {
        self.store
            .import_blob(&mut &*bytes, &descriptor.digest, bytes.len() as u64)?;
        Ok(RawDocument {
            descriptor,
            bytes: bytes.into(),
        })
    }

    /// Adds a document and what it needs.
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
            Document::Index(_) if nesting >= MAX_NESTING => Err(Error::bad_content(format!(
                "it has more than {MAX_NESTING} indexes inside each other"
            ))),
            Document::Index(index) => {
                for child in self.children(&index)? {
                    let document = self
                        .by_digest(&child.digest, origin)
                        .context(|| format!("cannot read manifest {} of it", child.digest))?;
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
                    "image {digest} says it is for {platform}, and there is no other for {missing}"
                ));
            }
            parts.platforms.push((platform, digest.clone()));
            parts.configs.push(manifest.config.digest.clone());
        }
        for blob in std::iter::once(manifest.config).chain(manifest.layers) {
            // Layers that must not be distributed stay where their URLs say.
            if blob.urls.is_empty() {
                parts.add_blob(blob)?;
            }
        }
        Ok(())
    }

    /// The config, kept in the store: nothing else says what platform a lone manifest is for.
    fn config(&self, manifest: &Manifest, origin: &Origin) -> Result<Option<ImageConfig>> {
        let descriptor = &manifest.config;
        let is_image = matches!(
            &*descriptor.media_type,
            media_type::OCI_CONFIG | media_type::DOCKER_CONFIG
        );
        if !is_image {
            return Ok(None);
        }
        if descriptor.size > MAX_CONFIG {
            return Err(Error::bad_content(format!(
                "its config has {} bytes",
                descriptor.size
            )));
        }
        if self.store.blob_size(&descriptor.digest)? != Some(descriptor.size)
            && let Origin::Registry(repository) = origin
        {
            let mut reader = repository.blob(descriptor, 0)?;
            self.store
                .import_blob(&mut reader, &descriptor.digest, descriptor.size)?;
        }
        let bytes = self.store.read_blob(&descriptor.digest, MAX_CONFIG)?;
        ImageConfig::parse(&bytes).map(Some)
    }

    /// The entries of an index that are wanted.
    fn children(&self, index: &Index) -> Result<Vec<Descriptor>> {
        if self.all {
            let is_document = |entry: &&Descriptor| {
                media_type::is_index(&entry.media_type)
                    || media_type::is_manifest(&entry.media_type)
            };
            return Ok(index
                .manifests
                .iter()
                .filter(is_document)
                .cloned()
                .collect());
        }
        let wanted = self.platforms.iter().map(|platform| {
            index.select(platform).cloned().ok_or_else(|| {
                let offered: Vec<String> = index
                    .manifests
                    .iter()
                    .filter_map(|entry| entry.platform.as_ref())
                    .filter(|platform| platform.os != "unknown")
                    .map(ToString::to_string)
                    .collect();
                Error::not_found(format!(
                    "it is not there for {platform}, only for {}",
                    offered.join(", ")
                ))
            })
        });
        wanted.collect()
    }
}

/// What an image consists of, as it is found out.
#[derive(Default)]
struct Parts {
    documents: Vec<RawDocument>,
    platforms: Vec<(Platform, Digest)>,
    blobs: Vec<Descriptor>,
    configs: Vec<Digest>,
    /// Documents that are in the list.
    known: HashSet<Digest>,
    /// Bytes of them.
    bytes: u64,
    /// Blobs that are in the list, with their sizes.
    sizes: HashMap<Digest, u64>,
}

impl Parts {
    /// Adds a document; says whether it is new.
    fn add_document(&mut self, document: &RawDocument) -> Result<bool> {
        if !self.known.insert(document.descriptor.digest.clone()) {
            return Ok(false);
        }
        self.bytes += document.bytes.len() as u64;
        if self.known.len() > MAX_DOCUMENTS || self.bytes > MAX_DOCUMENT_BYTES {
            return Err(Error::bad_content(format!(
                "it leads to more than {MAX_DOCUMENTS} manifests or {MAX_DOCUMENT_BYTES} bytes of them"
            )));
        }
        self.documents.push(document.clone());
        Ok(true)
    }

    /// Adds a blob unless it is there; two sizes of one cannot both be right.
    fn add_blob(&mut self, blob: Descriptor) -> Result<()> {
        match self.sizes.insert(blob.digest.clone(), blob.size) {
            None => self.blobs.push(blob),
            Some(size) if size != blob.size => {
                return Err(Error::bad_content(format!(
                    "its blob {} is said to have {size} bytes and also {}",
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
