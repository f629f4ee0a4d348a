//! Content of a layer: entries with the source of their bytes, and the trees that they are taken
//! from (a context, another stage, an image).

use std::collections::HashMap;
use std::fs::File;
use std::io::{Cursor, Read, Seek as _, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, OnceLock};

use crate::build::step_cache::FileState;
use crate::cache::remote::Remotes;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::metadata::Metadata;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::xattr::{self, Xattrs};
use imgctl_base::image::Digest;
use imgctl_base::progress::Silent;
use imgctl_layer::{Entry, EntryKind, LayerPath, Limits, Mtime, Names, TarReader, decompress};
use imgctl_store::store::Store;

/// Time of entries that the step itself creates (implied directories, heredocs). When the layer is
/// written, it becomes the newest time of the other entries, so that the layer does not depend on
/// the clock.
pub(crate) const NO_TIME: Mtime = Mtime { seconds: i64::MIN, nanoseconds: 0 };

/// One entry of a layer to be written, with the source of its bytes.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub entry: Entry,
    pub content: Content,
    /// BLAKE3 of the content, once known; always set for entries without content.
    pub digest: Option<[u8; 32]>,
    /// The same for all names of one file (hard links) in one source.
    pub file: Option<Box<(u64, u64)>>,
    /// The extended attributes have not been read yet; they are read when the file is opened.
    pub(crate) xattrs_unread: bool,
}

impl Item {
    /// Returns an entry without content.
    pub(super) fn bare(entry: Entry) -> Self {
        Self {
            entry,
            content: Content::None,
            digest: Some([0; 32]),
            file: None,
            xattrs_unread: false,
        }
    }
}

/// Number of items after which their memory is given back.
const RELEASED: usize = 16 << 10;

/// Gives memory back now and then, while items are taken from the end of `items`.
pub(super) fn release(items: &mut Vec<Item>) {
    if items.len().is_multiple_of(RELEASED) {
        items.shrink_to_fit();
    }
}

/// Puts `before` in front of `items`. The longer of the two keeps its memory: a copy of the items of a
/// large context costs the kernel more time than all that is done with them.
pub(super) fn prepend(mut before: Vec<Item>, items: &mut Vec<Item>) {
    if before.len() < items.len() {
        items.splice(..0, before);
    } else {
        before.append(items);
        *items = before;
    }
}

/// Brings `items` into layer order; those of the same path stay in theirs. Sorting takes half as much
/// memory again, and a walk gives them in order.
pub(super) fn sort(items: &mut [Item]) {
    if !items.is_sorted_by(|a, b| a.entry.path <= b.entry.path) {
        items.sort_by(|a, b| a.entry.path.cmp(&b.entry.path));
    }
}

/// Source of a file's bytes.
#[derive(Clone, Debug)]
pub(super) enum Content {
    None,
    /// In memory (heredocs).
    Bytes(Arc<[u8]>),
    /// A file below a context's root, in the state seen by the walk.
    Context {
        root: Arc<Root>,
        path: LayerPath,
        state: FileState,
    },
    /// A file below a RUN step's upper directory, which no other process changes.
    Upper {
        root: Arc<Root>,
        path: LayerPath,
    },
    /// A range of a scratch file (archives, downloads).
    Range {
        file: Arc<File>,
        offset: u64,
    },
    /// A sparse file in a layer, whose bytes are not contiguous.
    Sparse {
        layer: Arc<LayerTar>,
        path: LayerPath,
    },
    /// A range of a layer's uncompressed tar.
    Layer {
        layer: Arc<LayerTar>,
        offset: u64,
    },
}

/// The uncompressed tar of a stored layer, created on the first read and then kept open.
#[derive(Debug)]
pub(crate) struct LayerTar {
    store: Store,
    blob: Digest,
    /// Fetches the layer if it is not in the store yet.
    remotes: Arc<Remotes>,
    tar: OnceLock<Arc<File>>,
}

impl LayerTar {
    /// Returns the tar of the layer with the blob `blob`, which is in the store or among `remotes`.
    pub(super) fn new(store: &Store, blob: Digest, remotes: &Arc<Remotes>) -> Self {
        let remotes = Arc::clone(remotes);
        Self { store: store.clone(), blob, remotes, tar: OnceLock::new() }
    }

    /// Returns the tar as a file: the blob itself if it is not compressed, otherwise an unnamed
    /// copy.
    pub(super) fn open(&self) -> Result<Arc<File>> {
        if let Some(file) = self.tar.get() {
            return Ok(Arc::clone(file));
        }
        self.remotes.bring(&self.blob, &Silent)?;
        let blob = self.store.open_blob(&self.blob)?;
        let mut start = [0; 8];
        let length =
            blob.read_at(&mut start, 0).doing(|| format!("cannot read blob {}", self.blob))?;
        let file = match decompress::Format::sniff(&start[..length]) {
            decompress::Format::Plain => blob,
            _ => {
                let mut reader = decompress::decompress(blob)?.1;
                let mut spool = self.store.scratch_file()?;
                std::io::copy(&mut reader, &mut spool)
                    .doing(|| format!("cannot decompress layer {}", self.blob))?;
                spool
            }
        };
        Ok(Arc::clone(self.tar.get_or_init(|| Arc::new(file))))
    }
}

impl LayerTar {
    /// Returns the content of a sparse file, expanded.
    pub(crate) fn open_sparse(&self, path: &LayerPath) -> Result<Arc<File>> {
        let tar = self.open()?;
        let size = tar.metadata().doing(|| format!("cannot inspect layer {}", self.blob))?.len();
        let range = RangeReader::new(tar, 0, size);
        let mut reader = TarReader::new(range, Limits::default(), Names::Layer);
        while let Some(entry) = reader.next_entry()? {
            if entry.path == *path && entry.size() > 0 {
                let mut spool = self.store.scratch_file()?;
                std::io::copy(&mut reader, &mut spool).doing(|| format!("cannot read {path}"))?;
                return Ok(Arc::new(spool));
            }
        }
        Err(Error::bad_content(format!("{path} is not in layer {}", self.blob)))
    }
}

/// Reads a range of a shared file without moving its position.
pub(crate) struct RangeReader {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl RangeReader {
    /// Reads `length` bytes from `offset`.
    pub(super) fn new(file: Arc<File>, offset: u64, length: u64) -> Self {
        Self { file, offset, left: length }
    }
}

impl Read for RangeReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..wanted], self.offset)?;
        self.offset += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Rewinds a scratch file that has been written.
pub(crate) fn rewound(mut file: File) -> Result<Arc<File>> {
    file.seek(SeekFrom::Start(0)).doing(|| "cannot rewind a scratch file".to_owned())?;
    Ok(Arc::new(file))
}

/// Type of a path in a source tree; symlinks are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File,
    Directory,
    Symlink(Vec<u8>),
    Other,
}

/// A tree that COPY and ADD copy from.
pub(crate) trait SourceTree {
    /// Name for messages: `the build context`, `stage builder`.
    fn name(&self) -> String;

    /// Returns the node at `path`.
    fn node(&self, path: &LayerPath) -> Result<Option<Node>>;

    /// Returns the names in a directory, sorted.
    fn names(&self, directory: &LayerPath) -> Result<Vec<Vec<u8>>>;

    /// Returns `path` and everything below it, each directory before its content, with paths of
    /// this tree.
    fn below(&self, path: &LayerPath) -> Result<Vec<Item>>;

    /// Whether `path` exists but an ignore rule hides it.
    fn is_ignored(&self, _path: &LayerPath) -> bool {
        false
    }

    /// Whether `path` stands for the embedded registry, whose content the build adds at the end.
    fn is_embedded_registry(&self, _path: &LayerPath) -> bool {
        false
    }
}

/// Normalizes a path written by the user: `..` stops at the root (Dockerfile reference: sources are
/// clamped to the context).
pub(super) fn clamp(path: &[u8]) -> Result<LayerPath> {
    let mut clean = LayerPath::root();
    for component in path.split(|b| *b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => clean = clean.parent().unwrap_or_default(),
            _ if component.contains(&0) => return Err(Error::usage("a path contains a NUL byte")),
            _ => clean = clean.join(component),
        }
    }
    Ok(clean)
}

/// Maximum number of symlinks in one lookup, as in Linux.
const MAX_SYMLINKS: usize = 40;

/// Follows symlinks in `path` inside the tree, as in a `chroot`. Components that do not exist are
/// kept unchanged.
pub(super) fn follow(
    path: &LayerPath,
    node: &dyn Fn(&LayerPath) -> Result<Option<Node>>,
) -> Result<LayerPath> {
    let mut done = LayerPath::root();
    let mut todo: Vec<Vec<u8>> = path.components().rev().map(<[u8]>::to_vec).collect();
    let mut symlinks = 0;
    while let Some(component) = todo.pop() {
        match component.as_slice() {
            b"" | b"." => continue,
            b".." => {
                done = done.parent().unwrap_or_default();
                continue;
            }
            _ => {}
        }
        let next = done.join(&component);
        match node(&next)? {
            Some(Node::Symlink(target)) => {
                symlinks += 1;
                if symlinks > MAX_SYMLINKS {
                    return Err(Error::bad_content(format!("too many symlinks in {path}")));
                }
                if target.starts_with(b"/") {
                    done = LayerPath::root();
                }
                todo.extend(target.split(|b| *b == b'/').rev().map(<[u8]>::to_vec));
            }
            _ => done = next,
        }
    }
    Ok(done)
}

/// Turns additional names of one file into hard links to its first name, within one layer.
pub(crate) fn link_names(items: &mut [Item]) {
    let mut first: HashMap<(u64, u64), LayerPath> = HashMap::new();
    for item in items {
        let is_file = matches!(item.entry.kind, EntryKind::File { .. });
        let Some(file) = item.file.as_deref().copied().filter(|_| is_file) else { continue };
        if let Some(target) = first.get(&file) {
            item.entry.kind = EntryKind::HardLink { target: target.clone() };
            item.entry.xattrs.clear();
            item.content = Content::None;
            item.digest = Some([0; 32]);
            item.xattrs_unread = false;
        } else {
            first.insert(file, item.entry.path.clone());
        }
    }
}

/// An item's content, opened for reading.
pub(crate) enum Opened {
    /// A file of the context, which may change while it is read.
    Context(File),
    Other(Box<dyn Read>),
}

impl Read for Opened {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Context(file) => file.read(buffer),
            Self::Other(reader) => reader.read(buffer),
        }
    }
}

impl Opened {
    /// Opens an item's content, and reads its extended attributes if that has not happened yet.
    pub(super) fn open(item: &mut Item) -> Result<Self> {
        let size = item.entry.size();
        let opened = match &item.content {
            Content::None => Self::Other(Box::new(std::io::empty())),
            Content::Bytes(bytes) => Self::Other(Box::new(Cursor::new(Arc::clone(bytes)))),
            Content::Range { file, offset } => {
                Self::Other(Box::new(RangeReader::new(Arc::clone(file), *offset, size)))
            }
            Content::Upper { root, path } => Self::Other(Box::new(root.open_file(path.as_path())?)),
            Content::Layer { layer, offset } => {
                Self::Other(Box::new(RangeReader::new(layer.open()?, *offset, size)))
            }
            Content::Sparse { layer, path } => {
                Self::Other(Box::new(RangeReader::new(layer.open_sparse(path)?, 0, size)))
            }
            Content::Context { root, path, .. } if !item.entry.is_directory() => {
                let file = root.open_file(path.as_path())?;
                if item.xattrs_unread {
                    item.entry.xattrs = layer_xattrs(&file, path)?;
                    item.xattrs_unread = false;
                }
                Self::Context(file)
            }
            Content::Context { .. } => Self::Other(Box::new(std::io::empty())),
        };
        if item.xattrs_unread {
            read_xattrs(item)?;
        }
        Ok(opened)
    }

    /// Fails if the file differs from the one that the walk saw: its digest would match neither
    /// state.
    pub(super) fn check(&self, item: &Item) -> Result<()> {
        let (Self::Context(file), Content::Context { path, state, .. }) = (self, &item.content)
        else {
            return Ok(());
        };
        let now = FileState::of(&Metadata::of(file).path("look at", path.as_path())?);
        if now == *state {
            return Ok(());
        }
        Err(Error::new(Kind::Busy, format!("{} changed while it was being read", item.entry.path))
            .hint("build again while nothing writes to the context"))
    }
}

pub(super) fn read_xattrs(item: &mut Item) -> Result<()> {
    if let Content::Context { root, path, .. } = &item.content {
        item.entry.xattrs = if item.entry.is_directory() {
            layer_xattrs(root.open_directory(path.as_path())?, path)?
        } else {
            layer_xattrs(root.open_file(path.as_path())?, path)?
        };
    }
    item.xattrs_unread = false;
    Ok(())
}

/// Returns the extended attributes of a context's file that belong in a layer. Those set by the host's own
/// policies (labels, ACLs of host users) must not leak into an image, and a checkout makes no program
/// privileged: neither by a set-user-ID bit nor by `security.capability` (BuildKit).
fn layer_xattrs(file: impl AsFd, path: &LayerPath) -> Result<Xattrs> {
    let all = xattr::read(file).path("read the extended attributes of", path.as_path())?;
    // Readers disagree about an attribute without a value.
    let is_kept = |name: &[u8], value: &[u8]| name.starts_with(b"user.") && !value.is_empty();
    Ok(all.into_iter().filter(|(name, value)| is_kept(name, value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> LayerPath {
        LayerPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn sources_are_clamped() {
        assert_eq!(clamp(b"/../../a/./b/../c").unwrap().as_bytes(), b"a/c");
    }

    #[test]
    fn symlinks_are_followed_inside_the_tree() {
        let links: HashMap<&str, &str> = HashMap::from([
            ("bin", "usr/bin"),
            ("abs", "/etc"),
            ("out", "../../../etc"),
            ("loop", "loop"),
            ("usr/up", ".."),
        ]);
        let node = |path: &LayerPath| {
            let text = String::from_utf8_lossy(path.as_bytes()).into_owned();
            Ok(links.get(text.as_str()).map(|target| Node::Symlink(target.as_bytes().to_vec())))
        };
        for (from, to) in [
            ("bin/sh", "usr/bin/sh"),
            ("abs/x", "etc/x"),
            ("out/passwd", "etc/passwd"),
            ("usr/up/new", "new"),
            ("plain/dir", "plain/dir"),
        ] {
            assert_eq!(follow(&path(from), &node).unwrap(), path(to), "{from}");
        }
        assert!(follow(&path("loop"), &node).is_err());
    }
}
