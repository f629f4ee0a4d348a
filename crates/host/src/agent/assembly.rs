//! Makes a layer on the host out of a recipe and what the host has: blobs of its store, and files
//! of the cluster's registry directory.
//!
//! Recipes come as blobs, and only the digest of the layer decides whether one was right. Must not
//! know how recipes are made.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::{Path, PathBuf};

use crate::agent::protocol::Assemble;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::image::Digest;
use imgctl_layer::delta::{Source, SourceBlob, Sources, apply, read_header};
use imgctl_store::store::Store;

/// Size of the buffer in front of the recipe, in bytes.
const BUFFER: usize = 256 << 10;
/// Maximum number of compressing threads: other layers are on their way as well.
const THREADS: usize = 4;

/// Makes the layer of `request` and removes the recipe. Does nothing if the layer is there.
pub fn assemble(store: &Store, request: &Assemble) -> Result<()> {
    let blob = &request.blob;
    let made = if store.claim_blob(&blob.digest, blob.size)? {
        Ok(())
    } else {
        make(store, request)
            .context(|| format!("cannot make layer {} out of what is here", blob.digest))
    };
    // Right or wrong, the recipe has no further use.
    if let Err(error) = store.discard(std::slice::from_ref(&request.recipe.digest)) {
        tracing::debug!("cannot remove a recipe: {error}");
    }
    made
}

fn make(store: &Store, request: &Assemble) -> Result<()> {
    let doing = || "cannot read the recipe".to_owned();
    let mut recipe = BufReader::with_capacity(BUFFER, store.open_blob(&request.recipe.digest)?);
    let header = read_header(&mut recipe)?;
    let (digest, size) = (&request.blob.digest, request.blob.size);
    if header.digest != *digest || header.size != size {
        return Err(Error::bad_content(format!("the recipe is that of {}", header.digest)));
    }
    recipe.rewind().doing(doing)?;
    let registry = Path::new(&request.root).join("registry");
    let sources = Here { store, registry: Root::open(&registry).ok() };
    let mut ingest = store.ingest_of(size)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    apply(&mut recipe, request.recipe.size, &sources, threads, &mut ingest)?;
    store.commit(ingest, digest)
}

/// Returns which of these files the registry directory below `root` has.
pub(super) fn registry_files(root: &str, wanted: &[Digest]) -> Vec<Digest> {
    let Ok(registry) = Root::open(&Path::new(root).join("registry")) else {
        return Vec::new();
    };
    let is_there = |digest: &&Digest| registry.open_file(&data_of(digest)).is_ok();
    wanted.iter().filter(is_there).cloned().collect()
}

/// What recipes may refer to.
struct Here<'a> {
    store: &'a Store,
    registry: Option<Root>,
}

impl Sources for Here<'_> {
    fn open(&self, blob: &SourceBlob) -> Result<Box<dyn Source>> {
        if self.store.claim_blob(&blob.digest, blob.size)? {
            return Ok(Box::new(self.store.open_blob(&blob.digest)?));
        }
        let gone = || Error::not_found(format!("the host no longer has {}", blob.digest));
        let registry = self.registry.as_ref().ok_or_else(gone)?;
        let file: File = registry.open_file(&data_of(&blob.digest)).map_err(|_| gone())?;
        let size = file.metadata().doing(|| format!("cannot examine {}", blob.digest))?.len();
        if size == blob.size { Ok(Box::new(file)) } else { Err(gone()) }
    }

    fn size(&self, blob: &SourceBlob) -> Result<u64> {
        if let Some(size) = self.store.blob_size(&blob.digest)? {
            return Ok(size);
        }
        let file = self.registry.as_ref().and_then(|it| it.open_file(&data_of(&blob.digest)).ok());
        let Some(file) = file else { return Ok(0) };
        let facts = file.metadata().doing(|| format!("cannot examine {}", blob.digest))?;
        Ok(facts.len())
    }
}

/// Returns the path of a blob below the registry directory.
fn data_of(digest: &Digest) -> PathBuf {
    let (algorithm, hex) = (digest.algorithm().as_str(), digest.hex());
    let start = hex.get(..2).unwrap_or(hex);
    ["docker/registry/v2/blobs", algorithm, start, hex, "data"].iter().collect()
}
