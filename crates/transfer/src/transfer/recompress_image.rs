//! Converts images to another compression or format: new layers, manifests and indexes with the
//! same content, for registries that require them.
//!
//! Results are recorded, so that a repeated push does not recompress a layer, even after `prune`
//! has removed the result, unless its bytes are needed. Must not depend on the destination of an
//! image.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::descriptor::ATTESTED_IMAGE;
use imgctl_base::image::{Descriptor, Digest, Document, Index, Manifest, media_type};
use imgctl_base::progress::{Reporter, Silent, Task, Unit};
use imgctl_layer::Compression;
use imgctl_layer::recompress;
use imgctl_store::store::images::{is_document, is_platform};
use imgctl_store::store::{Image, Lease, Store};

/// gzip level if a format requires gzip and no level is set.
const GZIP_LEVEL: u32 = 6;
/// Maximum nesting depth of indexes.
const MAX_NESTING: usize = 4;
/// Number of layers compressed in parallel; each uses several threads.
const PARALLEL: usize = 2;
/// Maximum number of recorded results; beyond it, the older half is removed.
const MAX_RECORDS: usize = 4096;
/// Prefixes of annotations that describe a layer's compressed bytes.
const OF_THE_BYTES: [&str; 2] = ["io.github.containers.zstd-chunked.", "containerd.io/snapshot/"];

/// The two families of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Oci,
    /// Docker schema 2.
    Docker,
}

/// The requested changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Compression of every layer.
    pub compression: Option<Compression>,
    /// Recompress layers that already have that compression (for another level).
    pub force: bool,
    pub format: Option<Format>,
}

impl Change {
    /// Returns whether no change is requested.
    pub(crate) fn is_nothing(&self) -> bool {
        self.compression.is_none() && self.format.is_none()
    }
}

/// A layer's blob and how to produce it.
#[derive(Clone, Debug)]
struct Recipe {
    from: Descriptor,
    diff_id: Digest,
    compression: Compression,
}

/// The converted image. Everything it consists of stays in the store while this value lives.
pub struct Changed {
    store: Store,
    /// The manifest or index of the converted image.
    pub root: Descriptor,
    recipes: HashMap<Digest, Recipe>,
    /// Protects recorded layers from garbage collection.
    _lease: Lease,
    /// Allows one recompression at a time.
    making: Mutex<()>,
}

impl Changed {
    /// Opens a blob of the image, recreating it if necessary.
    pub fn open(&self, digest: &Digest) -> Result<File> {
        match (self.store.open_blob(digest), self.recipes.get(digest)) {
            (Err(error), Some(recipe)) if error.kind() == Kind::NotFound => {
                let _guard = self.making.lock();
                let made = make(&self.store, recipe, &Silent)?;
                if made.digest != *digest {
                    return Err(Error::failed(format!(
                        "recompressing layer {} gave {}, not {digest} as before",
                        recipe.from.digest, made.digest
                    )));
                }
                self.store.open_blob(digest)
            }
            (opened, _) => opened,
        }
    }
}

/// Converts an image, or all images of an index. An index member that is not in the store is an
/// error.
pub fn change(
    store: &Store,
    root: &Descriptor,
    change: &Change,
    reporter: &dyn Reporter,
) -> Result<Changed> {
    let mut changer =
        Changer { store, change, reporter, recipes: HashMap::new(), lease: store.lease()? };
    let root = changer.document(root, MAX_NESTING)?;
    Ok(Changed {
        store: store.clone(),
        root,
        recipes: changer.recipes,
        _lease: changer.lease,
        making: Mutex::new(()),
    })
}

struct Changer<'a> {
    store: &'a Store,
    change: &'a Change,
    reporter: &'a dyn Reporter,
    recipes: HashMap<Digest, Recipe>,
    lease: Lease,
}

impl Changer<'_> {
    fn document(&mut self, descriptor: &Descriptor, nesting: usize) -> Result<Descriptor> {
        match self.store.document(descriptor)? {
            Document::Index(_) if nesting == 0 => {
                Err(Error::bad_content(format!("index {} is nested too deeply", descriptor.digest)))
            }
            Document::Index(index) => self.index(descriptor, index, nesting - 1),
            Document::Manifest(manifest) => {
                // Attestations and other artifacts have no layers to compress.
                if !manifest.is_image() {
                    return Ok(descriptor.clone());
                }
                let image = self.store.image_at(descriptor, None)?;
                self.image(&image).context(|| format!("cannot change image {}", descriptor.digest))
            }
        }
    }

    fn index(
        &mut self,
        descriptor: &Descriptor,
        mut index: Index,
        nesting: usize,
    ) -> Result<Descriptor> {
        let before = index.clone();
        let mut gone: HashSet<String> = HashSet::new();
        for entry in &mut index.manifests {
            // Attestations are not images, even if their configs say so.
            if is_document(entry) && !is_platform(entry) {
                continue;
            }
            let known = media_type::is_index(&entry.media_type)
                || media_type::is_manifest(&entry.media_type);
            if !known {
                continue;
            }
            if self.store.blob_size(&entry.digest)?.is_none() {
                let platform = entry.platform.as_ref().map(ToString::to_string);
                return Err(Error::not_found(format!(
                    "{} ({}) cannot be changed: it is not in the store",
                    platform.as_deref().unwrap_or("a member"),
                    entry.digest
                ))
                .hint("pull it first, or push without --compression and --format"));
            }
            let changed = self.document(entry, nesting)?;
            if changed.digest != entry.digest {
                gone.insert(entry.digest.to_string());
            }
            entry.media_type = changed.media_type;
            entry.digest = changed.digest;
            entry.size = changed.size;
        }
        self.leave_out_attestations(&mut index, &gone);
        let media = match self.change.format {
            Some(Format::Oci) => media_type::OCI_INDEX.to_owned(),
            Some(Format::Docker) => {
                index.annotations.clear();
                index.artifact_type = None;
                index.subject = None;
                for entry in &mut index.manifests {
                    entry.annotations.clear();
                }
                media_type::DOCKER_LIST.to_owned()
            }
            None => descriptor.media_type.clone(),
        };
        if index == before && media == descriptor.media_type {
            return Ok(descriptor.clone());
        }
        index.media_type = Some(media.clone());
        self.store.put_document(&media, &index)
    }

    /// Removes attestations of converted images: an attestation does not apply to the converted
    /// image.
    fn leave_out_attestations(&self, index: &mut Index, gone: &HashSet<String>) {
        let before = index.manifests.len();
        index.manifests.retain(|entry| {
            let attested = entry.annotations.get(ATTESTED_IMAGE);
            attested.is_none_or(|image| !gone.contains(image))
        });
        let left_out = before - index.manifests.len();
        if left_out > 0 {
            self.reporter.note(&format!("removed {left_out} attestation(s) of the original image"));
        }
    }

    fn image(&mut self, image: &Image) -> Result<Descriptor> {
        let mut manifest = image.manifest.clone();
        let was_docker = image.descriptor.media_type == media_type::DOCKER_MANIFEST;
        let docker = self.change.format.map_or(was_docker, |format| format == Format::Docker);
        let diff_ids = image.layers().map(|(_, diff_id)| diff_id.clone());
        let diff_ids: Vec<Digest> = diff_ids.collect();
        self.layers(&mut manifest, &diff_ids, docker)?;
        let (media, config) = if docker {
            (media_type::DOCKER_MANIFEST, media_type::DOCKER_CONFIG)
        } else {
            (media_type::OCI_MANIFEST, media_type::OCI_CONFIG)
        };
        if docker && !was_docker {
            // Docker's schema has none of these fields (its parsers refuse or drop them).
            manifest.annotations.clear();
            manifest.artifact_type = None;
            manifest.subject = None;
            for layer in &mut manifest.layers {
                layer.annotations.clear();
            }
        }
        if manifest == image.manifest && docker == was_docker {
            return Ok(image.descriptor.clone());
        }
        manifest.media_type = Some(media.to_owned());
        config.clone_into(&mut manifest.config.media_type);
        let mut descriptor = self.store.put_document(media, &manifest)?;
        descriptor.platform.clone_from(&image.descriptor.platform);
        Ok(descriptor)
    }

    /// Assigns every layer its new blob and media type.
    fn layers(&mut self, manifest: &mut Manifest, diff_ids: &[Digest], docker: bool) -> Result<()> {
        let mut jobs: Vec<(usize, Recipe)> = Vec::new();
        for (number, (layer, diff_id)) in manifest.layers.iter_mut().zip(diff_ids).enumerate() {
            let now = family(&layer.media_type);
            let wanted = match self.change.compression {
                Some(wanted) => Some(wanted),
                // Docker schema 2 has no zstd.
                None if docker && now == Some("zstd") => {
                    Some(Compression::Gzip { level: GZIP_LEVEL })
                }
                None => None,
            };
            let Some(now) = now else {
                // Layers that must not be distributed remain unchanged.
                continue;
            };
            match wanted {
                Some(wanted) if name(wanted) != now || self.change.force => {
                    wanted.media_type(docker)?;
                    let recipe = Recipe {
                        from: layer.clone(),
                        diff_id: diff_id.clone(),
                        compression: wanted,
                    };
                    jobs.push((number, recipe));
                }
                _ => typed(now, docker)?.clone_into(&mut layer.media_type),
            }
        }
        for (number, recipe, made) in self.make_all(jobs)? {
            let layer = &mut manifest.layers[number];
            recipe.compression.media_type(docker)?.clone_into(&mut layer.media_type);
            layer.digest = made.digest.clone();
            layer.size = made.size;
            layer
                .annotations
                .retain(|key, _| !OF_THE_BYTES.iter().any(|start| key.starts_with(start)));
            if made.digest != recipe.from.digest {
                self.recipes.insert(made.digest, recipe);
            }
        }
        Ok(())
    }

    /// Produces the layers that are not recorded, largest first.
    fn make_all(&self, jobs: Vec<(usize, Recipe)>) -> Result<Vec<(usize, Recipe, Made)>> {
        let mut done = Vec::with_capacity(jobs.len());
        let mut pending = Vec::new();
        for (number, recipe) in jobs {
            match remembered(self.store, &recipe) {
                Some(made) => {
                    self.lease.hold(&made.digest)?;
                    done.push((number, recipe, made));
                }
                None => pending.push((number, recipe)),
            }
        }
        if pending.is_empty() {
            return Ok(done);
        }
        pending.sort_by_key(|(_, recipe)| std::cmp::Reverse(recipe.from.size));
        let total = pending.iter().map(|(_, recipe)| recipe.from.size).sum();
        let task = self.reporter.start("compressing", Unit::Bytes, Some(total));
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..PARALLEL.min(pending.len()) {
                scope.spawn(|| {
                    while let Some((number, recipe)) =
                        pending.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let made = make(self.store, recipe, &*task);
                        if made.is_err() {
                            next.store(pending.len(), Ordering::Relaxed);
                        }
                        if let Ok(mut results) = results.lock() {
                            results.push((*number, recipe.clone(), made));
                        }
                    }
                });
            }
        });
        let results = results.into_inner().unwrap_or_default();
        for (number, recipe, made) in results {
            done.push((number, recipe, made?));
        }
        forget_old(self.store);
        Ok(done)
    }
}

/// Returns a layer of an image in the store, compressed with gzip for Docker's formats, which have no
/// zstd. The bytes depend only on the tar.
pub fn gzipped(store: &Store, layer: &Descriptor, diff_id: &Digest) -> Result<Descriptor> {
    let compression = Compression::Gzip { level: GZIP_LEVEL };
    let recipe = Recipe { from: layer.clone(), diff_id: diff_id.clone(), compression };
    let made = match remembered(store, &recipe) {
        Some(made) if store.blob_size(&made.digest)? == Some(made.size) => made,
        _ => make(store, &recipe, &Silent)?,
    };
    let mut gzip = Descriptor::new(compression.media_type(true)?, made.digest, made.size);
    gzip.annotations.clone_from(&layer.annotations);
    gzip.annotations.retain(|key, _| !OF_THE_BYTES.iter().any(|start| key.starts_with(start)));
    Ok(gzip)
}

/// The resulting layer; also the format of the record file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Made {
    digest: Digest,
    size: u64,
}

fn make(store: &Store, recipe: &Recipe, task: &dyn Task) -> Result<Made> {
    let digest = &recipe.from.digest;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let blob = store.open_blob(digest)?;
    let done = recompress(blob, store.ingest()?, recipe.compression, threads)
        .context(|| format!("cannot compress layer {digest}"))?;
    if done.diff_id != recipe.diff_id {
        return Err(Error::bad_content(format!(
            "layer {digest} has the diff-id {}, but its config says {}",
            done.diff_id, recipe.diff_id
        )));
    }
    store.commit(done.sink, &done.digest)?;
    task.advance(recipe.from.size);
    let made = Made { digest: done.digest, size: done.size };
    if let Err(error) = remember(store, recipe, &made) {
        tracing::debug!("cannot record a compressed layer: {error}");
    }
    Ok(made)
}

fn directory(store: &Store) -> PathBuf {
    store.cache_directory().join("recompressed")
}

/// Path of the record. The resulting bytes depend only on the tar and the compressor.
fn record(store: &Store, recipe: &Recipe) -> PathBuf {
    let diff_id = &recipe.diff_id;
    let codec = match recipe.compression {
        Compression::None => "none".to_owned(),
        Compression::Gzip { level } => format!("gzip-{level}"),
        Compression::Zstd { level } => format!("zstd-{level}"),
    };
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("{}.{codec}.{version}", diff_id.hex());
    directory(store).join(name)
}

fn remembered(store: &Store, recipe: &Recipe) -> Option<Made> {
    serde_json::from_slice(&std::fs::read(record(store, recipe)).ok()?).ok()
}

fn remember(store: &Store, recipe: &Recipe, made: &Made) -> Result<()> {
    let path = record(store, recipe);
    let _ = std::fs::create_dir(directory(store));
    let bytes = serde_json::to_vec(made)
        .map_err(|error| Error::failed("cannot encode a record").caused_by(error))?;
    atomic::write(&path, &bytes, 0o644, Durability::Atomic)
}

fn forget_old(store: &Store) {
    let Ok(entries) = std::fs::read_dir(directory(store)) else {
        return;
    };
    let mut records: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    if records.len() <= MAX_RECORDS {
        return;
    }
    records.sort();
    for (_, path) in &records[..records.len() - MAX_RECORDS / 2] {
        let _ = std::fs::remove_file(path);
    }
}

fn name(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Gzip { .. } => "gzip",
        Compression::Zstd { .. } => "zstd",
    }
}

/// The compression that a layer's media type indicates; `None` for layers that must not be
/// distributed.
fn family(media: &str) -> Option<&'static str> {
    if media.contains("nondistributable") || media.contains("foreign") {
        return None;
    }
    Some(match media {
        _ if media.ends_with("gzip") => "gzip",
        _ if media.ends_with("zstd") => "zstd",
        _ => "none",
    })
}

/// The media type of a layer whose bytes do not change.
fn typed(compression: &str, docker: bool) -> Result<&'static str> {
    let compression = match compression {
        "gzip" => Compression::Gzip { level: GZIP_LEVEL },
        "zstd" => Compression::default(),
        _ => Compression::None,
    };
    compression.media_type(docker)
}

#[cfg(test)]
mod tests;
