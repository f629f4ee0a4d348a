//! Makes the deltas of a bundle: recipes of new layers out of those of the older image.
//!
//! Must not know how bundles are written.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Seek as _;
use std::sync::Arc;

use crate::transfer::deltas::Delta;
use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::image::{Digest, Hasher};
use imgctl_base::progress::{Reporter, Task, Unit};
use imgctl_layer::delta::{self, Base, SourceBlob};
use imgctl_store::store::blobs::copy_hashed;
use imgctl_store::store::{Image, Store};

/// Level of zstd for patches: they are made once and carried often.
const LEVEL: i32 = 19;
/// Maximum number of patches in work: each takes hundreds of megabytes.
const MOST_THREADS: usize = 4;
/// Layers below this size, in bytes, are carried whole.
const SMALLEST: u64 = 16 << 10;
/// A recipe must be below this percentage of its blob.
const WORTH: u64 = 90;

/// A delta with its recipe.
pub(super) struct Made {
    pub(super) delta: Delta,
    pub(super) recipe: Arc<File>,
}

/// Makes deltas of the layers of `new` that are `wanted`, where they are worth it.
pub(super) fn make(
    store: &Store,
    old: &[Image],
    new: &[Image],
    wanted: &dyn Fn(&Digest) -> bool,
    reporter: &dyn Reporter,
) -> Result<Vec<Made>> {
    let mut seen = BTreeSet::new();
    let mut made = Vec::new();
    for image in new {
        let layers: Vec<_> = image
            .layers()
            .filter(|(layer, _)| layer.size >= SMALLEST && wanted(&layer.digest))
            .filter(|(layer, _)| seen.insert(layer.digest.clone()))
            .collect();
        if layers.is_empty() {
            continue;
        }
        let bases = bases(store, old, image)?;
        let index = delta::Bases::new(&bases)?;
        let total = layers.iter().map(|(layer, _)| layer.size).sum();
        let task = reporter.start("comparing layers", Unit::Bytes, Some(total));
        for (layer, diff_id) in layers {
            match one(store, (&layer.digest, diff_id), &index, &*task) {
                Ok(delta) => made.extend(delta),
                // Without the delta, the blob itself is carried.
                Err(error) => {
                    let digest = &layer.digest;
                    reporter.note(&format!("layer {digest} is carried whole: {error}"));
                }
            }
        }
        task.done("compared layers");
    }
    Ok(made)
}

/// The older image's layers: those of the same architecture, if there are any.
fn bases(store: &Store, old: &[Image], new: &Image) -> Result<Vec<Base>> {
    let is_alike = |image: &&Image| image.config.architecture == new.config.architecture;
    let alike: Vec<&Image> = old.iter().filter(is_alike).collect();
    let chosen = if alike.is_empty() { old.iter().collect() } else { alike };
    let mut seen = BTreeSet::new();
    let mut bases = Vec::new();
    for (layer, diff_id) in chosen.into_iter().flat_map(Image::layers) {
        let is_here = store.claim_blob(&layer.digest, layer.size)?;
        if !is_here || !seen.insert(&layer.digest) {
            continue;
        }
        let toc = store.toc(&layer.digest, diff_id)?;
        let blob = store.open_blob(&layer.digest)?;
        bases.push(Base::layer(layer.digest.clone(), blob, Arc::new(toc)));
    }
    Ok(bases)
}

fn one(
    store: &Store,
    (digest, diff_id): (&Digest, &Digest),
    bases: &delta::Bases<'_>,
    task: &dyn Task,
) -> Result<Option<Made>> {
    let toc = store.toc(digest, diff_id)?;
    let blob = store.open_blob(digest)?;
    let mut recipe = store.scratch_file()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = delta::Options {
        level: LEVEL,
        threads: threads.min(MOST_THREADS),
        advance: &|bytes| task.advance(bytes),
    };
    let created = delta::create_from(digest, &blob, &toc, bases, &options, &recipe)?;
    let size = blob.metadata().doing(|| "cannot look at a layer".to_owned())?.len();
    if created.size > size / 100 * WORTH {
        return Ok(None);
    }
    recipe.rewind().doing(|| "cannot read the scratch file".to_owned())?;
    let mut hasher = Hasher::new();
    let length = copy_hashed(&mut recipe, &mut hasher, &mut std::io::sink())?;
    let delta = Delta {
        digest: digest.clone(),
        size,
        recipe: SourceBlob { digest: hasher.finish(), size: length },
        bases: created.sources,
    };
    Ok(Some(Made { delta, recipe: Arc::new(recipe) }))
}
