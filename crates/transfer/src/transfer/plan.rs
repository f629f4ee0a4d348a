//! Determines what a transfer must copy: reads and checks all documents below an image's name, and
//! lists their blobs. Must not depend on source or destination types.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use crate::transfer::source::{ImageSource, SourceDocument};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::{Descriptor, Digest, Document, ImageConfig, Index, Manifest, Platform};
use imgctl_base::{workers, workers::lock};
use imgctl_store::store::Image;
use imgctl_store::store::images::{MAX_NESTING, check_platform, is_document, select};

/// Maximum number of manifests and indexes in one image.
const MAX_DOCUMENTS: usize = 10_000;
/// Maximum total size of manifests and indexes, in bytes; they are held in memory.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum number of blobs.
const MAX_BLOBS: usize = 1_000_000;

/// Selected platforms of a multi-platform image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Platforms {
    /// This machine's platform, or the only one in the image.
    #[default]
    Host,
    /// These; never empty.
    Only(Vec<Platform>),
    /// All platforms, with attestations and everything else the index lists.
    All,
}

/// Selected parts of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub platforms: Platforms,
    /// Keep the index unchanged, with its digest, even if only some of its entries are copied.
    /// Otherwise a single platform becomes that platform's manifest, and several become a smaller
    /// index.
    pub keep_index: bool,
}

/// Everything that belongs to one image, within the selection.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The digest that the source's name refers to.
    pub(crate) source_digest: Digest,
    /// The document that the name will refer to.
    pub root: SourceDocument,
    /// The documents below the root, each once and before any document that lists it.
    pub documents: Vec<SourceDocument>,
    /// The manifests among the root and the documents.
    pub manifests: Vec<(Descriptor, Manifest)>,
    /// Each blob once, largest first. Includes blobs with `urls` (layers that must not be
    /// distributed).
    pub blobs: Vec<Descriptor>,
}

impl Plan {
    /// Reads the selected parts of the image that `source` refers to.
    pub fn read(source: &dyn ImageSource, selection: &Selection, jobs: usize) -> Result<Self> {
        let mut reading = Reading { source, selection, jobs, known: HashMap::new(), bytes: 0 };
        let source_root = source.root()?;
        let source_digest = source_root.descriptor.digest.clone();
        let root = reading.root(source_root)?;
        reading.below(source_digest, root)
    }

    /// Drops all layers of the images except those that `choose` returns. Returns whether there were others.
    pub(crate) fn leave_layers(
        &mut self,
        source: &dyn ImageSource,
        choose: fn(&Image) -> Result<Vec<Digest>>,
    ) -> Result<bool> {
        let (mut kept, mut left) = (HashSet::new(), HashSet::new());
        for (descriptor, manifest) in &self.manifests {
            if !manifest.is_image() {
                continue;
            }
            let config = read_config(source, &manifest.config)?;
            let (descriptor, manifest) = (descriptor.clone(), manifest.clone());
            let image = Image { reference: None, descriptor, manifest, config };
            let chosen = choose(&image)?;
            let layers = image.manifest.layers.iter().map(|layer| &layer.digest);
            left.extend(layers.filter(|layer| !chosen.contains(layer)).cloned());
            kept.extend(chosen);
        }
        left.retain(|layer| !kept.contains(layer));
        self.blobs.retain(|blob| !left.contains(&blob.digest));
        Ok(!left.is_empty())
    }

    /// Total size of all blobs, in bytes.
    pub fn total(&self) -> u64 {
        let sizes = self.blobs.iter().map(|blob| blob.size);
        // Declared sizes are untrusted and can overflow the sum.
        sizes.fold(0, u64::saturating_add)
    }
}

struct Reading<'a> {
    source: &'a dyn ImageSource,
    selection: &'a Selection,
    jobs: usize,
    known: HashMap<Digest, (SourceDocument, Document)>,
    bytes: u64,
}

impl Reading<'_> {
    /// The document that the name will refer to.
    fn root(&mut self, mut root: SourceDocument) -> Result<(SourceDocument, Document)> {
        let mut document = parse(&root)?;
        if self.selection.keep_index {
            return Ok((root, document));
        }
        let wanted = match &self.selection.platforms {
            Platforms::All => return Ok((root, document)),
            Platforms::Host => None,
            Platforms::Only(several) if several.len() > 1 => {
                return self.reduced(root, document, several);
            }
            Platforms::Only(one) => one.first(),
        };
        let mut chosen = false;
        for _ in 0..=MAX_NESTING {
            let Document::Index(index) = &document else {
                if let (Some(wanted), false, Document::Manifest(manifest)) =
                    (wanted, chosen, &document)
                {
                    self.check_platform(manifest, std::slice::from_ref(wanted))?;
                }
                return Ok((root, document));
            };
            let child = select(index, wanted)?.clone();
            chosen |= child.platform.is_some();
            (root, document) = self.fetch(&child)?;
            // Keeps the platform and annotations of the index entry.
            root.descriptor = child;
        }
        Err(too_deep())
    }

    /// An index of only the wanted platforms.
    fn reduced(
        &self,
        root: SourceDocument,
        document: Document,
        wanted: &[Platform],
    ) -> Result<(SourceDocument, Document)> {
        let index = match document {
            Document::Index(index) => index,
            Document::Manifest(manifest) => {
                self.check_platform(&manifest, wanted)?;
                return Ok((root, Document::Manifest(manifest)));
            }
        };
        let entries = chosen_entries(&index, wanted)?;
        if entries.len() == index.manifests.len() {
            return Ok((root, Document::Index(index)));
        }
        let media = root.descriptor.media_type;
        let index = Index { manifests: entries, media_type: Some(media.clone()), ..index };
        let bytes = serde_json::to_vec(&index)
            .map_err(|error| Error::failed("cannot encode the index").caused_by(error))?;
        let descriptor = Descriptor::new(&media, Digest::of(&bytes), bytes.len() as u64);
        Ok((SourceDocument { bytes, descriptor }, Document::Index(index)))
    }

    /// Fails unless the image supports one of the platforms.
    fn check_platform(&self, manifest: &Manifest, wanted: &[Platform]) -> Result<()> {
        if !manifest.is_image() {
            return Ok(());
        }
        let config = read_config(self.source, &manifest.config)?;
        let mut checked = Ok(());
        for platform in wanted {
            checked = check_platform(&config, Some(platform));
            if checked.is_ok() {
                break;
            }
        }
        checked
    }

    /// Reads everything below the root, level by level.
    fn below(&mut self, source_digest: Digest, root: (SourceDocument, Document)) -> Result<Plan> {
        let mut levels: Vec<Vec<Digest>> = Vec::new();
        let mut others = Vec::new();
        let mut indexes: Vec<Index> = index_of(&root.1).into_iter().collect();
        while !indexes.is_empty() {
            if levels.len() >= MAX_NESTING {
                return Err(too_deep());
            }
            let mut children = Vec::new();
            for index in &indexes {
                children.extend(self.wanted(index, &mut others)?);
            }
            let mut seen = HashSet::new();
            children.retain(|child| seen.insert(child.digest.clone()));
            self.fetch_all(&children)?;
            levels.push(children.iter().map(|child| child.digest.clone()).collect());
            indexes = children
                .iter()
                .filter_map(|child| index_of(&self.known.get(&child.digest)?.1))
                .collect();
        }
        // Deepest level first: a document on several levels comes before all documents that list
        // it.
        let mut documents = Vec::new();
        let mut manifests = Vec::new();
        for digest in levels.into_iter().rev().flatten() {
            if let Some((document, parsed)) = self.known.remove(&digest) {
                if let Document::Manifest(manifest) = parsed {
                    manifests.push((document.descriptor.clone(), manifest));
                }
                documents.push(document);
            }
        }
        let (root, parsed) = root;
        if let Document::Manifest(manifest) = parsed {
            manifests.push((root.descriptor.clone(), manifest));
        }
        Ok(Plan { source_digest, blobs: blobs(&manifests, others)?, root, documents, manifests })
    }

    /// The selected entries of an index. Entries that are not documents go to `others`.
    fn wanted(&self, index: &Index, others: &mut Vec<Descriptor>) -> Result<Vec<Descriptor>> {
        match &self.selection.platforms {
            Platforms::All => {
                let (documents, rest): (Vec<_>, Vec<_>) =
                    index.manifests.iter().cloned().partition(is_document);
                others.extend(rest);
                let (absent, here): (Vec<_>, Vec<_>) =
                    documents.into_iter().partition(|document| self.source.lacks(document));
                // If no entry is present, reading the missing ones reports the error.
                Ok(if here.is_empty() { absent } else { here })
            }
            Platforms::Host => Ok(vec![select(index, None)?.clone()]),
            Platforms::Only(wanted) => chosen_entries(index, wanted),
        }
    }

    fn fetch_all(&mut self, wanted: &[Descriptor]) -> Result<()> {
        let missing: Vec<&Descriptor> =
            wanted.iter().filter(|child| !self.known.contains_key(&child.digest)).collect();
        let sizes = missing.iter().map(|child| child.size);
        self.bytes = sizes.fold(self.bytes, u64::saturating_add);
        if self.known.len() + missing.len() > MAX_DOCUMENTS || self.bytes > MAX_BYTES {
            return Err(Error::bad_content(format!(
                "the image references more than {MAX_DOCUMENTS} manifests, or more than \
                 {MAX_BYTES} bytes of manifests"
            )));
        }
        let fetched = Mutex::new(Vec::new());
        workers::for_each(missing, self.jobs, &AtomicBool::new(false), |child| {
            let document = self.fetch(child)?;
            lock(&fetched).push((child.digest.clone(), document));
            Ok(())
        })?;
        let fetched = fetched.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.known.extend(fetched);
        Ok(())
    }

    fn fetch(&self, descriptor: &Descriptor) -> Result<(SourceDocument, Document)> {
        let digest = &descriptor.digest;
        let document = SourceDocument {
            bytes: self
                .source
                .document(descriptor)
                .context(|| format!("cannot read manifest {digest}"))?,
            descriptor: descriptor.clone(),
        };
        let found = document.bytes.len() as u64;
        if found != descriptor.size {
            return Err(Error::bad_content(format!(
                "manifest {digest} has {found} bytes; its descriptor says {}",
                descriptor.size
            )));
        }
        let parsed = parse(&document)?;
        Ok((document, parsed))
    }
}

fn parse(document: &SourceDocument) -> Result<Document> {
    let Descriptor { digest, media_type, .. } = &document.descriptor;
    crate::transfer::verify::check_digest(&document.bytes, digest)?;
    Document::parse(&document.bytes, Some(media_type)).context(|| format!("cannot use {digest}"))
}

fn index_of(document: &Document) -> Option<Index> {
    match document {
        Document::Index(index) => Some(index.clone()),
        Document::Manifest(_) => None,
    }
}

fn too_deep() -> Error {
    Error::bad_content(format!("the image nests more than {MAX_NESTING} indexes"))
}

/// The entries that match the platforms, each once, in the index's order.
fn chosen_entries(index: &Index, wanted: &[Platform]) -> Result<Vec<Descriptor>> {
    let mut chosen = BTreeSet::new();
    for platform in wanted {
        chosen.insert(&select(index, Some(platform))?.digest);
    }
    let mut entries = index.manifests.clone();
    entries.retain(|entry| chosen.remove(&entry.digest));
    Ok(entries)
}

/// The blobs of manifests, each once, largest first.
fn blobs(manifests: &[(Descriptor, Manifest)], others: Vec<Descriptor>) -> Result<Vec<Descriptor>> {
    let mut all: BTreeMap<Digest, Descriptor> = BTreeMap::new();
    let parts = manifests
        .iter()
        .flat_map(|(_, manifest)| std::iter::once(&manifest.config).chain(&manifest.layers));
    for blob in parts.cloned().chain(others) {
        if let Some(other) = all.get(&blob.digest)
            && other.size != blob.size
        {
            return Err(Error::bad_content(format!(
                "blob {} is listed with two sizes, {} and {} bytes",
                blob.digest, other.size, blob.size
            )));
        }
        all.entry(blob.digest.clone()).or_insert(blob);
        if all.len() > MAX_BLOBS {
            return Err(Error::bad_content(format!(
                "the image references more than {MAX_BLOBS} blobs"
            )));
        }
    }
    let mut all: Vec<Descriptor> = all.into_values().collect();
    all.sort_by_key(|blob| std::cmp::Reverse(blob.size));
    Ok(all)
}

/// One platform's image as stored, without its layers.
#[derive(Clone, Debug)]
pub struct Plain {
    pub image: Image,
    pub manifest_bytes: Vec<u8>,
    pub config_bytes: Vec<u8>,
}

impl Plain {
    /// Reads the manifest and config of the image for the selected platform.
    pub fn read(source: &dyn ImageSource, platforms: &Platforms) -> Result<Self> {
        let selection = Selection { platforms: platforms.clone(), keep_index: false };
        let mut plan = Plan::read(source, &selection, 1)?;
        let (Some((descriptor, manifest)), 0) = (plan.manifests.pop(), plan.manifests.len()) else {
            return Err(Error::usage("the image has several platforms")
                .hint("choose one of them with --platform"));
        };
        let config_bytes = read_small(source, &manifest.config)?;
        Ok(Self {
            image: Image {
                reference: None,
                config: ImageConfig::parse(&config_bytes)?,
                descriptor,
                manifest,
            },
            manifest_bytes: plan.root.bytes,
            config_bytes,
        })
    }
}

/// Reads and checks an image's config.
pub(crate) fn read_config(source: &dyn ImageSource, config: &Descriptor) -> Result<ImageConfig> {
    ImageConfig::parse(&read_small(source, config)?)
        .context(|| format!("cannot use config {}", config.digest))
}

/// Reads a small blob, at most [`MAX_CONFIG`] bytes, and checks size and digest.
pub fn read_small(source: &dyn ImageSource, blob: &Descriptor) -> Result<Vec<u8>> {
    let digest = &blob.digest;
    if blob.size > MAX_CONFIG {
        return Err(Error::bad_content(format!(
            "blob {digest} has {} bytes; at most {MAX_CONFIG} are allowed for a blob of this type",
            blob.size
        )));
    }
    let mut bytes = Vec::new();
    source
        .open(blob, 0)?
        .take(blob.size + 1)
        .read_to_end(&mut bytes)
        .doing(|| format!("cannot read blob {digest}"))?;
    crate::transfer::verify::check_digest(&bytes, digest)?;
    Ok(bytes)
}
