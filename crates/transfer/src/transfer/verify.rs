//! Checks that imported images are complete before they get a name: every manifest, config and layer
//! exists, and no layer contradicts its diff ID. A compressed layer is decompressed only if nothing
//! but its diff ID vouches for its bytes; otherwise the first use of the layer checks the diff ID, as
//! after a pull.

use std::collections::HashSet;
use std::io::Read;
use std::sync::{Mutex, PoisonError};

use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Hasher, Manifest};
use imgctl_base::progress::Task;
use imgctl_layer::decompress::Format;
use imgctl_store::store::Store;
use imgctl_store::store::images::is_platform;

/// Number of layers verified in parallel; each uses its own threads to decompress and hash.
const WORKERS: usize = 2;
/// Maximum nesting depth of indexes.
const MAX_NESTING: usize = 4;

/// Fails unless `bytes` have the given digest.
pub(super) fn check_digest(bytes: &[u8], digest: &Digest) -> Result<()> {
    let mut hasher = Hasher::with(digest.algorithm());
    hasher.update(bytes);
    let computed = hasher.finish();
    if computed == *digest {
        return Ok(());
    }
    Err(Error::bad_content(format!("blob {digest} has other content: its digest is {computed}")))
}

/// Where the digests of layers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DigestsFrom {
    /// The archive's manifests name them, and every layer has been compared with its digest.
    #[default]
    Archive,
    /// They were computed from whatever the archive contains.
    Content,
}

/// A layer and the diff ID that a config gives it.
type Pair = (Descriptor, Digest);

/// Verifies all images behind `descriptors`. Layers whose digests come `from` elsewhere are not
/// decompressed, nor are those of images already named in the store.
pub(super) fn verify(
    store: &Store,
    descriptors: &[&Descriptor],
    from: DigestsFrom,
    task: &dyn Task,
) -> Result<()> {
    let mut pairs = Vec::new();
    for descriptor in descriptors {
        collect(store, descriptor, MAX_NESTING, &mut pairs)
            .map_err(|error| match error.kind() {
                Kind::NotFound => Error::bad_content("the archive is incomplete").caused_by(error),
                _ => error,
            })
            .context(|| format!("cannot load image {}", descriptor.digest))?;
    }
    let mut seen = known_pairs(store)?;
    pairs.retain(|(layer, diff_id)| seen.insert((layer.digest.clone(), diff_id.clone())));
    // The largest are taken first, so that both workers finish at about the same time.
    pairs.sort_by_key(|(layer, _)| layer.size);
    let pairs = Mutex::new(pairs);
    let work = || {
        loop {
            let next = pairs.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((layer, diff_id)) = next else {
                return Ok(());
            };
            let checked = check_diff_id(store, &layer, &diff_id, from);
            if checked.is_err() {
                // The other worker can stop.
                pairs.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            checked?;
            task.advance(layer.size);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        let failed = || Error::failed("a thread that verifies layers has failed");
        workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| failed())?)
            .collect::<Vec<Result<()>>>()
            .into_iter()
            .collect()
    })
}

/// Checks the documents of an image and collects its layers. At least one platform must be
/// complete.
fn collect(
    store: &Store,
    descriptor: &Descriptor,
    nesting: usize,
    pairs: &mut Vec<Pair>,
) -> Result<()> {
    let index = match store.document(descriptor)? {
        Document::Manifest(manifest) => return collect_layers(store, descriptor, manifest, pairs),
        Document::Index(index) => index,
    };
    if nesting == 0 {
        return Err(Error::bad_content("its indexes are nested too deeply"));
    }
    let mut usable = 0;
    for child in &index.manifests {
        // Attestations are kept, but are not images.
        if !is_platform(child) || store.blob_size(&child.digest)?.is_none() {
            continue;
        }
        match collect(store, child, nesting - 1, pairs) {
            Ok(()) => usable += 1,
            // Only the manifest of this platform was saved.
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => {
                return Err(error.context(format!("its part {} is damaged", child.digest)));
            }
        }
    }
    if usable == 0 && !index.manifests.is_empty() {
        return Err(Error::bad_content("none of its platforms is complete"));
    }
    Ok(())
}

fn collect_layers(
    store: &Store,
    descriptor: &Descriptor,
    manifest: Manifest,
    pairs: &mut Vec<Pair>,
) -> Result<()> {
    let image = store.image_of(descriptor.clone(), manifest)?;
    let mut found = Vec::new();
    for (layer, diff_id) in image.layers() {
        match store.blob_size(&layer.digest)? {
            Some(size) if size == layer.size => found.push((layer.clone(), diff_id.clone())),
            Some(size) => {
                return Err(Error::bad_content(format!(
                    "layer {} has {size} bytes; the manifest says {}",
                    layer.digest, layer.size
                )));
            }
            // Layers that must not be distributed remain at their URLs.
            None if !layer.urls.is_empty() => {}
            None => {
                return Err(Error::not_found(format!("layer {} is missing", layer.digest)));
            }
        }
    }
    pairs.append(&mut found);
    Ok(())
}

/// Verified pairs of layer and diff ID: those of all named images.
fn known_pairs(store: &Store) -> Result<HashSet<(Digest, Digest)>> {
    let mut known = HashSet::new();
    for named in store.names()? {
        // A damaged image verifies nothing.
        for image in store.platform_images(&named.descriptor).unwrap_or_default() {
            known.extend(image.layers().map(|(layer, id)| (layer.digest.clone(), id.clone())));
        }
    }
    Ok(known)
}

/// Checks what can be said of a diff ID without decompressing, and the rest if the digest proves
/// nothing.
fn check_diff_id(
    store: &Store,
    layer: &Descriptor,
    diff_id: &Digest,
    from: DigestsFrom,
) -> Result<()> {
    let digest = &layer.digest;
    let mut start = Vec::new();
    store
        .open_blob(digest)?
        .take(16)
        .read_to_end(&mut start)
        .doing(|| format!("cannot read layer {digest}"))?;
    let is_plain = Format::sniff(&start) == Format::Plain;
    if (digest == diff_id) != is_plain && digest.algorithm() == diff_id.algorithm() {
        let state = if is_plain { "not compressed" } else { "compressed" };
        return Err(Error::bad_content(format!(
            "layer {digest} is {state}, and its config gives {diff_id} as its diff ID instead of \
             that of its tar"
        ))
        .hint("whoever made the archive mixed up layers: save the image again"));
    }
    if digest == diff_id || from == DigestsFrom::Archive {
        return Ok(());
    }
    store.scan_layer(digest, diff_id).map(drop)
}
