//! The trees that COPY and ADD copy from. A build context is a directory filtered by its ignore
//! rules: files are examined in place; nothing is ever copied out of it or written to it. A stage or
//! a stored image is looked up in the merged tables of contents and read from the layers' tars,
//! never unpacked.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::build::copy::node_of;
use crate::build::items::{Content, Item, LayerTar, Node, SourceTree, prepend, sort};
use crate::build::step_cache::FileState;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{self, Visit};
use imgctl_embed::plan::DIRECTORY;
use imgctl_kubefile::ignore::{IgnoreRules, ParentState};
use imgctl_layer::tree::Tree;
use imgctl_layer::{Entry, EntryKind, LayerPath, Mtime};

/// The set-user-ID and set-group-ID bits.
const SET_IDS: u32 = 0o6000;

/// A directory that files are copied from.
#[derive(Debug)]
pub(crate) struct ContextTree {
    name: String,
    root: Arc<Root>,
    rules: IgnoreRules,
    /// Whether exceptions keep any file below a directory that is itself excluded.
    kept: Mutex<HashMap<Vec<u8>, bool>>,
    /// Set if the build embeds images and `registry` does not exist. sealos creates that directory
    /// in the context before it builds, so that Kubefiles copy it.
    has_embedded_registry: bool,
    /// The part that was listed last.
    listed: Mutex<Option<Listed>>,
}

/// A part of a context: the search for images lists the manifests just before `COPY` does.
#[derive(Debug)]
struct Listed {
    start: LayerPath,
    at: Instant,
    /// In layer order.
    items: Vec<Item>,
    /// The item after the one asked for last: whoever asks goes through the items in their order.
    next: usize,
}

/// How long a listing counts as current. A file that changes meanwhile is noticed when it is
/// read.
const PRESENT: Duration = Duration::from_secs(2);
/// Maximum number of threads that walk a context.
const THREADS: usize = 8;

impl ContextTree {
    /// `name` is used in messages (`the build context`).
    pub(super) fn new(name: String, root: Root, rules: IgnoreRules) -> Self {
        let root = Arc::new(root);
        let (kept, listed) = (Mutex::default(), Mutex::default());
        Self { name, root, rules, kept, has_embedded_registry: false, listed }
    }

    /// Keeps the items below `start`, in layer order, for the next walk over them, unless more are kept.
    pub(super) fn keep(&self, start: LayerPath, items: Vec<Item>) {
        if let Ok(mut listed) = self.listed.lock()
            && listed.as_ref().is_none_or(|kept| kept.items.len() <= items.len())
        {
            *listed = Some(Listed { start, at: Instant::now(), items, next: 0 });
        }
    }

    /// Returns the state of a file among the items that are kept.
    pub(super) fn listed(&self, path: &[u8]) -> Option<FileState> {
        let mut listed = self.listed.lock().ok()?;
        let Listed { items, next, .. } = listed.as_mut()?;
        if items.get(*next).is_none_or(|item| item.entry.path.as_bytes() != path) {
            *next = items.binary_search_by(|item| item.entry.path.as_bytes().cmp(path)).ok()?;
        }
        let item = items.get(*next)?;
        *next += 1;
        match &item.content {
            Content::Context { state, .. } => Some(*state),
            _ => None,
        }
    }

    /// Takes the items that are kept, if they lie below `start` and are recent.
    fn take_listed(&self, start: &LayerPath) -> Option<Listed> {
        let mut listed = self.listed.lock().ok()?;
        let is_part =
            |listed: &mut Listed| listed.start.starts_with(start) && listed.at.elapsed() < PRESENT;
        listed.take_if(is_part)
    }

    /// Lets `COPY registry registry` stand for the images that the build embeds, unless the context
    /// has a directory of that name.
    pub(super) fn add_embedded_registry(&mut self) {
        self.has_embedded_registry = self.root.symlink_metadata(DIRECTORY.as_ref()).is_err();
    }

    /// Whether the ignore rules hide a source of `COPY` or `ADD`, whether or not it exists.
    pub(crate) fn hides(&self, source: &str) -> bool {
        self.rules.hides_source(source)
    }

    /// Whether there are any ignore rules.
    pub(crate) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Returns the directory on disk.
    pub(super) fn path(&self) -> &std::path::Path {
        self.root.path()
    }

    /// Opens a file of the context.
    pub(super) fn open(&self, path: &LayerPath) -> Result<std::fs::File> {
        self.root.open_file(path.as_path())
    }

    /// Returns what to do with each path, if `start` and everything below it except `skip` is wanted.
    fn visitor<'a>(
        &'a self,
        start: &'a LayerPath,
        skip: Option<&'a LayerPath>,
    ) -> impl FnMut(&[u8], bool) -> Visit + use<'a> {
        let on_the_way = |path: &[u8]| is_prefix(path, start.as_bytes());
        let wanted = |path: &[u8]| is_prefix(start.as_bytes(), path);
        let mut directory = (Vec::new(), ParentState::default());
        move |path: &[u8], is_directory: bool| {
            if skip.is_some_and(|skip| skip.as_bytes() == path) {
                return Visit::Prune;
            }
            if !wanted(path) {
                return if is_directory && on_the_way(path) { Visit::Skip } else { Visit::Prune };
            }
            if self.rules.is_empty() {
                return Visit::Keep;
            }
            let parent = parent_of(path);
            if parent != directory.0 {
                directory = (parent.to_vec(), state_in(&self.rules, parent));
            }
            if !self.rules.excludes(&directory.1, path) {
                Visit::Keep
            } else if is_directory
                && !self.rules.may_prune_dir(&self.rules.enter(&directory.1, path), path)
            {
                Visit::Skip
            } else {
                Visit::Prune
            }
        }
    }

    /// Whether the rules exclude `path` from the context. An excluded directory is still part of it
    /// if an exception keeps something below.
    fn is_hidden(&self, path: &[u8], is_directory: bool) -> Result<bool> {
        let parent = state_in(&self.rules, parent_of(path));
        if !self.rules.excludes(&parent, path) {
            return Ok(false);
        }
        let may_prune = || self.rules.may_prune_dir(&self.rules.enter(&parent, path), path);
        Ok(!is_directory || may_prune() || !self.keeps_below(path)?)
    }

    /// An exception that matches no file keeps nothing, so the files must be examined.
    fn keeps_below(&self, directory: &[u8]) -> Result<bool> {
        let kept = || {
            let died = |_| Error::failed("another stage of the build has failed");
            self.kept.lock().map_err(died)
        };
        if let Some(known) = kept()?.get(directory) {
            return Ok(*known);
        }
        let found = Cell::new(false);
        let start = LayerPath::parse(directory)?;
        let mut decide = self.visitor(&start, None);
        let mut visit = |path: &[u8], is_directory: bool| {
            if found.get() { Visit::Prune } else { decide(path, is_directory) }
        };
        walk::walk(&self.root, &mut visit, &mut |one| {
            found.set(found.get() || EntryKind::of(&one)?.is_some());
            Ok(())
        })?;
        kept()?.insert(directory.to_vec(), found.get());
        Ok(found.get())
    }

    fn item(&self, path: LayerPath, kind: EntryKind, metadata: &Metadata) -> Item {
        // Owners belong to this machine and mean nothing in an image. The same is true of set-ID
        // bits (as in buildah and Docker).
        let mut entry = Entry::new(path.clone(), kind, metadata.mode & !SET_IDS);
        entry.mtime = Mtime { seconds: metadata.mtime.0, nanoseconds: metadata.mtime.1 };
        if !matches!(metadata.kind, FileKind::File | FileKind::Directory) {
            return Item::bare(entry);
        }
        let is_linked = metadata.kind == FileKind::File && metadata.nlink > 1;
        Item {
            entry,
            content: Content::Context {
                root: Arc::clone(&self.root),
                path,
                state: FileState::of(metadata),
            },
            digest: None,
            file: is_linked.then(|| Box::new((metadata.dev, metadata.ino))),
            xattrs_unread: true,
        }
    }
}

fn parent_of(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |at| &path[..at])
}

/// Returns the state of the rules for the content of `directory`.
fn state_in(rules: &IgnoreRules, directory: &[u8]) -> ParentState {
    let mut state = ParentState::default();
    if directory.is_empty() {
        return state;
    }
    let ends = directory.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    for end in ends.chain([directory.len()]) {
        state = rules.enter(&state, &directory[..end]);
    }
    state
}

fn is_prefix(start: &[u8], path: &[u8]) -> bool {
    start.is_empty()
        || path.strip_prefix(start).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

impl SourceTree for ContextTree {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn node(&self, path: &LayerPath) -> Result<Option<Node>> {
        if path.is_root() {
            return Ok(Some(Node::Directory));
        }
        let metadata = match self.root.symlink_metadata(path.as_path()) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == Kind::NotFound => {
                return Ok(self.is_embedded_registry(path).then_some(Node::Directory));
            }
            Err(error) => return Err(error),
        };
        if self.is_hidden(path.as_bytes(), metadata.is_directory())? {
            return Ok(None);
        }
        Ok(Some(match metadata.kind {
            FileKind::File => Node::File,
            FileKind::Directory => Node::Directory,
            FileKind::Symlink => {
                Node::Symlink(self.root.read_link(path.as_path())?.as_bytes().to_vec())
            }
            _ => Node::Other,
        }))
    }

    fn names(&self, directory: &LayerPath) -> Result<Vec<Vec<u8>>> {
        let fd = self.root.open_directory(directory.as_path())?;
        let names = imgctl_base::fs::directory::names(fd).map_err(|error| {
            Error::io(format!("cannot list {directory} of {}", self.name), error)
        })?;
        let mut shown = Vec::new();
        for found in names {
            let is_directory = found.kind == FileKind::Directory;
            let name = found.name.into_bytes();
            if !self.is_hidden(directory.join(&name).as_bytes(), is_directory)? {
                shown.push(name);
            }
        }
        shown.sort_unstable();
        Ok(shown)
    }

    fn below(&self, path: &LayerPath) -> Result<Vec<Item>> {
        let listed = self.take_listed(path);
        let skip = listed.as_ref().map(|listed| &listed.start);
        // Examining files is the kernel's work, which one core does not do faster than `find`.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let visitor = || -> walk::Visitor<'_> { Box::new(self.visitor(path, skip)) };
        let found = walk::walk_in_parallel(&self.root, threads, &visitor, &|found| {
            let kind = EntryKind::of(&found)?;
            Ok(kind.map(|kind| self.item(LayerPath::found(&found), kind, &found.metadata)))
        })?;
        let mut items = listed.map_or_else(Vec::new, |listed| listed.items);
        prepend(found, &mut items);
        sort(&mut items);
        Ok(items)
    }

    fn is_ignored(&self, path: &LayerPath) -> bool {
        self.rules.matches(path.as_bytes()) && self.root.symlink_metadata(path.as_path()).is_ok()
    }

    fn is_embedded_registry(&self, path: &LayerPath) -> bool {
        self.has_embedded_registry && path.as_bytes() == DIRECTORY.as_bytes()
    }
}

/// Returns an absolute context path as bytes, for the name of the stat cache.
pub(super) fn identity(path: &std::path::Path) -> Vec<u8> {
    path.as_os_str().to_owned().into_vec()
}

/// The merged tree of some layers, and access to their bytes.
#[derive(Clone, Debug)]
pub(crate) struct ImageTree {
    name: String,
    tree: Arc<Tree>,
    /// One for each layer of the tree.
    tars: Vec<Arc<LayerTar>>,
}

impl ImageTree {
    /// `name` is used in messages.
    pub(super) fn new(name: String, tree: Arc<Tree>, tars: Vec<Arc<LayerTar>>) -> Self {
        Self { name, tree, tars }
    }

    /// Returns the size of the regular file at `path`, following symlinks.
    pub(crate) fn file_size(&self, path: &LayerPath) -> Option<u64> {
        let path = self.tree.resolve(path).ok()?;
        match self.tree.lookup(&path)?.entry.entry.kind {
            EntryKind::File { size } => Some(size),
            _ => None,
        }
    }

    /// Returns the whole content of a small file (`/etc/passwd`), following symlinks; `None` if it
    /// does not exist or is larger than `limit` bytes.
    pub(crate) fn read_small(&self, path: &LayerPath, limit: u64) -> Result<Option<Vec<u8>>> {
        use std::io::Read as _;
        let path = self.tree.resolve(path)?;
        let Some(found) = self.tree.lookup(&path) else {
            return Ok(None);
        };
        let size = found.entry.entry.size();
        let Some(tar) = found.layer.and_then(|layer| self.tars.get(layer)) else {
            return Ok(None);
        };
        if size > limit || found.entry.entry.is_directory() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        crate::build::items::RangeReader::new(tar.open()?, found.entry.offset, size)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io(format!("cannot read {path} of {}", self.name), error))?;
        Ok(Some(bytes))
    }
}

impl SourceTree for ImageTree {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn node(&self, path: &LayerPath) -> Result<Option<Node>> {
        Ok(node_of(&self.tree, path))
    }

    fn names(&self, directory: &LayerPath) -> Result<Vec<Vec<u8>>> {
        if node_of(&self.tree, directory) != Some(Node::Directory) {
            return Err(Error::not_found(format!(
                "{directory} is not a directory of {}",
                self.name
            )));
        }
        Ok(self.tree.children(directory).map(|(name, _)| name.to_vec()).collect())
    }

    fn below(&self, path: &LayerPath) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        for (path, found) in self.tree.walk(path) {
            let entry = Entry { path, ..found.entry.entry.clone() };
            let is_file = matches!(entry.kind, EntryKind::File { .. });
            let tar = found.layer.filter(|_| is_file).and_then(|layer| self.tars.get(layer));
            let content = match tar {
                Some(tar) if found.entry.offset == 0 && entry.size() > 0 => {
                    let path = found.entry.entry.path.clone();
                    Content::Sparse { layer: Arc::clone(tar), path }
                }
                Some(tar) => Content::Layer { layer: Arc::clone(tar), offset: found.entry.offset },
                None => Content::None,
            };
            let digest = if is_file { found.entry.content } else { Some([0; 32]) };
            let file = Box::new((0, found.inode.number()));
            items.push(Item { entry, content, digest, file: Some(file), xattrs_unread: false });
        }
        Ok(items)
    }
}
