//! Deltas in archives: which blobs an archive holds as a recipe, and how they are rebuilt from blobs
//! of the store.
//!
//! Must not know why a blob is held in this way.

use std::collections::BTreeMap;
use std::io::Read;

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::Digest;
use imgctl_layer::delta::{self, Source, SourceBlob, Sources};
use imgctl_store::store::Store;

/// Name of the description inside an archive.
pub(crate) const DESCRIPTION: &str = "bundle.json";
/// Maximum size of a description, in bytes: a few hundred thousand blobs.
pub(crate) const MAX_DESCRIPTION: u64 = 32 << 20;
/// Version of descriptions with deltas.
pub(crate) const WITH_DELTAS: u32 = 2;

/// A blob that an archive holds as a recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
    /// The blob of the archive that has the recipe.
    pub recipe: SourceBlob,
    /// Blobs that must be there.
    pub bases: Vec<SourceBlob>,
}

/// The deltas of an archive, by the digests of their recipes.
#[derive(Debug, Default)]
pub(super) struct Deltas(BTreeMap<Digest, Delta>);

#[derive(Deserialize)]
struct Description {
    version: u32,
    #[serde(default)]
    deltas: Vec<Delta>,
}

impl Deltas {
    /// Reads a description; what is not one has no deltas.
    pub(super) fn parse(description: &[u8]) -> Self {
        let deltas = match serde_json::from_slice::<Description>(description) {
            Ok(parsed) if parsed.version == WITH_DELTAS => parsed.deltas,
            _ => Vec::new(),
        };
        Self(deltas.into_iter().map(|delta| (delta.recipe.digest.clone(), delta)).collect())
    }

    /// Returns the delta with this recipe.
    pub(super) fn with_recipe(&self, recipe: &Digest) -> Option<&Delta> {
        self.0.get(recipe)
    }

    /// Returns the delta that yields this blob.
    pub(super) fn yielding(&self, blob: &Digest) -> Option<&Delta> {
        self.0.values().find(|delta| delta.digest == *blob)
    }
}

/// Rebuilds a blob in the store from `recipe`, of which no more is read than its size says. Nothing is
/// visible unless the blob's digest matches. Adds it to `imported` if it is new.
pub(super) fn rebuild(
    store: &Store,
    delta: &Delta,
    recipe: &mut dyn Read,
    imported: &mut Vec<Digest>,
) -> Result<()> {
    if store.claim_blob(&delta.digest, delta.size)? {
        return Ok(());
    }
    if store.blob_size(&delta.digest)?.is_none() {
        imported.push(delta.digest.clone());
    }
    for base in &delta.bases {
        if !store.claim_blob(&base.digest, base.size)? {
            return Err(Error::not_found(format!(
                "blob {} cannot be rebuilt from its delta: the blob {} of its base is missing here",
                delta.digest, base.digest
            ))
            .hint("load or pull the older image first (imgctl bundle inspect names it)"));
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut ingest = store.ingest_of(delta.size)?;
    let bases = Bases { store, delta };
    let applied = delta::apply(recipe, delta.recipe.size, &bases, threads, &mut ingest)
        .context(|| format!("cannot rebuild blob {} from its delta", delta.digest))?;
    if applied.digest != delta.digest || applied.size != delta.size {
        return Err(Error::bad_content(format!(
            "the delta of blob {} is that of blob {}",
            delta.digest, applied.digest
        )));
    }
    store.commit(ingest, &delta.digest)
}

/// The bases of one delta in the store.
struct Bases<'a> {
    store: &'a Store,
    delta: &'a Delta,
}

impl Sources for Bases<'_> {
    fn open(&self, blob: &SourceBlob) -> Result<Box<dyn Source>> {
        // Only those are known to stay.
        if !self.delta.bases.contains(blob) {
            return Err(Error::bad_content(format!(
                "the delta needs blob {}, which {DESCRIPTION} does not name as its base",
                blob.digest
            )));
        }
        Ok(Box::new(self.store.open_blob(&blob.digest)?))
    }

    fn size(&self, blob: &SourceBlob) -> Result<u64> {
        Ok(self.store.blob_size(&blob.digest)?.unwrap_or(0))
    }
}
