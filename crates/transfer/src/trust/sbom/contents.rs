//! The files of an image in the store, for its SBOM: looked up in the merged tree of its layers,
//! then read and hashed directly from the layers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use aws_lc_rs::digest::{self, Context as Sum, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::transfer::workers;
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_store::layer::{ContentReader, EntryKind, LayerPath, Toc, TocEntry, Tree};
use imgctl_store::store::{Image, Store};

/// Number of layers hashed in parallel.
const JOBS: usize = 4;

/// An image's files.
pub(crate) struct Contents<'a> {
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

/// A file to read: its layer and its entry there.
type Wanted<'t> = (usize, &'t TocEntry);

impl<'a> Contents<'a> {
    pub(crate) fn new(store: &'a Store, image: &'a Image) -> Result<Self> {
        let tocs = image
            .layers()
            .map(|(layer, diff_id)| Ok(Arc::new(store.toc(&layer.digest, diff_id)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { store, image, tree: Tree::from_layers(tocs.iter().map(Arc::clone))?, tocs })
    }

    /// Returns the merged tree of the layers.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the tables of contents of the layers, lowest first.
    pub(crate) fn tocs(&self) -> &[Arc<Toc>] {
        &self.tocs
    }

    /// Returns the paths of all regular files at and below `start`, sorted.
    pub(super) fn files_below(&self, start: &LayerPath) -> impl Iterator<Item = LayerPath> {
        self.tree
            .walk(start)
            .filter(|(_, found)| matches!(found.entry().kind, EntryKind::File { .. }))
            .map(|(path, _)| path)
    }

    /// Reads each of `paths`, following symlinks. The content is `None` if the path is not a
    /// regular file or is longer than `limit` bytes.
    pub(crate) fn read(&self, paths: &[LayerPath], limit: u64) -> Result<Vec<Option<Vec<u8>>>> {
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

    /// Hashes every regular file; sorted by path.
    pub(super) fn hashed(&self, reporter: &dyn Reporter) -> Result<Vec<File>> {
        let mut names = Vec::new();
        // Keyed by inode, so that hard links are read once. Each layer is read in one pass, in
        // offset order.
        let mut inodes: BTreeMap<u64, Wanted<'_>> = BTreeMap::new();
        for (path, found) in self.tree.walk(&LayerPath::root()) {
            if let (Some(layer), EntryKind::File { .. }) = (found.layer, &found.entry().kind) {
                inodes.insert(found.inode.number(), (layer, found.entry));
                names.push((path, found.inode.number()));
            }
        }
        let total = inodes.values().map(|(_, entry)| entry.entry.size()).sum();
        let task = reporter.start("hashing files", Unit::Bytes, Some(total));
        let layers: BTreeSet<usize> = inodes.values().map(|(layer, _)| *layer).collect();
        let sums: Mutex<BTreeMap<u64, (String, String)>> = Mutex::default();
        workers::for_each(layers, JOBS, &AtomicBool::new(false), |layer| {
            let mut wanted: Vec<(u64, &TocEntry)> = inodes
                .iter()
                .filter(|(_, (of, _))| *of == layer)
                .map(|(number, (_, entry))| (*number, *entry))
                .collect();
            wanted.sort_by_key(|(_, entry)| entry.offset);
            let found = self.sums(layer, &wanted, &|bytes| task.advance(bytes))?;
            workers::lock(&sums).extend(found);
            Ok(())
        })?;
        task.done("hashed files");
        let sums = workers::lock(&sums);
        names
            .into_iter()
            .map(|(path, inode)| {
                let (sha1, sha256) = sums
                    .get(&inode)
                    .cloned()
                    .ok_or_else(|| Error::failed(format!("{path} was not hashed")))?;
                Ok(File { path, sha1, sha256 })
            })
            .collect()
    }

    fn sums(
        &self,
        layer: usize,
        wanted: &[(u64, &TocEntry)],
        progress: &dyn Fn(u64),
    ) -> Result<Vec<(u64, (String, String))>> {
        let mut reader = self.reader(layer)?;
        wanted
            .iter()
            .map(|(number, entry)| {
                let mut sums =
                    Sums { sha1: Sum::new(&SHA1_FOR_LEGACY_USE_ONLY), sha256: Sum::new(&SHA256) };
                io::copy(&mut reader.open(entry)?, &mut sums)
                    .doing(|| format!("cannot read {}", entry.entry.path))?;
                progress(entry.entry.size());
                Ok((*number, (hex(sums.sha1), hex(sums.sha256))))
            })
            .collect()
    }

    fn reader(&self, layer: usize) -> Result<ContentReader> {
        let missing = || Error::failed("a layer is missing");
        let (descriptor, _) = self.image.layers().nth(layer).ok_or_else(missing)?;
        let toc = self.tocs.get(layer).ok_or_else(missing)?;
        ContentReader::new(self.store.open_blob(&descriptor.digest)?, Arc::clone(toc))
            .context(|| format!("cannot read layer {}", descriptor.digest))
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

fn hex(sum: Sum) -> String {
    hex_of(sum.finish().as_ref())
}

/// Encodes bytes as lower-case hex digits.
pub(super) fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-1 of `bytes` in hex; used only where SPDX requires it.
pub(super) fn sha1_of(bytes: &[u8]) -> String {
    hex_of(digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref())
}
