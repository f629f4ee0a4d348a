//! `export -o FILE.tar`: the merged tree as one sorted, deterministic tar, read directly from the
//! blobs without unpacking or mounting.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use crate::mount::erofs;
use crate::mount::layers::{self, LayerOf};
use crate::mount::workspace::random_hex;
use crate::store::Store;
use crate::store::images::Image;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::output::{self, Target};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_layer::ContentReader;
use imgctl_layer::tree::{Found, Inode};
use imgctl_layer::unpack::is_left_out;
use imgctl_layer::writer::Layer;
use imgctl_layer::{Compression, EntryKind, LayerPath, LayerWriter, Toc, Tree};

/// Number of compression threads; unused without compression.
const THREADS: usize = 2;

/// Writes `image`'s merged tree into `sink` and returns `sink`. The bytes depend only on the image
/// and `compression`.
pub fn to_writer<W: Write + Send + 'static>(
    store: &Store,
    image: &Image,
    sink: W,
    compression: Compression,
    reporter: &dyn Reporter,
) -> Result<W> {
    all_to_writer(store, &[(LayerPath::root(), image)], sink, compression, reporter)
}

/// Writes the merged trees of several images into `sink`, each in its directory, and returns `sink`.
pub fn all_to_writer<W: Write + Send + 'static>(
    store: &Store,
    images: &[(LayerPath, &Image)],
    sink: W,
    compression: Compression,
    reporter: &dyn Reporter,
) -> Result<W> {
    let writer = LayerWriter::start(sink, compression, THREADS)?.without_list();
    merged(store, images, &|_| true, writer, reporter).map(|(sink, _)| sink)
}

/// Writes the part of `image`'s merged tree that `select` chooses into `sink`, as one layer.
pub fn merged_layer<W: Write + Send + 'static>(
    store: &Store,
    image: &Image,
    select: &dyn Fn(&LayerPath) -> bool,
    sink: W,
    compression: Compression,
    reporter: &dyn Reporter,
) -> Result<(W, Layer)> {
    let images = [(LayerPath::root(), image)];
    merged(store, &images, select, LayerWriter::start(sink, compression, THREADS)?, reporter)
}

/// The merged tree of one image.
struct Merged {
    layers: Vec<LayerOf>,
    tocs: Vec<Arc<Toc>>,
    tree: Tree,
}

impl Merged {
    fn of(store: &Store, image: &Image) -> Result<Self> {
        let layers = layers::distinct(image);
        let mut tocs = Vec::new();
        for layer in &layers {
            tocs.push(Arc::new(store.toc(&layer.blob.digest, &layer.diff_id)?));
        }
        Ok(Self { tree: Tree::from_layers(tocs.iter().cloned())?, tocs, layers })
    }
}

fn merged<W: Write + Send + 'static>(
    store: &Store,
    images: &[(LayerPath, &Image)],
    select: &dyn Fn(&LayerPath) -> bool,
    mut writer: LayerWriter<W>,
    reporter: &dyn Reporter,
) -> Result<(W, Layer)> {
    let mut trees = Vec::new();
    for (directory, image) in images {
        trees.push((directory, Merged::of(store, image)?));
    }
    let (mut files, mut bytes, mut total) = (0, 0, 0);
    for (_, Merged { tree, .. }) in &trees {
        let mut seen = HashSet::new();
        for (_, found) in tree.walk(&LayerPath::root()).filter(|(path, _)| select(path)) {
            let size = found.entry().size();
            total += size;
            if size > 0 && seen.insert(found.inode) {
                files += 1;
                bytes += size;
            }
        }
    }
    let task = reporter.start("exporting", Unit::Bytes, Some(total));
    writer.expect(files, bytes);
    for (directory, Merged { layers, tocs, tree }) in &trees {
        let mut contents = Contents::open(store, layers, tocs, tree, reporter)?;
        let mut first_names: HashMap<Inode, LayerPath> = HashMap::new();
        let chosen = tree.walk(&LayerPath::root());
        for (path, found) in chosen.filter(|(path, _)| select(path)) {
            let path = if directory.is_root() {
                path
            } else {
                path.components().fold((*directory).clone(), |at, name| at.join(name))
            };
            let mut entry = found.entry().clone();
            entry.path = path.clone();
            let kind = entry.kind.clone();
            entry.xattrs.retain(|name, _| !is_left_out(&kind, name));
            if !entry.is_directory()
                && let Some(first) = first_names.insert(found.inode, path.clone())
            {
                entry.kind = EntryKind::HardLink { target: first.clone() };
                first_names.insert(found.inode, first);
            }
            if let EntryKind::File { .. } = entry.kind {
                contents
                    .with(&found, |content| writer.add(entry, content))
                    .context(|| format!("cannot export `{path}`"))?;
            } else {
                writer.add(entry, &mut io::empty())?;
            }
            task.advance(found.entry().size());
        }
    }
    let (mut sink, layer) = writer.finish()?;
    sink.flush().doing(|| "cannot write the tar".to_owned())?;
    task.done("exported");
    Ok((sink, layer))
}

/// Writes the merged tree to a file, which becomes visible when it is complete, or to the pipe or
/// device that is at `path`.
pub fn to_file(
    store: &Store,
    image: &Image,
    path: &Path,
    compression: Compression,
    reporter: &dyn Reporter,
) -> Result<()> {
    all_to_file(store, &[(LayerPath::root(), image)], path, compression, reporter)
}

/// Writes the merged trees of several images to a file like [`to_file`], each in its directory.
pub fn all_to_file(
    store: &Store,
    images: &[(LayerPath, &Image)],
    path: &Path,
    compression: Compression,
    reporter: &dyn Reporter,
) -> Result<()> {
    let path = &match output::target(path)? {
        Target::Through(file) => {
            return all_to_writer(store, images, file, compression, reporter).map(drop);
        }
        Target::Replace(path) => path,
    };
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", random_hex()));
    let part = Path::new(&part);
    let file = File::create_new(part).path("create", part)?;
    let written = all_to_writer(store, images, file, compression, reporter)
        .and_then(|_| std::fs::rename(part, path).path("create", path));
    if written.is_err() {
        // Report the original error, not one from the cleanup.
        let _ = std::fs::remove_file(part);
    }
    written
}

/// The contents of all layers.
struct Contents {
    readers: Vec<ContentReader>,
}

impl Contents {
    fn open(
        store: &Store,
        layers: &[LayerOf],
        tocs: &[Arc<Toc>],
        tree: &Tree,
        reporter: &dyn Reporter,
    ) -> Result<Self> {
        let jumps = jumps_back(tree, layers.len());
        let mut readers = Vec::new();
        for ((layer, toc), jumps) in layers.iter().zip(tocs).zip(jumps) {
            // Seeking backward in a compressed layer means decompressing it again from the start
            // unless it has restart points. A hostile order would take too long.
            let digest = if jumps && toc.restarts.is_empty() {
                let task = reporter.start("decompressing", Unit::Bytes, Some(layer.blob.size));
                erofs::ensure_tar(store, layer, &*task)?;
                &layer.diff_id
            } else {
                &layer.blob.digest
            };
            let blob = store.open_blob(digest)?;
            readers.push(ContentReader::new(blob, Arc::clone(toc))?);
        }
        Ok(Self { readers })
    }

    fn with<T>(
        &mut self,
        found: &Found<'_>,
        act: impl FnOnce(&mut dyn io::Read) -> Result<T>,
    ) -> Result<T> {
        let reader = found
            .layer
            .and_then(|layer| self.readers.get_mut(layer))
            .ok_or_else(|| Error::failed("a file belongs to no layer"))?;
        act(&mut reader.open(found.entry)?)
    }
}

/// Returns, for each layer, whether the merged order of files differs from the order of its tar.
fn jumps_back(tree: &Tree, layers: usize) -> Vec<bool> {
    let mut reached = vec![0; layers];
    let mut jumps = vec![false; layers];
    for (path, found) in tree.walk(&LayerPath::root()) {
        let (Some(layer), EntryKind::File { size: 1.. }) = (found.layer, &found.entry().kind)
        else {
            continue;
        };
        if found.entry().path != path {
            // A hard link: no content is read for it.
            continue;
        }
        if found.entry.offset < reached[layer] {
            jumps[layer] = true;
        }
        reached[layer] = found.entry.offset;
    }
    jumps
}
