//! The files of an image in the store, for its SBOM: looked up in the merged tree of its layers,
//! then read and hashed directly from the layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use aws_lc_rs::digest::{Context as Sum, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_base::text::hex;
use imgctl_base::workers;
use imgctl_layer::{ContentReader, EntryKind, LayerPath, Toc, TocEntry, Tree};
use imgctl_store::store::{Image, Store, images::add_layer};

/// Number of layers hashed in parallel.
const JOBS: usize = 4;

/// An image's files.
pub struct Contents<'a> {
    store: &'a Store,
    image: &'a Image,
    tocs: Vec<Arc<Toc>>,
    tree: Tree,
}

/// A regular file. SPDX also requires SHA-1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) path: LayerPath,
    pub(super) sha1: String,
    pub(super) sha256: String,
}

impl<'a> Contents<'a> {
    /// Reads the tables of contents of all layers of an image.
    pub fn new(store: &'a Store, image: &'a Image) -> Result<Self> {
        let (mut tree, mut tocs) = (Tree::new(), Vec::new());
        for (layer, diff_id) in image.layers() {
            let toc = Arc::new(store.toc(&layer.digest, diff_id)?);
            add_layer(store, image, &mut tree, Arc::clone(&toc))?;
            tocs.push(toc);
        }
        Ok(Self { store, image, tree, tocs })
    }

    /// Returns the merged tree of the layers.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the tables of contents of the layers, lowest first.
    pub fn tocs(&self) -> &[Arc<Toc>] {
        &self.tocs
    }

    /// Returns the paths of all regular files at and below `start`, sorted.
    pub(super) fn files_below(&self, start: &LayerPath) -> impl Iterator<Item = LayerPath> {
        self.tree
            .walk(start)
            .filter(|(_, found)| matches!(found.entry().kind, EntryKind::File { .. }))
            .map(|(path, _)| path)
    }

    /// Returns those of `paths` that are different files: of hard links, the first.
    pub(super) fn distinct(&self, paths: &[LayerPath]) -> Vec<LayerPath> {
        let mut seen = BTreeSet::new();
        let is_new = |path: &&LayerPath| {
            self.tree
                .lookup(path)
                .is_none_or(|found| seen.insert((found.layer, found.inode.index())))
        };
        paths.iter().filter(is_new).cloned().collect()
    }

    /// Reads each of `paths`, following symlinks. The content is `None` if the path is not a
    /// regular file or is longer than `limit` bytes.
    pub fn read(&self, paths: &[LayerPath], limit: u64) -> Result<Vec<Option<Vec<u8>>>> {
        let mut contents: Vec<Option<Vec<u8>>> = vec![None; paths.len()];
        let mut wanted = Vec::new();
        for (index, path) in paths.iter().enumerate() {
            let found = self.tree.lookup(&self.tree.resolve(path)?);
            if let Some(found) = found
                && let (Some(layer), EntryKind::File { size }) = (found.layer, &found.entry().kind)
                && *size <= limit
            {
                wanted.push(((layer, found.entry), index));
            }
        }
        wanted.sort_by_key(|((layer, entry), _)| (*layer, entry.offset));
        for of_layer in wanted.chunk_by(|(a, _), (b, _)| a.0 == b.0) {
            let mut reader = self.reader(of_layer[0].0.0)?;
            for ((_, entry), index) in of_layer {
                let mut content = Vec::new();
                reader
                    .open(entry)?
                    .read_to_end(&mut content)
                    .doing(|| format!("cannot read {}", entry.entry.path))?;
                contents[*index] = Some(content);
            }
        }
        Ok(contents)
    }

    /// Passes the content of the regular file at `path` to `with`; `None` if there is none.
    pub fn with_file<T>(
        &self,
        path: &LayerPath,
        with: impl FnOnce(&mut (dyn io::Read + Send)) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(found) = self.tree.lookup(path) else { return Ok(None) };
        let (Some(layer), EntryKind::File { .. }) = (found.layer, &found.entry().kind) else {
            return Ok(None);
        };
        let mut reader = self.reader(layer)?;
        let mut content = reader.open(found.entry)?;
        with(&mut content).context(|| format!("cannot read {path}")).map(Some)
    }

    /// Hashes every regular file. The sums go to a scratch file: an image may have millions of files.
    pub(super) fn hashed(&self, reporter: &dyn Reporter) -> Result<Hashed<'_>> {
        let mut wanted: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for file in self.places() {
            wanted.entry(file.layer).or_default().push(file.index);
        }
        let mut total = 0;
        for (layer, files) in &mut wanted {
            let entry = |index: &u32| self.entry(*layer, *index);
            // Hard links are read once. Each layer is read in one pass, in offset order.
            files.sort_unstable_by_key(|index| (entry(index).map(|entry| entry.offset), *index));
            files.dedup();
            total += files.iter().filter_map(entry).map(|entry| entry.entry.size()).sum::<u64>();
        }
        let task = reporter.start("hashing files", Unit::Bytes, Some(total));
        let sums = self.store.scratch_file()?;
        let layers: BTreeSet<usize> = wanted.keys().copied().collect();
        workers::for_each(layers, JOBS, &AtomicBool::new(false), |layer| {
            let files = wanted.get(&layer).map(Vec::as_slice).unwrap_or_default();
            self.sums(layer, files, &sums, &|bytes| task.advance(bytes))
        })?;
        task.done("hashed files");
        Ok(Hashed { contents: self, sums })
    }

    /// Returns the places of all regular files, sorted by path.
    fn places(&self) -> impl Iterator<Item = Place> {
        self.tree.walk(&LayerPath::root()).filter_map(move |(path, found)| {
            let (Some(layer), EntryKind::File { .. }) = (found.layer, &found.entry().kind) else {
                return None;
            };
            Some(Place { layer, index: found.inode.index(), path })
        })
    }

    fn entry(&self, layer: usize, index: u32) -> Option<&TocEntry> {
        self.tocs.get(layer)?.entries.get(index as usize)
    }

    /// Returns where the sums of a file are in the scratch file, in bytes.
    fn offset(&self, layer: usize, index: u32) -> u64 {
        let before: usize = self.tocs.iter().take(layer).map(|toc| toc.entries.len()).sum();
        (before as u64 + u64::from(index)) * RECORD as u64
    }

    fn sums(
        &self,
        layer: usize,
        wanted: &[u32],
        sums: &fs::File,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let mut reader = self.reader(layer)?;
        for index in wanted {
            let Some(entry) = self.entry(layer, *index) else { continue };
            let mut both =
                Sums { sha1: Sum::new(&SHA1_FOR_LEGACY_USE_ONLY), sha256: Sum::new(&SHA256) };
            io::copy(&mut reader.open(entry)?, &mut both)
                .doing(|| format!("cannot read {}", entry.entry.path))?;
            progress(entry.entry.size());
            let mut record = both.sha1.finish().as_ref().to_vec();
            record.extend_from_slice(both.sha256.finish().as_ref());
            sums.write_all_at(&record, self.offset(layer, *index)).doing(scratch)?;
        }
        Ok(())
    }

    fn reader(&self, layer: usize) -> Result<ContentReader> {
        let missing = || Error::failed("a layer is missing");
        let (descriptor, _) = self.image.layers().nth(layer).ok_or_else(missing)?;
        let toc = self.tocs.get(layer).ok_or_else(missing)?;
        ContentReader::new(self.store.open_blob(&descriptor.digest)?, Arc::clone(toc))
            .context(|| format!("cannot read layer {}", descriptor.digest))
    }
}

/// Where a regular file is.
struct Place {
    layer: usize,
    /// Among the entries of the layer.
    index: u32,
    path: LayerPath,
}

/// Size of a file's sums, in bytes.
const RECORD: usize = SHA1 + 32;
const SHA1: usize = 20;

fn scratch() -> String {
    "cannot use a scratch file".to_owned()
}

/// All regular files with their sums.
pub(super) struct Hashed<'a> {
    contents: &'a Contents<'a>,
    sums: fs::File,
}

impl Hashed<'_> {
    /// Returns the paths, sorted.
    pub(super) fn paths(&self) -> impl Iterator<Item = LayerPath> {
        self.contents.places().map(|file| file.path)
    }

    /// Returns the files, sorted by path.
    pub(super) fn files(&self) -> impl Iterator<Item = Result<File>> {
        self.contents.places().map(|file| {
            let record = self.record(&file)?;
            let (sha1, sha256) = record.split_at(SHA1);
            Ok(File { path: file.path, sha1: hex(sha1), sha256: hex(sha256) })
        })
    }

    /// Returns the SHA-1 of all files, in order.
    pub(super) fn sha1s(&self) -> Result<Vec<[u8; SHA1]>> {
        let mut sums = Vec::with_capacity(self.contents.places().count());
        for file in self.contents.places() {
            sums.push(*self.record(&file)?.first_chunk().unwrap_or(&[0; SHA1]));
        }
        sums.sort_unstable();
        Ok(sums)
    }

    fn record(&self, file: &Place) -> Result<[u8; RECORD]> {
        let mut record = [0; RECORD];
        let offset = self.contents.offset(file.layer, file.index);
        self.sums.read_exact_at(&mut record, offset).doing(scratch)?;
        Ok(record)
    }
}

struct Sums {
    sha1: Sum,
    sha256: Sum,
}

impl Write for Sums {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sha1.update(bytes);
        self.sha256.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// SHA-1 in hex of texts, one after another; used only where SPDX requires it.
pub(super) fn sha1_of(texts: impl IntoIterator<Item = String>) -> String {
    let mut sum = Sum::new(&SHA1_FOR_LEGACY_USE_ONLY);
    texts.into_iter().for_each(|text| sum.update(text.as_bytes()));
    hex(sum.finish().as_ref())
}
