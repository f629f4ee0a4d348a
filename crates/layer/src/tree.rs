//! The merged view of an image: the tables of contents of its layers with whiteouts, opaque markers
//! and replacements applied, without unpacking anything.
//!
//! Paths are lexical: an entry below a symlink of a lower layer replaces the symlink with a
//! directory, as in per-layer snapshots. Must not depend on where blobs are stored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

mod compare;
mod names;

use self::names::{Names, Place};
use crate::whiteout::{self, Marker};
use crate::{Entry, EntryKind, LayerPath, Toc, TocEntry, links};
pub use compare::{Change, compare};
use imgctl_base::error::{Error, Result};

/// Maximum number of symlinks followed per look-up, as in Linux.
const MAX_SYMLINKS: usize = 40;

/// Maximum length of a path with symlinks expanded, in bytes (PATH_MAX); the kernel cannot look up
/// longer ones.
const MAX_EXPANDED: usize = 4096;

/// Identifies the file behind a name: names with the same number are hard links to one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode {
    layer: u32,
    index: u32,
}

/// The `layer` of directories that no layer lists.
const IMPLIED: u32 = u32::MAX;

/// Maximum number of implied directories. Real images have almost none, while a malicious name of 4
/// KiB implies two thousand.
const MAX_IMPLIED: usize = 1 << 20;

impl Inode {
    /// Returns the index among the entries of its layer.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Returns the identifier as one number, unique in its tree.
    pub fn number(self) -> u64 {
        u64::from(self.layer) << 32 | u64::from(self.index)
    }
}

/// What a name of the merged tree refers to.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Index of the layer that holds metadata and content, lowest first; `None` for a directory
    /// that no layer lists but that contains an entry.
    pub layer: Option<usize>,
    /// The file itself. For an additional hard link, this is the entry of the first name: its kind
    /// is never [`EntryKind::HardLink`], and its path may differ from the one that was looked up.
    pub entry: &'a TocEntry,
    /// Identifier of the file.
    pub inode: Inode,
}

impl<'a> Found<'a> {
    /// Returns kind and metadata.
    pub fn entry(&self) -> &'a Entry {
        &self.entry.entry
    }
}

/// The merged tree of any number of layers, starting with the lowest.
#[derive(Clone, Debug)]
pub struct Tree {
    layers: Vec<Arc<Toc>>,
    /// The entry of every directory that no layer lists: 0755, owned by root, time 0.
    implied: TocEntry,
    /// The names of those directories.
    implied_names: Vec<Box<[u8]>>,
    /// The first node is the root. Removed subtrees remain as unreachable nodes, because trees are
    /// short-lived.
    nodes: Vec<Node>,
    directories: Vec<Directory>,
    /// The files behind the nodes whose entries are hard links.
    links: BTreeMap<u32, Inode>,
}

/// A path. There are millions, so what only some have is elsewhere.
#[derive(Clone, Debug)]
struct Node {
    /// The entry of this path; in the layer [`IMPLIED`], the index of its name.
    own: Inode,
    /// Index of the directory, or [`FILE`].
    directory: u32,
}

/// The `directory` of everything else.
const FILE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Directory {
    /// The last layer with an entry (not only a marker) at this path or below it.
    used_by: u32,
    names: Names,
}

impl Node {
    fn is_directory(&self) -> bool {
        self.directory != FILE
    }
}

const ROOT: u32 = 0;

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// Creates a tree without layers: an empty root with mode 0755.
    pub fn new() -> Self {
        let root = Entry::new(LayerPath::root(), EntryKind::Directory, 0o755);
        Self {
            layers: Vec::new(),
            implied: TocEntry { entry: root, offset: 0, content: None },
            implied_names: vec![Box::default()],
            nodes: vec![Node { own: Inode { layer: IMPLIED, index: 0 }, directory: 0 }],
            directories: vec![Directory { used_by: IMPLIED, names: Names::default() }],
            links: BTreeMap::new(),
        }
    }

    /// Builds the tree of an image from its layers, lowest first.
    pub fn from_layers(layers: impl IntoIterator<Item = Arc<Toc>>) -> Result<Self> {
        let mut tree = Self::new();
        for toc in layers {
            tree.apply(toc)?;
        }
        Ok(tree)
    }

    /// Adds a layer on top. Fails on everything that cannot be unpacked: hard links to missing
    /// files, malformed whiteouts, character devices 0/0. After a failure, the tree must not be
    /// used.
    pub fn apply(&mut self, toc: impl Into<Arc<Toc>>) -> Result<()> {
        let toc = toc.into();
        let too_many = || Error::bad_content("a layer has more entries than can be counted");
        let layer = u32::try_from(self.layers.len()).map_err(|_| too_many())?;
        u32::try_from(toc.entries.len()).map_err(|_| too_many())?;
        self.layers.push(Arc::clone(&toc));
        // Markers affect only the layers below, wherever they are in the tar: apply them first.
        let mut is_marker = vec![false; toc.entries.len()];
        let mut opaque = BTreeSet::new();
        // Targets of hard links that precede the marker which deletes or replaces the target.
        let mut outlived: BTreeMap<usize, Inode> = BTreeMap::new();
        for (index, (listed, is_marker)) in toc.entries.iter().zip(&mut is_marker).enumerate() {
            if let EntryKind::HardLink { target } = &listed.entry.kind
                && let Some(found) = self.file_at(target)
                && !is_implied_by(&opaque, target)
            {
                outlived.insert(index, found);
            }
            let marker = whiteout::marker(&listed.entry.path)?;
            *is_marker = marker != Marker::None;
            match marker {
                Marker::Whiteout(path) => self.remove(&path),
                Marker::Opaque(directory) => {
                    if let Some(node) = self.find(&directory) {
                        self.clear(node);
                    }
                    opaque.insert(directory);
                }
                Marker::None | Marker::Leftover => {}
            }
        }
        // An opaque directory exists even if it is not listed.
        for directory in &opaque {
            self.make_directories(directory, None)?;
        }
        outlived.retain(|index, _| match &toc.entries[*index].entry.kind {
            EntryKind::HardLink { target } => self.file_at(target).is_none(),
            _ => false,
        });
        let mut parent_of_last = (LayerPath::root(), ROOT);
        for (index, listed) in toc.entries.iter().enumerate() {
            if !is_marker[index] {
                let outlived = outlived.get(&index).copied();
                let index = u32::try_from(index).map_err(|_| too_many())?;
                let own = Inode { layer, index };
                self.add(&listed.entry, own, outlived, &mut parent_of_last)?;
            }
        }
        Ok(())
    }

    /// Returns the number of entries of all layers. Each takes about two hundred bytes.
    pub fn entries(&self) -> u64 {
        self.layers.iter().map(|toc| toc.entries.len() as u64).sum()
    }

    /// Returns the file that `path` refers to, without following symlinks.
    pub fn lookup(&self, path: &LayerPath) -> Option<Found<'_>> {
        self.find(path).and_then(|node| self.found(node))
    }

    /// Returns the names in a directory, sorted bytewise; empty for non-directories.
    pub fn children(&self, directory: &LayerPath) -> impl Iterator<Item = (&[u8], Found<'_>)> {
        self.find(directory)
            .into_iter()
            .flat_map(|node| self.children_of(node))
            .filter_map(|child| Some((self.name(child), self.found(child)?)))
    }

    /// Resolves every symlink in `path`, including the last component. Targets are interpreted
    /// inside the root, `..` stops there, and missing components remain as they are. Fails on a
    /// loop.
    pub fn resolve(&self, path: &LayerPath) -> Result<LayerPath> {
        self.follow(path, true)
    }

    /// Like [`Tree::resolve`], but does not follow the last component.
    pub fn resolve_parent(&self, path: &LayerPath) -> Result<LayerPath> {
        self.follow(path, false)
    }

    /// Iterates over everything at and below `start` with full paths, each directory before its
    /// content and names sorted bytewise; empty if `start` does not exist.
    pub fn walk(&self, start: &LayerPath) -> Walk<'_> {
        let start = self.find(start).map(|node| (start.clone(), node));
        Walk { tree: self, start, stack: Vec::new() }
    }

    fn found(&self, node: u32) -> Option<Found<'_>> {
        let inode = self.inode(node)?;
        Some(match self.entry(inode) {
            Some(entry) => Found { layer: Some(inode.layer as usize), entry, inode },
            None => Found { layer: None, entry: &self.implied, inode },
        })
    }

    /// Returns the file behind a node.
    fn inode(&self, node: u32) -> Option<Inode> {
        let own = self.nodes.get(node as usize)?.own;
        // Few nodes are links, and those that are not need no search.
        let is_link = self
            .entry(own)
            .is_some_and(|listed| matches!(listed.entry.kind, EntryKind::HardLink { .. }));
        if is_link { self.links.get(&node).copied() } else { Some(own) }
    }

    /// Returns an entry; `None` for a directory that no layer lists.
    fn entry(&self, inode: Inode) -> Option<&TocEntry> {
        self.layers.get(inode.layer as usize)?.entries.get(inode.index as usize)
    }

    /// Returns the last component of a node's path.
    fn name(&self, node: u32) -> &[u8] {
        let Some(Node { own, .. }) = self.nodes.get(node as usize) else { return &[] };
        match self.entry(*own) {
            Some(listed) => listed.entry.path.file_name().unwrap_or_default(),
            None => self.implied_names.get(own.index as usize).map_or(&[], |name| name),
        }
    }

    fn names(&self, node: u32) -> Option<&Names> {
        let directory = self.nodes.get(node as usize)?.directory;
        self.directories.get(directory as usize).map(|directory| &directory.names)
    }

    fn children_of(&self, node: u32) -> impl Iterator<Item = u32> {
        self.names(node).into_iter().flat_map(Names::iter)
    }

    /// Removes everything in a directory.
    fn clear(&mut self, node: u32) {
        let directory = self.nodes[node as usize].directory;
        if let Some(directory) = self.directories.get_mut(directory as usize) {
            directory.names = Names::default();
        }
    }

    /// Returns the files with more than one name; also those whose other names are deleted.
    pub fn linked(&self) -> impl Iterator<Item = Inode> {
        self.links.values().copied()
    }

    fn find(&self, path: &LayerPath) -> Option<u32> {
        path.components().try_fold(ROOT, |node, name| self.child(node, name))
    }

    fn child(&self, node: u32, name: &[u8]) -> Option<u32> {
        self.place(node, name)?.1.node
    }

    /// Returns the index of a directory, and where `name` is in it; `None` for anything else.
    fn place(&self, node: u32, name: &[u8]) -> Option<(usize, Place)> {
        let names = self.names(node)?;
        let place = names.find(|child| self.name(child).cmp(name));
        Some((self.nodes[node as usize].directory as usize, place))
    }

    fn remove(&mut self, path: &LayerPath) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return;
        };
        if let Some(parent) = self.find(&parent)
            && let Some((directory, place)) = self.place(parent, name)
        {
            self.directories[directory].names.remove(place);
        }
    }

    fn add(
        &mut self,
        entry: &Entry,
        own: Inode,
        outlived: Option<Inode>,
        parent_of_last: &mut (LayerPath, u32),
    ) -> Result<()> {
        let path = &entry.path;
        let (Some(parent_path), Some(name)) = (path.parent_bytes(), path.file_name()) else {
            if entry.is_directory() {
                self.nodes[ROOT as usize].own = own;
                return Ok(());
            }
            return Err(Error::bad_content(
                "the image's root is listed as something other than a directory",
            ));
        };
        // Entries are usually grouped by directory. Adding an entry changes the content of its
        // parent but not the parent itself, so the last node found remains valid.
        if parent_of_last.0.as_bytes() != parent_path {
            let parent_path = path.parent().unwrap_or_default();
            let node = self.make_directories(&parent_path, Some(own.layer))?;
            *parent_of_last = (parent_path, node);
        }
        let parent = parent_of_last.1;
        // Resolve after creating the directories above: one may replace the target.
        let link = match &entry.kind {
            EntryKind::HardLink { target } => {
                let inode = self.linked_to(entry, target, own.layer, outlived)?;
                if let Some(file) = self.entry(inode) {
                    links::check(entry, &file.entry)?;
                }
                Some(inode)
            }
            EntryKind::CharDevice { major: 0, minor: 0 } => {
                return Err(whiteout::device_refused(&entry.path));
            }
            _ => None,
        };
        let is_directory = entry.is_directory();
        let place = self.place(parent, name);
        let existing = place.and_then(|(_, place)| place.node);
        let node = match existing {
            Some(existing) => {
                self.nodes[existing as usize].own = own;
                existing
            }
            None => self.push_node(own, place)?,
        };
        match link {
            Some(inode) => drop(self.links.insert(node, inode)),
            None if existing.is_some() => drop(self.links.remove(&node)),
            None => {}
        }
        if is_directory {
            self.make_directory(node, own.layer);
        } else {
            self.nodes[node as usize].directory = FILE;
        }
        Ok(())
    }

    fn file_at(&self, path: &LayerPath) -> Option<Inode> {
        let node = self.find(path)?;
        if self.nodes[node as usize].is_directory() { None } else { self.inode(node) }
    }

    /// Returns the file that the hard link `link` of `layer` shares.
    fn linked_to(
        &self,
        link: &Entry,
        target: &LayerPath,
        layer: u32,
        outlived: Option<Inode>,
    ) -> Result<Inode> {
        let path = &link.path;
        whiteout::check_link(path, target)?;
        if let Some(inode) = self.file_at(target) {
            return Ok(inode);
        }
        let directory = self.find(target).map(|node| self.nodes[node as usize].directory as usize);
        match (directory.and_then(|index| self.directories.get(index)), outlived) {
            (None, Some(inode)) => Ok(inode),
            // Only a later opaque marker has made the directory.
            (Some(directory), Some(inode)) if directory.used_by != layer => Ok(inode),
            (Some(_), _) => Err(Error::bad_content(format!(
                "`{path}` is a hard link to the directory `{target}`"
            ))),
            (None, None) => Err(Error::bad_content(format!(
                "`{path}` is a hard link to `{target}`, which does not exist"
            ))),
        }
    }

    /// Returns the node of a directory and creates it and its parents if missing. Replaces
    /// non-directories. `layer` is the one that has an entry there (`None` for a marker).
    fn make_directories(&mut self, path: &LayerPath, layer: Option<u32>) -> Result<u32> {
        let mut node = ROOT;
        for name in path.components() {
            let place = self.place(node, name);
            node = match place.and_then(|(_, place)| place.node) {
                Some(child) if self.nodes[child as usize].is_directory() => child,
                _ => self.imply_directory(name, place)?,
            };
            if let Some(layer) = layer {
                let directory = self.nodes[node as usize].directory;
                self.directories[directory as usize].used_by = layer;
            }
        }
        Ok(node)
    }

    /// Makes a directory that no layer lists, in its place in another one.
    fn imply_directory(&mut self, name: &[u8], place: Option<(usize, Place)>) -> Result<u32> {
        let index = self.implied_names.len();
        if index >= MAX_IMPLIED {
            return Err(Error::bad_content(format!(
                "the layers imply more than {MAX_IMPLIED} directories that they do not list"
            )));
        }
        self.implied_names.push(name.into());
        let own = Inode { layer: IMPLIED, index: index as u32 };
        let node = match place.and_then(|(_, place)| place.node) {
            Some(node) => {
                self.nodes[node as usize].own = own;
                self.links.remove(&node);
                node
            }
            None => self.push_node(own, place)?,
        };
        self.make_directory(node, IMPLIED);
        Ok(node)
    }

    /// Adds a node that is no directory in a free place of a directory.
    fn push_node(&mut self, own: Inode, place: Option<(usize, Place)>) -> Result<u32> {
        let number = u32::try_from(self.nodes.len())
            .map_err(|_| Error::bad_content("the image has more files than can be counted"))?;
        if let Some((directory, place)) = place {
            self.directories[directory].names.insert(place, number);
        }
        self.nodes.push(Node { own, directory: FILE });
        Ok(number)
    }

    /// Makes a node a directory: an empty one unless it is one already.
    fn make_directory(&mut self, node: u32, used_by: u32) {
        let node = &mut self.nodes[node as usize];
        match self.directories.get_mut(node.directory as usize) {
            Some(directory) => directory.used_by = used_by,
            None => {
                // Never more than nodes.
                node.directory = self.directories.len() as u32;
                self.directories.push(Directory { used_by, names: Names::default() });
            }
        }
    }

    fn follow(&self, path: &LayerPath, last_too: bool) -> Result<LayerPath> {
        let mut todo: VecDeque<Vec<u8>> = path.components().map(<[u8]>::to_vec).collect();
        // The directories walked so far and their nodes; `None` below missing ones.
        let mut done: Vec<(Vec<u8>, Option<u32>)> = Vec::new();
        let mut symlinks = 0;
        while let Some(name) = todo.pop_front() {
            match &*name {
                b"" | b"." => continue,
                b".." => {
                    done.pop();
                    continue;
                }
                _ => {}
            }
            let parent = done.last().map_or(Some(ROOT), |(_, node)| *node);
            let node = parent.and_then(|parent| self.child(parent, &name));
            let is_last = todo.is_empty();
            let target =
                node.filter(|_| last_too || !is_last).and_then(|node| self.symlink_target(node));
            let Some(target) = target else {
                done.push((name, node));
                continue;
            };
            symlinks += 1;
            if symlinks > MAX_SYMLINKS || target.len() > MAX_EXPANDED {
                return Err(Error::bad_content(format!(
                    "`{path}` leads through too many symlinks"
                )));
            }
            if target.starts_with(b"/") {
                done.clear();
            }
            for component in target.rsplit(|b| *b == b'/') {
                todo.push_front(component.to_vec());
            }
        }
        let names: Vec<Vec<u8>> = done.into_iter().map(|(name, _)| name).collect();
        LayerPath::parse(&names.join(&b'/'))
    }

    fn symlink_target(&self, node: u32) -> Option<&[u8]> {
        match &self.found(node)?.entry().kind {
            EntryKind::Symlink { target } => Some(target),
            _ => None,
        }
    }
}

/// Returns whether an opaque marker of `opaque` makes a directory at `path`.
fn is_implied_by(opaque: &BTreeSet<LayerPath>, path: &LayerPath) -> bool {
    // Markers below follow the lowest possible name there: names between `a` and `a/` do not count.
    opaque.contains(path)
        || opaque.range(path.join(&[1])..).next().is_some_and(|marked| marked.starts_with(path))
}

/// Iterator of [`Tree::walk`].
#[derive(Debug)]
pub struct Walk<'a> {
    tree: &'a Tree,
    /// Where it begins.
    start: Option<(LayerPath, u32)>,
    /// The open directories and what is left of each: a directory may have a million names.
    stack: Vec<(LayerPath, names::Iter<'a>)>,
}

impl Walk<'_> {
    fn next_node(&mut self) -> Option<(LayerPath, u32)> {
        if let Some(start) = self.start.take() {
            return Some(start);
        }
        while let Some((directory, children)) = self.stack.last_mut() {
            if let Some(child) = children.next() {
                return Some((directory.join(self.tree.name(child)), child));
            }
            self.stack.pop();
        }
        None
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = (LayerPath, Found<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (path, node) = self.next_node()?;
        let found = self.tree.found(node)?;
        if let Some(names) = self.tree.names(node) {
            self.stack.push((path.clone(), names.iter()));
        }
        Some((path, found))
    }
}

#[cfg(test)]
mod tests;
