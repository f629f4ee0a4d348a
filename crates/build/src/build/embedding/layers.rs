//! Writes registry layers: blobs are copied from their source straight into the layer's tar, each
//! once, and verified on the way.
//!
//! A layer's key consists of paths and digests alone. The cache records which layer holds a blob,
//! so that a partly changed image is fetched only in part.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::build::embedding::{Made, documents_of};
use crate::build::imported_step::Recreate;
use crate::build::items::{LayerTar, RangeReader};
use crate::build::shared::Shared;
use crate::build::step_cache::{Basis, CachedLayer, Key, StepCache};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::{Descriptor, Digest, Hasher, LayerKind};
use imgctl_base::progress::{Silent, Task, Unit};
use imgctl_embed::plan::{DIRECTORY, File, LayerPlan};
use imgctl_embed::resolve::{Origin, ResolvedImage};
use imgctl_layer::{Compression, Entry, EntryKind, LayerPath, LayerWriter, Toc};
use imgctl_registry::layout::paths;

/// State shared by all threads.
struct Work<'a> {
    shared: &'a Shared<'a>,
    images: &'a [ResolvedImage],
    /// Read even with `--no-cache`: its entries match the digests that were just resolved.
    cache: StepCache,
    made: &'a Made,
}

/// Stores the layers and returns them in the order of `plans`.
pub(super) fn write(
    shared: &Shared<'_>,
    images: &[ResolvedImage],
    plans: &[LayerPlan],
    made: &Made,
) -> Result<Vec<CachedLayer>> {
    let work = Work { shared, images, cache: shared.cache.reading(), made };
    // Starts with the largest, so that none of the large ones is left for the end.
    let mut order: Vec<usize> = (0..plans.len()).collect();
    order.sort_by_key(|index| {
        let files = plans[*index].files.values();
        std::cmp::Reverse(files.map(File::size).fold(0, u64::saturating_add))
    });
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, Result<CachedLayer>>> = Mutex::default();
    let run = || {
        while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let layer = work.layer(&plans[*index]);
            if layer.is_err() {
                next.store(order.len(), Ordering::Relaxed);
            }
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.insert(*index, layer);
        }
    };
    std::thread::scope(|threads| {
        for _ in 1..shared.options.embed.pulls.min(plans.len()) {
            threads.spawn(run);
        }
        run();
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let layers: Vec<CachedLayer> = done.into_values().collect::<Result<_>>()?;
    if layers.len() == plans.len() {
        Ok(layers)
    } else {
        Err(Error::failed("not all registry layers were written"))
    }
}

impl Work<'_> {
    fn layer(&self, plan: &LayerPlan) -> Result<CachedLayer> {
        let entries = entries(plan)?;
        let key = self.key(&entries);
        let store = self.shared.store;
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layer) = made.get(&key) {
            self.cache.used(&key, Basis::Embedded, std::slice::from_ref(layer));
            return Ok(layer.clone());
        }
        drop(made);
        let known = self.cache.get(store, self.shared.lease, &key)?;
        let layer = match known.as_deref() {
            Some([layer]) => layer.clone(),
            _ => match self.fetched(&key, &entries) {
                Some(layer) => layer,
                None => {
                    self.write(plan, entries).context(|| format!("cannot embed {}", plan.title))?
                }
            },
        };
        self.cache.used(&key, Basis::Embedded, std::slice::from_ref(&layer));
        self.remember(&key, plan, &layer)?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.insert(key, layer.clone());
        Ok(layer)
    }

    fn key(&self, entries: &[(Entry, Option<&File>)]) -> String {
        let mut key = Key::new("embedded registry layer");
        key.add_number(u64::from(self.shared.layer_maker().docker));
        for (entry, file) in entries {
            key.add(entry.path.as_bytes());
            key.add(file.map_or("", |file| file.digest().hex()).as_bytes());
        }
        key.finish()
    }

    /// Fetches the layer from an imported cache.
    fn fetched(&self, key: &str, entries: &[(Entry, Option<&File>)]) -> Option<CachedLayer> {
        let maker = self.shared.layer_maker();
        // Headers and the list behind the archive are far smaller than that.
        let most = |(entry, _): &(Entry, Option<&File>)| entry.size() / 64 * 65 + (16 << 10);
        let recreate = Recreate {
            largest: entries.iter().map(most).fold(1 << 20, u64::saturating_add),
            make: &|layer, toc| self.recreated(layer, toc, entries),
        };
        match maker.fetched(key, Basis::Embedded, Some(&recreate))?.as_slice() {
            [layer] => Some(layer.clone()),
            _ => None,
        }
    }

    /// Returns the layer that [`Work::write`] makes of these entries, with the blobs of a fetched layer.
    /// Nothing is written: its digests count.
    fn recreated(
        &self,
        layer: &CachedLayer,
        toc: &Toc,
        entries: &[(Entry, Option<&File>)],
    ) -> Result<CachedLayer> {
        if toc.entries.len() != entries.len() {
            return Err(Error::bad_content("it does not have the embedded images"));
        }
        let remotes = self.shared.cache.remotes();
        let tar = LayerTar::new(self.shared.store, layer.descriptor.digest.clone(), remotes);
        let tar = tar.open()?;
        let mut writer = LayerWriter::start(std::io::sink(), Compression::None, 1)?;
        for (listed, (entry, file)) in toc.entries.iter().zip(entries) {
            let mut content: Box<dyn Read> = match file {
                None => Box::new(std::io::empty()),
                Some(File::Blob(descriptor, _)) => {
                    let range = RangeReader::new(Arc::clone(&tar), listed.offset, descriptor.size);
                    Box::new(Verified::new(range, &descriptor.digest, &Silent))
                }
                Some(file) => self.open(file, &Silent)?,
            };
            writer.add(entry.clone(), &mut content)?;
        }
        let (_, made) = writer.finish()?;
        self.shared.layer_maker().described(&made, LayerKind::Registry, 0)
    }

    /// Records the layer, its images' documents, and the blobs that it holds.
    fn remember(&self, key: &str, plan: &LayerPlan, layer: &CachedLayer) -> Result<()> {
        let layers = std::slice::from_ref(layer);
        let documents = plan.files.values().filter_map(|file| match file {
            File::Document(descriptor, _) => Some(descriptor.digest.clone()),
            _ => None,
        });
        let of_images = plan.files.values().filter_map(|file| match file {
            File::Blob(_, image) => self.images.get(*image).map(documents_of),
            _ => None,
        });
        let keeps: Vec<Digest> = documents.chain(of_images.flatten()).collect();
        self.cache.put_keeping(key, layers, &keeps)?;
        for file in plan.files.values() {
            if let File::Blob(descriptor, _) = file {
                self.cache.put(&blob_key(&descriptor.digest), layers)?;
            }
        }
        Ok(())
    }

    fn write(&self, plan: &LayerPlan, entries: Vec<(Entry, Option<&File>)>) -> Result<CachedLayer> {
        let sizes = plan.files.values().map(File::size);
        let total = sizes.fold(0, u64::saturating_add);
        let title = format!("embedding {}", plan.title);
        let task = self.shared.reporter.start(&title, Unit::Bytes, Some(total));
        let mut writer = LayerWriter::start(self.shared.store.ingest()?, Compression::None, 1)?;
        for (entry, file) in entries {
            let size = entry.size();
            match file {
                None => writer.add(entry, &mut std::io::empty()),
                Some(file) => writer.add(entry, &mut self.open(file, &*task)?),
            }?;
            if !matches!(file, Some(File::Blob(..))) {
                task.advance(size);
            }
        }
        let (_, stored) = self.shared.layer_maker().store_layer(writer, LayerKind::Registry, 0)?;
        task.done(&format!("embedded {}", plan.title));
        Ok(stored)
    }

    fn open<'t>(&self, file: &File, task: &'t dyn Task) -> Result<Box<dyn Read + 't>> {
        Ok(match file {
            File::Link(digest) => Box::new(Cursor::new(digest.to_string().into_bytes())),
            File::Document(_, bytes) => Box::new(Cursor::new(Arc::clone(bytes))),
            File::Blob(descriptor, image) => {
                Box::new(Verified::new(self.blob(descriptor, *image)?, &descriptor.digest, task))
            }
        })
    }

    /// Opens a blob from the nearest source: the store, another registry layer in the store, the
    /// registry.
    fn blob(&self, descriptor: &Descriptor, image: usize) -> Result<Box<dyn Read>> {
        let store = self.shared.store;
        let digest = &descriptor.digest;
        self.shared.lease.hold(digest)?;
        if store.blob_size(digest)? == Some(descriptor.size) {
            return Ok(Box::new(store.open_blob(digest)?));
        }
        if let Some(reader) = self.embedded(descriptor)? {
            return Ok(reader);
        }
        match self.images.get(image).map(|image| &image.origin) {
            Some(Origin::Registry(repository)) => Ok(repository.blob(descriptor, 0)?),
            _ => Err(Error::not_found(format!("blob {digest} is not in the store"))),
        }
    }

    /// Opens a blob inside an existing registry layer.
    fn embedded(&self, descriptor: &Descriptor) -> Result<Option<Box<dyn Read>>> {
        let (store, lease) = (self.shared.store, self.shared.lease);
        let key = blob_key(&descriptor.digest);
        let layers = self.cache.get(store, lease, &key)?.unwrap_or_default();
        let Some(layer) = layers.first() else {
            return Ok(None);
        };
        let toc = store.toc(&layer.descriptor.digest, &layer.diff_id)?;
        let path = format!("{DIRECTORY}/{}", paths::blob_data(&descriptor.digest));
        let path = LayerPath::parse(path.as_bytes())?;
        let Some(entry) = toc.entries.iter().find(|entry| entry.entry.path == path) else {
            return Ok(None);
        };
        if entry.entry.size() != descriptor.size {
            return Ok(None);
        }
        let remotes = self.cache.remotes();
        let tar = LayerTar::new(store, layer.descriptor.digest.clone(), remotes);
        let file = tar.open()?;
        Ok(Some(Box::new(RangeReader::new(file, entry.offset, descriptor.size))))
    }
}

/// Returns the cache key of the layer that holds a blob.
fn blob_key(digest: &Digest) -> String {
    let mut key = Key::new("layer of an embedded blob");
    key.add(digest.to_string().as_bytes());
    key.finish()
}

/// Returns the layer's entries in order: each directory before its content, all owned by root and
/// dated 1970.
fn entries(plan: &LayerPlan) -> Result<Vec<(Entry, Option<&File>)>> {
    let mut all: BTreeMap<LayerPath, (Entry, Option<&File>)> = BTreeMap::new();
    for (path, file) in &plan.files {
        let path = LayerPath::parse(path.as_bytes())?;
        let mut parent = path.parent();
        while let Some(directory) = parent.filter(|directory| !directory.is_root()) {
            parent = directory.parent();
            all.entry(directory.clone())
                .or_insert_with(|| (Entry::new(directory, EntryKind::Directory, 0o755), None));
        }
        let kind = EntryKind::File { size: file.size() };
        let entry = Entry::new(path.clone(), kind, 0o644);
        all.insert(path, (entry, Some(file)));
    }
    Ok(all.into_values().collect())
}

/// Hashes the bytes as they are read; a wrong digest is an error at the end.
struct Verified<'t, R> {
    inner: R,
    hasher: Option<Hasher>,
    digest: Digest,
    task: &'t dyn Task,
}

impl<'t, R> Verified<'t, R> {
    fn new(inner: R, digest: &Digest, task: &'t dyn Task) -> Self {
        let hasher = Some(Hasher::with(digest.algorithm()));
        Self { inner, hasher, digest: digest.clone(), task }
    }
}

impl<R: Read> Read for Verified<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if count > 0 {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&buffer[..count]);
            }
            self.task.advance(count as u64);
        } else if !buffer.is_empty()
            && let Some(hasher) = self.hasher.take()
        {
            let found = hasher.finish();
            if found != self.digest {
                let message = format!("blob {} came with the digest {found}", self.digest);
                return Err(Error::bad_content(message).into());
            }
        }
        Ok(count)
    }
}
