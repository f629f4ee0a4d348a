//! Blobs on this machine of which parts may be parts of others: those of the store and those of a
//! registry's tree. Those of an image with the same name are looked at first.

use std::collections::HashSet;
use std::fs::File;
use std::sync::{Arc, Mutex};

use crate::transfer::partial::pieces::Piece;
use imgctl_base::error::{Kind, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Reference, media_type};
use imgctl_base::workers::lock;
use imgctl_layer::chunked::{Index, Part, Runs, runs_of};
use imgctl_registry::layout::Layout;
use imgctl_store::store::images::MAX_NESTING;
use imgctl_store::store::{Lease, Store};

/// Size below which a blob is not looked at, in bytes.
const SMALLEST: u64 = 256 << 10;
/// Maximum number of blobs that are looked at.
const MOST_BLOBS: usize = 256;
/// Maximum number of runs that are remembered; each takes about 60 bytes of memory.
const MOST_RUNS: usize = 1_000_000;
/// Maximum number of runs of other images, which are less likely to be of use.
const MOST_OTHER_RUNS: usize = 250_000;
/// Maximum number of tags of a tree that are looked at.
const MOST_TAGS: usize = 64;
/// If fewer than one byte in this many is missing, no other images are looked at.
const ENOUGH: u64 = 16;

/// A place on this machine that has blobs.
pub trait LocalBlobs: Send + Sync {
    /// Lists layers: those of images that are `related` to the one with this name, or all others.
    fn layers(&self, name: Option<&Reference>, related: bool) -> Result<Vec<Descriptor>>;

    /// Opens a blob, which can be read until the file is closed; `None` if it is not there.
    fn open(&self, blob: &Descriptor) -> Result<Option<File>>;
}

/// The layers of a store.
pub(crate) struct StoreBlobs {
    store: Store,
    /// Protects the blobs that are read.
    lease: Lease,
}

impl StoreBlobs {
    /// Returns `None` for a store without room for a lease.
    pub(crate) fn of(store: &Store) -> Option<Box<dyn LocalBlobs>> {
        let lease = store.lease();
        let lease = lease.inspect_err(|error| tracing::debug!("no blobs are reused: {error}"));
        Some(Box::new(Self { store: store.clone(), lease: lease.ok()? }))
    }

    /// Adds the layers of an image, or of all images of an index that are here.
    fn add(&self, descriptor: &Descriptor, nesting: usize, layers: &mut Vec<Descriptor>) {
        match self.store.document(descriptor) {
            Ok(Document::Manifest(manifest)) => layers.extend(manifest.layers),
            Ok(Document::Index(index)) if nesting > 0 => {
                for child in &index.manifests {
                    self.add(child, nesting - 1, layers);
                }
            }
            // Images of other platforms are often missing.
            Ok(Document::Index(_)) | Err(_) => {}
        }
    }
}

impl LocalBlobs for StoreBlobs {
    fn layers(&self, name: Option<&Reference>, related: bool) -> Result<Vec<Descriptor>> {
        let is_related = |other: &Option<Reference>| {
            name.zip(other.as_ref()).is_some_and(|(name, other)| last(name) == last(other))
        };
        let mut layers = Vec::new();
        for named in self.store.names()? {
            if is_related(&named.reference) == related && layers.len() < MOST_BLOBS {
                self.add(&named.descriptor, MAX_NESTING, &mut layers);
            }
        }
        Ok(layers)
    }

    fn open(&self, blob: &Descriptor) -> Result<Option<File>> {
        self.lease.hold(&blob.digest)?;
        match self.store.open_blob(&blob.digest) {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }
}

/// Images are often copied under another host and prefix.
fn last(name: &Reference) -> Option<&str> {
    name.repository().rsplit('/').next()
}

/// The layers of one repository of a tree.
pub(crate) struct TreeBlobs {
    pub(crate) layout: Layout,
    pub(crate) repository: String,
}

impl LocalBlobs for TreeBlobs {
    fn layers(&self, _: Option<&Reference>, related: bool) -> Result<Vec<Descriptor>> {
        let mut layers = Vec::new();
        if !related {
            return Ok(layers);
        }
        let tags = self.layout.tags(&self.repository, None, MOST_TAGS)?.unwrap_or_default();
        let mut seen = HashSet::new();
        for tag in tags {
            let Some(root) = self.layout.resolve_tag(&self.repository, &tag)? else { continue };
            let mut pending = vec![root];
            while let Some(digest) = pending.pop() {
                if seen.len() > MOST_BLOBS || !seen.insert(digest.clone()) {
                    continue;
                }
                match self.layout.manifest(&self.repository, &digest)? {
                    None => {}
                    Some(stored) => {
                        match Document::parse(&stored.bytes, Some(&stored.media_type)) {
                            Ok(Document::Manifest(manifest)) => layers.extend(manifest.layers),
                            Ok(Document::Index(index)) => {
                                let children = index.manifests.into_iter();
                                let is_small = |child: &Descriptor| child.size <= MAX_DOCUMENT;
                                pending.extend(children.filter(is_small).map(|child| child.digest));
                            }
                            Err(_) => {}
                        }
                    }
                }
            }
        }
        Ok(layers)
    }

    fn open(&self, blob: &Descriptor) -> Result<Option<File>> {
        Ok(self.layout.open_blob(&blob.digest)?.map(|(file, _)| file))
    }
}

/// What is known of the blobs on this machine. Reads their lists on first use.
pub(super) struct Known<'a> {
    places: Vec<Box<dyn LocalBlobs + 'a>>,
    name: Option<Reference>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    index: Index,
    /// The blobs of the index, by their numbers.
    files: Vec<Arc<File>>,
    seen: HashSet<Digest>,
    has_related: bool,
    has_others: bool,
}

impl<'a> Known<'a> {
    pub(super) fn new(places: Vec<Box<dyn LocalBlobs + 'a>>, name: Option<Reference>) -> Self {
        Self { places, name, state: Mutex::default() }
    }

    /// Returns whether no blob on this machine has a list.
    pub(super) fn is_empty(&self) -> bool {
        let mut state = lock(&self.state);
        state.read_related(self);
        if state.files.is_empty() {
            state.read_others(self);
        }
        state.files.is_empty()
    }

    /// Splits a blob with these runs.
    pub(super) fn parts(&self, runs: &Runs, size: u64) -> Vec<Piece> {
        let mut state = lock(&self.state);
        state.read_related(self);
        let mut parts = state.index.parts(runs, size);
        let missing = parts.iter().filter(|part| matches!(part, Part::Missing(_)));
        if missing.map(Part::length).sum::<u64>() > size / ENOUGH && !state.has_others {
            state.read_others(self);
            parts = state.index.parts(runs, size);
        }
        let piece = |part: Part| match part {
            Part::Missing(range) => Piece::Missing(range),
            Part::Known { length, source, start } => {
                Piece::Local { length, file: Arc::clone(&state.files[source]), start }
            }
        };
        parts.into_iter().map(piece).collect()
    }
}

impl State {
    fn read_related(&mut self, known: &Known<'_>) {
        if !std::mem::replace(&mut self.has_related, true) {
            self.read(known, true);
        }
    }

    fn read_others(&mut self, known: &Known<'_>) {
        if !std::mem::replace(&mut self.has_others, true) {
            self.read(known, false);
        }
    }

    fn read(&mut self, known: &Known<'_>, related: bool) {
        let most =
            if related { MOST_RUNS } else { MOST_RUNS.min(self.index.count() + MOST_OTHER_RUNS) };
        for place in &known.places {
            let layers = match place.layers(known.name.as_ref(), related) {
                Ok(layers) => layers,
                Err(error) => {
                    tracing::debug!("blobs on this machine cannot be listed: {error}");
                    continue;
                }
            };
            for layer in layers {
                let is_new = self.seen.insert(layer.digest.clone());
                if !is_new || layer.size < SMALLEST || !media_type::is_layer(&layer.media_type) {
                    continue;
                }
                if self.files.len() >= MOST_BLOBS || self.index.count() >= most {
                    return;
                }
                if let Err(error) = self.add(&**place, &layer) {
                    tracing::debug!("{} is not reused: {error}", layer.digest);
                }
            }
        }
    }

    fn add(&mut self, place: &dyn LocalBlobs, layer: &Descriptor) -> Result<()> {
        let Some(file) = place.open(layer)? else { return Ok(()) };
        if let Some(runs) = runs_of(&file)? {
            self.index.add(self.files.len(), &runs);
            self.files.push(Arc::new(file));
        }
        Ok(())
    }
}
