//! The erofs back end: one index over the tars of all layers, mounted without unpacking anything.
//! Whiteouts, replacements and links are resolved when the index is written, so the result is one
//! file system regardless of the number of layers.
//!
//! Requires a kernel that mounts EROFS from files (6.12).

mod format;
mod image;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::Device;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use crate::mount::fs_context::FsContext;
use crate::mount::layers::{self, LayerOf};
use crate::store::Store;
use crate::store::images::Image;
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::progress::{Reporter, Task, Unit};
use imgctl_layer::scan::{Expected, scan_into};
use imgctl_layer::tree::{Found, Tree};
use imgctl_layer::{ContentReader, Toc};

/// Maximum length of a value for `fsconfig`, in bytes.
const MAX_VALUE: usize = 255;
/// `f_type` of tmpfs: the kernel does not mount files from it.
const TMPFS: i64 = 0x0102_1994;

/// An image's merged tree and the locations of its contents.
#[derive(Debug)]
pub(crate) struct Index {
    tree: Tree,
    tocs: Vec<Arc<Toc>>,
    devices: Vec<(Device, PathBuf)>,
}

/// Returns whether this back end is faster here: an overlay would require unpacking, and an index
/// would not.
pub(crate) fn is_better(store: &Store, image: &Image) -> Result<bool> {
    let layers = layers::distinct(image);
    let has_snapshot = |layer: &LayerOf| store.snapshot(&layer.diff_id).is_some();
    if layers.is_empty() || layers.iter().all(has_snapshot) {
        return Ok(false);
    }
    for layer in &layers {
        if !is_here(store, layer)? {
            return Ok(false);
        }
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    Ok(known.lines().any(|line| line.trim() == "erofs"))
}

/// Collects the inputs of the index and decompresses the layers whose tars are missing.
pub(crate) fn ensure(store: &Store, image: &Image, reporter: &dyn Reporter) -> Result<Index> {
    let layers = layers::distinct(image);
    let total = layers.iter().map(|layer| layer.blob.size).sum();
    let task = reporter.start("indexing layers", Unit::Bytes, Some(total));
    let mut devices = Vec::new();
    let mut tocs = Vec::new();
    let mut tree = Tree::new();
    for layer in &layers {
        ensure_tar(store, layer, &*task)?;
        let size = store.blob_size(&layer.diff_id)?.unwrap_or(0);
        let device = Device { tag: layer.diff_id.hex().to_owned(), size };
        let path = store.blob_path(&layer.diff_id);
        devices.push((device, std::path::absolute(&path).path("find", &path)?));
        let toc = Arc::new(store.toc(&layer.blob.digest, &layer.diff_id)?);
        tree.apply(Arc::clone(&toc))?;
        tocs.push(toc);
    }
    task.done("indexed layers");
    Ok(Index { tree, tocs, devices })
}

impl Index {
    /// Writes the index into `workspace` and mounts it read-only at `target`.
    pub(crate) fn attach(&self, workspace: &Path, target: &Path) -> Result<()> {
        let context = FsContext::open("erofs").map_err(|errno| match errno {
            Errno::NODEV | Errno::NOSYS => {
                Error::new(Kind::Denied, "this kernel does not support EROFS")
                    .hint("use --backend overlay")
            }
            errno => Error::io("cannot open an EROFS file system", errno),
        })?;
        let index = self.write(workspace)?;
        context.string("source", &descriptor_path(&index))?;
        // Descriptors must stay open until the kernel has opened the files itself.
        let mut opened = Vec::new();
        for (_, path) in &self.devices {
            match path.to_str().filter(|path| path.len() <= MAX_VALUE) {
                Some(path) => context.string("device", path)?,
                None => {
                    let file = File::open(path).path("open", path)?;
                    context.string("device", &descriptor_path(&file))?;
                    opened.push(file);
                }
            }
        }
        context.mount(target, MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV)
    }

    fn write(&self, workspace: &Path) -> Result<File> {
        let file = index_file(workspace)?;
        let devices: Vec<Device> = self.devices.iter().map(|(device, _)| device.clone()).collect();
        let mut writer = BufWriter::with_capacity(1 << 20, &file);
        let mut copy = |found: &Found<'_>, out: &mut dyn Write| self.copy(found, out);
        image::write(&self.tree, &devices, &mut copy, &mut writer)?;
        writer.flush().doing(|| "cannot write the index".to_owned())?;
        drop(writer);
        Ok(file)
    }

    fn copy(&self, found: &Found<'_>, out: &mut dyn Write) -> Result<()> {
        let layer = found.layer.unwrap_or(self.devices.len());
        let (Some((_, path)), Some(toc)) = (self.devices.get(layer), self.tocs.get(layer)) else {
            return Err(Error::failed("a file belongs to no layer"));
        };
        let mut reader = ContentReader::new(File::open(path).path("open", path)?, Arc::clone(toc))?;
        let mut content = reader.open(found.entry)?;
        std::io::copy(&mut content, out)
            .doing(|| format!("cannot index `{}`", found.entry().path))?;
        Ok(())
    }
}

/// Creates a file in the workspace or, if that is on a tmpfs, an unnamed one that exists until the
/// mount ends.
fn index_file(workspace: &Path) -> Result<File> {
    let kind = rustix::fs::statfs(workspace).path("examine", workspace)?.f_type;
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if kind == TMPFS {
        let elsewhere = Path::new("/var/tmp");
        return rustix::fs::open(elsewhere, flags | OFlags::TMPFILE, mode)
            .map(File::from)
            .path("create a file in", elsewhere);
    }
    let path = workspace.join("index.erofs");
    rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)
        .map(File::from)
        .path("create", &path)
}

fn descriptor_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Returns whether the tar is in the store.
fn is_here(store: &Store, layer: &LayerOf) -> Result<bool> {
    Ok(store.blob_size(&layer.diff_id)?.is_some())
}

/// Decompresses the layer's blob if its tar is missing; the tar becomes visible only if its digest
/// matches the diff-id.
pub(crate) fn ensure_tar(store: &Store, layer: &LayerOf, task: &dyn Task) -> Result<()> {
    if is_here(store, layer)? {
        return Ok(());
    }
    decompress_tar(store, layer, task)
        .context(|| format!("cannot decompress layer {}", layer.blob.digest))
}

/// Writes the tar while it is hashed, and in the same pass makes a missing table of contents.
fn decompress_tar(store: &Store, layer: &LayerOf, task: &dyn Task) -> Result<()> {
    let mut ingest = store.ingest()?;
    let expected = Expected { digest: None, size: None, diff_id: Some(&layer.diff_id) };
    let blob = store.open_blob(&layer.blob.digest)?;
    let wanted = !store.has_toc(&layer.blob.digest, &layer.diff_id);
    let scanned = scan_into(blob, expected, store.limits(), &mut ingest, wanted)?;
    task.advance(layer.blob.size);
    store.commit(ingest, &layer.diff_id)?;
    if wanted { store.put_toc(&layer.blob.digest, &layer.diff_id, &scanned.toc) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
