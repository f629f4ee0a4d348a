//! The build context: a directory filtered by its ignore rules. Files are examined in place;
//! nothing is ever copied out of the context or written to it.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::{Arc, Mutex};

use crate::build::items::{Content, Item, Node, SourceTree};
use crate::build::stat_cache::FileState;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{self, Visit};
use imgctl_kubefile::ignore::{IgnoreRules, ParentState};
use imgctl_store::layer::{Entry, EntryKind, LayerPath, Mtime};

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
}

impl ContextTree {
    /// `name` is used in messages (`the build context`).
    pub(super) fn new(name: String, root: Root, rules: IgnoreRules) -> Self {
        Self { name, root: Arc::new(root), rules, kept: Mutex::default() }
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

    /// Visits `start` and everything below it, until `enough` is set.
    fn walk(
        &self,
        start: &LayerPath,
        enough: &Cell<bool>,
        each: &mut dyn FnMut(Item) -> Result<()>,
    ) -> Result<()> {
        let on_the_way = |path: &[u8]| is_prefix(path, start.as_bytes());
        let wanted = |path: &[u8]| is_prefix(start.as_bytes(), path);
        let mut directory = (Vec::new(), ParentState::default());
        let mut visit = |path: &[u8], is_directory: bool| {
            if enough.get() {
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
        };
        let mut emit = |found: walk::Found<'_>| {
            let path = LayerPath::parse(found.path)?;
            let target = match found.metadata.kind {
                FileKind::Symlink => found.read_link()?,
                _ => Vec::new(),
            };
            self.item(path, &found.metadata, target).map_or(Ok(()), &mut *each)
        };
        walk::walk(&self.root, &mut visit, &mut emit)
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
        self.walk(&LayerPath::parse(directory)?, &found, &mut |_| {
            found.set(true);
            Ok(())
        })?;
        kept()?.insert(directory.to_vec(), found.get());
        Ok(found.get())
    }

    /// Returns `None` for a socket, which cannot be stored in an image.
    fn item(&self, path: LayerPath, metadata: &Metadata, target: Vec<u8>) -> Option<Item> {
        let (major, minor) = metadata.device;
        let kind = match metadata.kind {
            FileKind::File => EntryKind::File { size: metadata.size },
            FileKind::Directory => EntryKind::Directory,
            FileKind::Symlink => EntryKind::Symlink { target },
            FileKind::CharDevice => EntryKind::CharDevice { major, minor },
            FileKind::BlockDevice => EntryKind::BlockDevice { major, minor },
            FileKind::Fifo => EntryKind::Fifo,
            FileKind::Socket => return None,
        };
        // Owners belong to this machine and mean nothing in an image. The same is true of set-ID
        // bits (as in buildah and Docker).
        let mut entry = Entry::new(path.clone(), kind, metadata.mode & !SET_IDS);
        entry.mtime = Mtime { seconds: metadata.mtime.0, nanoseconds: metadata.mtime.1 };
        if !matches!(metadata.kind, FileKind::File | FileKind::Directory) {
            return Some(Item::bare(entry));
        }
        let is_linked = metadata.kind == FileKind::File && metadata.nlink > 1;
        Some(Item {
            entry,
            content: Content::Context {
                root: Arc::clone(&self.root),
                path,
                state: FileState::of(metadata),
            },
            digest: None,
            file: is_linked.then_some((metadata.dev, metadata.ino)),
            xattrs_unread: true,
        })
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
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
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
        let mut items = Vec::new();
        self.walk(path, &Cell::new(false), &mut |item| {
            items.push(item);
            Ok(())
        })?;
        Ok(items)
    }

    fn each_below(&self, path: &LayerPath, each: &mut dyn FnMut(Item) -> Result<()>) -> Result<()> {
        self.walk(path, &Cell::new(false), each)
    }

    fn is_ignored(&self, path: &LayerPath) -> bool {
        self.rules.matches(path.as_bytes()) && self.root.symlink_metadata(path.as_path()).is_ok()
    }
}

/// Returns an absolute context path as bytes, for the name of the stat cache.
pub(super) fn identity(path: &std::path::Path) -> Vec<u8> {
    path.as_os_str().to_owned().into_vec()
}
