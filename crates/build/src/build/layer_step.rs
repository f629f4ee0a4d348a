//! Turns items into stored layers: splits them by kind, looks them up by content, and writes them
//! in one pass.
//!
//! A layer's key covers all of its content except for modification times, so that a fresh clone of
//! the same files reuses the existing layers. Files that the stat cache does not know are hashed
//! while the layer is written. Only if few bytes are unknown are they read in advance, because the
//! layer probably exists then.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use crate::build::items::{self, Content, Item, NO_TIME, Opened, read_xattrs, release};
use crate::build::step_cache::{Basis, CachedLayer, Key, Known, StatCache, StepCache};
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::image::descriptor::LAYER_KIND;
use imgctl_base::image::{Descriptor, LayerKind};
use imgctl_base::progress::{Reporter, Unit, decimal};
use imgctl_base::workers;
use imgctl_embed::split;
use imgctl_layer::writer::Layer;
use imgctl_layer::{Compression, Entry, EntryKind, LayerPath, LayerWriter, Mtime, PackedToc};
use imgctl_store::store::blobs::Ingest;
use imgctl_store::store::{Lease, Store};

/// If at most 1/N of the bytes is unknown, files are read in advance to find an existing layer.
const READ_FIRST: u64 = 4;
/// Fewer files than this are read by one thread.
const FEW_FILES: usize = 16;
/// Size of the buffer of a file that is only hashed, in bytes.
const READ_BUFFER: usize = 256 << 10;

/// One layer of a stage.
#[derive(Clone, Debug)]
pub(crate) struct StageLayer {
    pub layer: CachedLayer,
    pub(crate) from_cache: bool,
}

/// Makes layers from items, according to the build's options.
pub(crate) struct LayerMaker<'a> {
    pub store: &'a Store,
    pub lease: &'a Lease,
    pub cache: &'a StepCache,
    pub files: &'a Mutex<StatCache>,
    pub compression: Compression,
    pub docker: bool,
    pub threads: usize,
    /// Maximum modification time; later times are set to it.
    pub timestamp: Option<i64>,
    pub reporter: &'a dyn Reporter,
}

impl LayerMaker<'_> {
    /// Stores `items` (in layer order) as one layer per kind; registry data becomes one layer per
    /// image.
    pub(super) fn make(&self, items: Vec<Item>) -> Result<Vec<StageLayer>> {
        let kind_of = |item: &Item| item.entry.path.layer_kind();
        let mut items = items;
        // Sorting takes half as much memory again, whether there is something to do or not.
        if !items.is_sorted_by_key(kind_of) {
            items.sort_by_key(kind_of);
        }
        let mut layers = Vec::new();
        while let Some(kind) = items.first().map(kind_of) {
            let part = take_first(&mut items, |item| kind_of(item) == kind);
            let parts = match kind {
                LayerKind::Registry => by_image(part)?,
                LayerKind::Rootfs | LayerKind::Addons => vec![part],
            };
            for part in parts {
                layers.push(self.make_one(kind, part)?);
            }
        }
        Ok(layers)
    }

    fn make_one(&self, kind: LayerKind, mut items: Vec<Item>) -> Result<StageLayer> {
        items::link_names(&mut items);
        self.recall(&mut items)?;
        let size = |item: &&Item| item.entry.size();
        let total: u64 = items.iter().map(|item| item.entry.size()).sum();
        let unknown: u64 =
            items.iter().filter(|item| item.digest.is_none()).map(|i| size(&i)).sum();
        if unknown * READ_FIRST <= total || !self.cache.imported().is_empty() {
            self.read_all_ahead(&mut items)?;
            let mut key = self.key(kind);
            items.iter().for_each(|item| add_item(&mut key, &item.entry, item.digest));
            let key = key.finish();
            let known = match self.recorded(&key)? {
                None => self.imported(kind, &key, &items)?,
                known => known,
            };
            if let Some(layer) = known {
                return Ok(StageLayer { layer, from_cache: true });
            }
        }
        let newest = self.settle_times(&mut items);
        let (toc, layer) = self.write(kind, items, newest)?;
        let mut key = self.key(kind);
        for listed in toc.entries() {
            let listed = listed?;
            add_item(&mut key, &listed.entry, listed.content);
        }
        let key = key.finish();
        drop(toc);
        // All digests are known only now: the same content may be stored with other times.
        if let Some(layer) = self.recorded(&key)? {
            return Ok(StageLayer { layer, from_cache: true });
        }
        self.record(&key, &layer)?;
        Ok(StageLayer { layer, from_cache: false })
    }

    /// Records the only layer of a step whose key covers its content.
    pub(super) fn record(&self, key: &str, layer: &CachedLayer) -> Result<()> {
        let layers = std::slice::from_ref(layer);
        self.cache.used(key, Basis::Content, layers);
        self.cache.put(key, layers)
    }

    /// Returns the only layer recorded under a key that covers its content.
    fn recorded(&self, key: &str) -> Result<Option<CachedLayer>> {
        let found = self.cache.get(self.store, self.lease, key)?;
        Ok(found.and_then(|layers| match layers.as_slice() {
            [layer] => {
                self.cache.used(key, Basis::Content, &layers);
                Some(layer.clone())
            }
            _ => None,
        }))
    }

    /// Adds `items` to a key, without their times.
    pub(crate) fn add_content(&self, mut items: Vec<Item>, key: &mut Key) -> Result<()> {
        self.recall(&mut items)?;
        self.read_all_ahead(&mut items)?;
        for item in &items {
            add_item(key, &item.entry, item.digest);
        }
        Ok(())
    }

    /// Fills in the digests that the stat cache knows.
    fn recall(&self, items: &mut [Item]) -> Result<()> {
        let mut files = lock(self.files)?;
        for item in items {
            if let Content::Context { state, .. } = &item.content
                && let Some(known) = files.get(state)
            {
                item.digest = Some(known.content);
                item.xattrs_unread = known.has_xattrs;
            }
            if item.digest.is_some() && item.xattrs_unread {
                read_xattrs(item)?;
            }
        }
        Ok(())
    }

    /// Reads the files whose digests are unknown, several at a time.
    fn read_all_ahead(&self, items: &mut [Item]) -> Result<()> {
        let unknown: Vec<&mut Item> =
            items.iter_mut().filter(|item| item.digest.is_none()).collect();
        lock(self.files)?.expect(unknown.len());
        let jobs = if unknown.len() < FEW_FILES { 1 } else { self.threads };
        workers::for_each(unknown, jobs, &AtomicBool::new(false), |item| self.read_ahead(item))
    }

    /// Reads a file only to compute its digest.
    fn read_ahead(&self, item: &mut Item) -> Result<()> {
        if item.entry.is_directory() {
            read_xattrs(item)?;
            item.digest = Some([0; 32]);
            return self.remember(item);
        }
        let mut hasher = blake3::Hasher::new();
        let mut reader = Opened::open(item)?;
        let size = usize::try_from(item.entry.size()).unwrap_or(READ_BUFFER);
        let mut buffer = vec![0; size.saturating_add(1).min(READ_BUFFER)];
        loop {
            match reader.read(&mut buffer).doing(|| format!("cannot read {}", item.entry.path))? {
                0 => break,
                count => hasher.update(&buffer[..count]),
            };
        }
        reader.check(item)?;
        item.digest = Some(*hasher.finalize().as_bytes());
        self.remember(item)
    }

    fn remember(&self, item: &Item) -> Result<()> {
        if let (Content::Context { state, .. }, Some(content)) = (&item.content, item.digest) {
            let has_xattrs = !item.entry.xattrs.is_empty();
            lock(self.files)?.put(state, Known { content, has_xattrs, names_nothing: false });
        }
        Ok(())
    }

    /// Returns the layer's key without its entries, which [`add_item`] adds.
    fn key(&self, kind: LayerKind) -> Key {
        let mut key = Key::new("layer");
        key.add(kind.as_str().as_bytes());
        key.add(
            format!("{:?} {} {:?}", self.compression_of(kind), self.docker, self.timestamp)
                .as_bytes(),
        );
        key
    }

    /// The embedded registry's content is already compressed (design: registry layers are plain).
    pub(super) fn compression_of(&self, kind: LayerKind) -> Compression {
        if kind == LayerKind::Registry { Compression::None } else { self.compression }
    }

    /// Clamps times, and sets missing ones to the newest of the others. Returns the newest, in
    /// seconds.
    pub(super) fn settle_times(&self, items: &mut [Item]) -> i64 {
        let clamp = |seconds: i64| self.timestamp.map_or(seconds, |limit| seconds.min(limit));
        let known = items.iter().map(|item| item.entry.mtime).filter(|time| *time != NO_TIME);
        let newest = known.map(|time| clamp(time.seconds)).max();
        let newest = newest.or(self.timestamp).unwrap_or(0);
        for item in items {
            let time = item.entry.mtime;
            let seconds = if time == NO_TIME { newest } else { clamp(time.seconds) };
            item.entry.mtime = Mtime { seconds, nanoseconds: 0 };
        }
        newest
    }

    /// Writes and stores a layer of items whose times are settled. An item is forgotten as soon as it
    /// is written: what is left of it is the table of contents.
    pub(super) fn write(
        &self,
        kind: LayerKind,
        mut items: Vec<Item>,
        newest: i64,
    ) -> Result<(PackedToc, CachedLayer)> {
        let total: u64 = items.iter().map(|item| item.entry.size()).sum();
        let task = self.reporter.start(&format!("writing {kind} layer"), Unit::Bytes, Some(total));
        let compression = self.compression_of(kind);
        let mut writer = LayerWriter::start(self.store.ingest()?, compression, self.threads)?;
        writer.expect(items.iter().filter(|item| item.entry.size() > 0).count() as u64, total);
        let unknown = items.iter().filter(|item| item.digest.is_none()).count();
        lock(self.files)?.expect(unknown);
        items.reverse();
        while let Some(mut item) = items.pop() {
            let mut reader = Opened::open(&mut item)?;
            let content = writer.add(item.entry.clone(), &mut reader)?;
            reader.check(&item)?;
            task.advance(item.entry.size());
            if item.digest.is_none() {
                item.digest = Some(content.unwrap_or_default());
                self.remember(&item)?;
            }
            release(&mut items);
        }
        let (layer, stored) = self.store_layer(writer, kind, newest)?;
        task.done(&format!(
            "{kind} layer {}: {} stored in {}",
            layer.digest.short(),
            decimal(layer.diff_size),
            decimal(layer.size)
        ));
        Ok((layer.toc, stored))
    }

    /// Stores a finished layer.
    pub(super) fn store_layer(
        &self,
        writer: LayerWriter<Ingest>,
        kind: LayerKind,
        newest: i64,
    ) -> Result<(Layer, CachedLayer)> {
        let (ingest, layer) = writer.finish()?;
        self.lease.hold_all([&layer.digest, &layer.diff_id])?;
        self.store.commit(ingest, &layer.digest)?;
        self.store.put_toc(&layer.digest, &layer.diff_id, &layer.toc)?;
        let stored = self.described(&layer, kind, newest)?;
        Ok((layer, stored))
    }

    /// Describes a layer as a stage has it.
    pub(super) fn described(
        &self,
        layer: &Layer,
        kind: LayerKind,
        newest: i64,
    ) -> Result<CachedLayer> {
        let media_type = self.compression_of(kind).media_type(self.docker)?;
        let mut descriptor = Descriptor::new(media_type, layer.digest.clone(), layer.size);
        descriptor.annotations.extend(layer.annotations.clone());
        descriptor.annotations.insert(LAYER_KIND.to_owned(), kind.as_str().to_owned());
        Ok(CachedLayer { descriptor, diff_id: layer.diff_id.clone(), newest })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> Result<std::sync::MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| Error::failed("another thread of the build has failed"))
}

/// Adds everything that affects an entry's bytes to the key, except for its time. The digest of its
/// content must be known.
fn add_item(key: &mut Key, entry: &Entry, digest: Option<[u8; 32]>) {
    add_entry(key, entry);
    key.add(&digest.unwrap_or_default());
}

fn add_entry(key: &mut Key, entry: &Entry) {
    key.add(entry.path.as_bytes());
    match &entry.kind {
        EntryKind::File { size } => {
            key.add(b"file");
            key.add_number(*size);
        }
        EntryKind::Directory => key.add(b"directory"),
        EntryKind::Symlink { target } => {
            key.add(b"symlink");
            key.add(target);
        }
        EntryKind::HardLink { target } => {
            key.add(b"link");
            key.add(target.as_bytes());
        }
        EntryKind::CharDevice { major, minor } | EntryKind::BlockDevice { major, minor } => {
            key.add(if matches!(entry.kind, EntryKind::CharDevice { .. }) {
                b"char"
            } else {
                b"blck"
            });
            key.add_number(u64::from(*major) << 32 | u64::from(*minor));
        }
        EntryKind::Fifo => key.add(b"fifo"),
    }
    for number in [entry.mode, entry.uid, entry.gid] {
        key.add_number(u64::from(number));
    }
    key.add_number(entry.xattrs.len() as u64);
    for (name, value) in &entry.xattrs {
        key.add(name);
        key.add(value);
    }
}

/// Takes the first items, those that `belong`, out of `items`. Only the shorter part is copied: the other
/// keeps its memory.
fn take_first(items: &mut Vec<Item>, belongs: impl Fn(&Item) -> bool) -> Vec<Item> {
    let end = items.partition_point(belongs);
    if end < items.len() / 2 {
        return items.drain(..end).collect();
    }
    let rest = items.split_off(end);
    std::mem::replace(items, rest)
}

/// Splits `items` (in layer order) into parts, each in layer order and with the directories it
/// needs.
fn by_image(mut items: Vec<Item>) -> Result<Vec<Vec<Item>>> {
    let is_file = |item: &Item| matches!(item.entry.kind, EntryKind::File { .. });
    let numbers: Vec<usize> = (0..items.len()).filter(|n| is_file(&items[*n])).collect();
    let names: Vec<String> = numbers
        .iter()
        .map(|number| String::from_utf8_lossy(items[*number].entry.path.as_bytes()).into_owned())
        .collect();
    let files: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut read = |number: usize, limit: u64| {
        let item = &mut items[numbers[number]];
        if item.entry.size() > limit {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        Opened::open(item)?
            .take(limit)
            .read_to_end(&mut bytes)
            .doing(|| format!("cannot read {}", item.entry.path))?;
        Ok(Some(bytes))
    };
    let parts = split::parts(&files, &mut read)?;
    if parts.iter().all(|part| *part == parts[0]) {
        return Ok(vec![items]);
    }
    let part_of: HashMap<usize, String> = numbers.into_iter().zip(parts).collect();
    Ok(distribute(items, &part_of))
}

/// Directories go to every part with content in them; empty directories, and everything that is not
/// a file, go to the unnamed part.
fn distribute(items: Vec<Item>, part_of: &HashMap<usize, String>) -> Vec<Vec<Item>> {
    let mut parts: BTreeMap<String, Vec<(usize, Item)>> = BTreeMap::new();
    let mut directories: HashMap<LayerPath, (usize, Item)> = HashMap::new();
    let mut used: HashMap<String, Vec<LayerPath>> = HashMap::new();
    for (number, item) in items.into_iter().enumerate() {
        if item.entry.is_directory() {
            directories.insert(item.entry.path.clone(), (number, item));
            continue;
        }
        let part = part_of.get(&number).cloned().unwrap_or_default();
        used.entry(part.clone()).or_default().extend(item.entry.path.parent());
        parts.entry(part).or_default().push((number, item));
    }
    let mut left: HashMap<LayerPath, (usize, Item)> = directories.clone();
    for (part, parents) in used {
        let mut mine: HashMap<LayerPath, (usize, Item)> = HashMap::new();
        for mut directory in parents {
            while !mine.contains_key(&directory)
                && let Some(item) = directories.get(&directory)
            {
                left.remove(&directory);
                mine.insert(directory.clone(), item.clone());
                match directory.parent() {
                    Some(parent) => directory = parent,
                    None => break,
                }
            }
        }
        parts.entry(part).or_default().extend(mine.into_values());
    }
    if !left.is_empty() {
        let nameless = parts.entry(String::new()).or_default();
        nameless.extend(left.into_values());
    }
    let sorted = parts.into_values().map(|mut part| {
        part.sort_by_key(|(number, _)| *number);
        part.into_iter().map(|(_, item)| item).collect()
    });
    sorted.collect()
}
