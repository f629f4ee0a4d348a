//! The build cache: maps a step's key to the layers that the step created.
//!
//! A record is a small JSON file `cache/steps/<key>`; its `digests` tell prune which blobs to keep.
//! A record whose blobs are missing does not count.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Error, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_store::store::Lease;
use imgctl_store::store::Store;

/// Changed when the same inputs produce different bytes than before.
const SEMANTICS: &str = "imgctl build 1";
/// Maximum size of a record, in bytes.
const MAX_RECORD: u64 = 1 << 20;

/// A layer as stored in the cache and used by a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CachedLayer {
    /// Media type, digest, size, and the layer's kind as an annotation.
    pub descriptor: Descriptor,
    pub diff_id: Digest,
    /// Newest modification time inside, in seconds since 1970; the source of `created`.
    pub newest: i64,
}

#[derive(Serialize, Deserialize)]
struct Record {
    layers: Vec<CachedLayer>,
    digests: Vec<Digest>,
}

/// Builder of a step's key from its parts, in order. Parts are length-prefixed, so that different
/// lists of parts cannot produce the same key by accident.
#[derive(Clone, Debug)]
pub(super) struct Key(blake3::Hasher);

impl Key {
    /// Creates a key for one type of step.
    pub(super) fn new(sort: &str) -> Self {
        let mut key = Self(blake3::Hasher::new());
        key.add(SEMANTICS.as_bytes());
        key.add(sort.as_bytes());
        key
    }

    /// Adds one part.
    pub(super) fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds a number.
    pub(crate) fn add_number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    /// Returns the key as the record's file name.
    pub(super) fn finish(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// The cache in a store. With `--no-cache`, nothing is read but results are still recorded.
#[derive(Clone, Debug)]
pub(crate) struct StepCache {
    directory: PathBuf,
    read: bool,
}

impl StepCache {
    /// Returns the step cache of `store`; without `read`, every lookup misses.
    pub(super) fn new(store: &Store, read: bool) -> Self {
        Self { directory: store.cache_directory().join("steps"), read }
    }

    /// Returns the layers recorded under `key` if all of them still exist. They are leased before
    /// they are checked, so that a concurrent prune cannot remove them.
    pub(super) fn get(
        &self,
        store: &Store,
        lease: &Lease,
        key: &str,
    ) -> Result<Option<Vec<CachedLayer>>> {
        if !self.read {
            return Ok(None);
        }
        let Ok(file) = std::fs::File::open(self.directory.join(key)) else {
            return Ok(None);
        };
        if file.metadata().map_or(true, |metadata| metadata.len() > MAX_RECORD) {
            return Ok(None);
        }
        // A damaged record is a miss: the step runs and replaces it.
        let Ok(record) = serde_json::from_reader::<_, Record>(file) else {
            return Ok(None);
        };
        for layer in &record.layers {
            lease.hold(&layer.descriptor.digest)?;
            lease.hold(&layer.diff_id)?;
            if store.blob_size(&layer.descriptor.digest)? != Some(layer.descriptor.size) {
                return Ok(None);
            }
        }
        Ok(Some(record.layers))
    }

    /// Records the layers of a step.
    pub(super) fn put(&self, key: &str, layers: &[CachedLayer]) -> Result<()> {
        self.put_keeping(key, layers, &[])
    }

    /// Records the layers of a step, and additional blobs to keep for the lifetime of the record.
    pub(crate) fn put_keeping(
        &self,
        key: &str,
        layers: &[CachedLayer],
        further: &[Digest],
    ) -> Result<()> {
        let digests = layers
            .iter()
            .flat_map(|layer| [layer.descriptor.digest.clone(), layer.diff_id.clone()]);
        let record = Record {
            layers: layers.to_vec(),
            digests: digests.chain(further.iter().cloned()).collect(),
        };
        let bytes = serde_json::to_vec(&record)
            .map_err(|error| Error::failed("cannot write a build cache record").caused_by(error))?;
        atomic::write(&self.directory.join(key), &bytes, 0o600, Durability::Atomic)
    }
}
