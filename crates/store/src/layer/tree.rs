//! The merged view of an image: the tables of contents of its layers with whiteouts, opaque markers
//! and replacements applied, without unpacking anything.
//!
//! Paths are lexical: an entry below a symlink of a lower layer replaces the symlink with a
//! directory, as in per-layer snapshots. Must not depend on where blobs are stored.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};
use std::sync::Arc;

use crate::layer::whiteout::{self, Marker};
use crate::layer::{Entry, EntryKind, LayerPath, Toc, TocEntry};
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
const MAX_IMPLIED: u32 = 1 << 20;

impl Inode {
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
    implied_count: u32,
    /// The first node is the root. Removed subtrees remain as unreachable nodes, because trees are
    /// short-lived.
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    inode: Inode,
    /// The last layer with an entry (not only a marker) at this path or below it.
    used_by: u32,
    is_directory: bool,
    /// `None` without children: most nodes are files.
    children: Option<Box<Children>>,
}

type Children = BTreeMap<Box<[u8]>, u32>;
type Names<'a> = btree_map::Iter<'a, Box<[u8]>, u32>;

impl Node {
    fn children(&self) -> impl Iterator<Item = (&[u8], u32)> {
        self.children
            .iter()
            .flat_map(|children| children.iter())
            .map(|(name, node)| (&**name, *node))
    }

    fn insert(&mut self, name: &[u8], child: u32) {
        self.children.get_or_insert_default().insert(name.into(), child);
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
            implied_count: 1,
            nodes: vec![Node {
                inode: Inode { layer: IMPLIED, index: 0 },
                used_by: IMPLIED,
                is_directory: true,
                children: None,
            }],
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
                        self.nodes[node as usize].children = None;
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

    /// Returns the file that `path` refers to, without following symlinks.
    pub fn lookup(&self, path: &LayerPath) -> Option<Found<'_>> {
        self.find(path).and_then(|node| self.found(node))
    }

    /// Returns the names in a directory, sorted bytewise; empty for non-directories.
    pub fn children(&self, directory: &LayerPath) -> impl Iterator<Item = (&[u8], Found<'_>)> {
        self.find(directory)
            .into_iter()
            .flat_map(|node| self.nodes[node as usize].children())
            .filter_map(|(name, child)| Some((name, self.found(child)?)))
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
        let inode = self.nodes.get(node as usize)?.inode;
        let index = inode.index as usize;
        if inode.layer == IMPLIED {
            return Some(Found { layer: None, entry: &self.implied, inode });
        }
        let layer = inode.layer as usize;
        Some(Found {
            layer: Some(layer),
            entry: self.layers.get(layer)?.entries.get(index)?,
            inode,
        })
    }

    fn find(&self, path: &LayerPath) -> Option<u32> {
        path.components().try_fold(ROOT, |node, name| self.child(node, name))
    }

    fn child(&self, node: u32, name: &[u8]) -> Option<u32> {
        self.nodes[node as usize].children.as_ref()?.get(name).copied()
    }

    fn remove(&mut self, path: &LayerPath) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return;
        };
        if let Some(parent) = self.find(&parent)
            && let Some(children) = &mut self.nodes[parent as usize].children
        {
            children.remove(name);
        }
    }

    fn add(
        &mut self,
        entry: &Entry,
        own: Inode,
        outlived: Option<Inode>,
        parent_of_last: &mut (LayerPath, u32),
    ) -> Result<()> {
        let (Some(parent_path), Some(name)) = (entry.path.parent(), entry.path.file_name()) else {
            if entry.is_directory() {
                self.nodes[ROOT as usize].inode = own;
                return Ok(());
            }
            return Err(Error::bad_content(
                "the image's root is listed as something other than a directory",
            ));
        };
        // Entries are usually grouped by directory. Adding an entry changes the content of its
        // parent but not the parent itself, so the last node found remains valid.
        if parent_of_last.0 != parent_path {
            let node = self.make_directories(&parent_path, Some(own.layer))?;
            *parent_of_last = (parent_path, node);
        }
        let parent = parent_of_last.1;
        // Resolve after creating the directories above: one may replace the target.
        let inode = match &entry.kind {
            EntryKind::HardLink { target } => self.linked(entry, target, own.layer, outlived)?,
            EntryKind::CharDevice { major: 0, minor: 0 } => {
                return Err(whiteout::device_refused(&entry.path));
            }
            _ => own,
        };
        let is_directory = entry.is_directory();
        if let Some(existing) = self.child(parent, name) {
            let node = &mut self.nodes[existing as usize];
            if !(node.is_directory && is_directory) {
                node.children = None;
            }
            node.inode = inode;
            node.used_by = own.layer;
            node.is_directory = is_directory;
            return Ok(());
        }
        let node = self.push_node(inode, own.layer, is_directory)?;
        self.nodes[parent as usize].insert(name, node);
        Ok(())
    }

    fn file_at(&self, path: &LayerPath) -> Option<Inode> {
        let node = &self.nodes[self.find(path)? as usize];
        (!node.is_directory).then_some(node.inode)
    }

    /// Returns the file that the hard link `link` of `layer` shares.
    fn linked(
        &self,
        link: &Entry,
        target: &LayerPath,
        layer: u32,
        outlived: Option<Inode>,
    ) -> Result<Inode> {
        let path = &link.path;
        whiteout::check_link(path, target)?;
        let node = self.find(target).map(|node| &self.nodes[node as usize]);
        match (node, outlived) {
            (Some(node), _) if !node.is_directory => Ok(node.inode),
            (None, Some(inode)) => Ok(inode),
            // Only a later opaque marker has made the directory.
            (Some(node), Some(inode)) if node.used_by != layer => Ok(inode),
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
            node = match self.child(node, name) {
                Some(child) if self.nodes[child as usize].is_directory => child,
                _ => {
                    let child = self.new_implied_directory()?;
                    self.nodes[node as usize].insert(name, child);
                    child
                }
            };
            if let Some(layer) = layer {
                self.nodes[node as usize].used_by = layer;
            }
        }
        Ok(node)
    }

    fn new_implied_directory(&mut self) -> Result<u32> {
        if self.implied_count >= MAX_IMPLIED {
            return Err(Error::bad_content(format!(
                "the layers imply more than {MAX_IMPLIED} directories that they do not list"
            )));
        }
        let inode = Inode { layer: IMPLIED, index: self.implied_count };
        self.implied_count += 1;
        self.push_node(inode, IMPLIED, true)
    }

    fn push_node(&mut self, inode: Inode, used_by: u32, is_directory: bool) -> Result<u32> {
        let number = u32::try_from(self.nodes.len())
            .map_err(|_| Error::bad_content("the image has more files than can be counted"))?;
        self.nodes.push(Node { inode, used_by, is_directory, children: None });
        Ok(number)
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
    stack: Vec<(LayerPath, Names<'a>)>,
}

impl Walk<'_> {
    fn next_node(&mut self) -> Option<(LayerPath, u32)> {
        if let Some(start) = self.start.take() {
            return Some(start);
        }
        while let Some((directory, children)) = self.stack.last_mut() {
            if let Some((name, child)) = children.next() {
                return Some((directory.join(name), *child));
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
        if let Some(children) = &self.tree.nodes[node as usize].children {
            self.stack.push((path.clone(), children.iter()));
        }
        Some((path, found))
    }
}

/// Type of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// Returns the differences from `old` to `new`, ordered by path components. Everything below an
/// added or deleted directory is listed.
pub fn compare(old: &Tree, new: &Tree) -> Vec<(Change, LayerPath)> {
    let mut changes = Vec::new();
    let root = LayerPath::root();
    let (mut before, mut after) = (old.walk(&root).peekable(), new.walk(&root).peekable());
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return changes,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.components().cmp(b.components()),
        };
        match order {
            Ordering::Less => {
                changes.extend(before.next().map(|(path, _)| (Change::Deleted, path)));
            }
            Ordering::Greater => {
                changes.extend(after.next().map(|(path, _)| (Change::Added, path)));
            }
            Ordering::Equal => {
                if let (Some((path, a)), Some((_, b))) = (before.next(), after.next())
                    && !same(&a, &b)
                {
                    changes.push((Change::Modified, path));
                }
            }
        }
    }
}

fn same(a: &Found<'_>, b: &Found<'_>) -> bool {
    let (x, y) = (a.entry(), b.entry());
    let metadata = |entry: &Entry| (entry.mode, entry.uid, entry.gid);
    metadata(x) == metadata(y) && x.xattrs == y.xattrs && same_content(a, b)
}

/// Compares content digests if both are known. Otherwise the file counts as modified: equal sizes
/// at the same position in a layer prove nothing.
fn same_content(a: &Found<'_>, b: &Found<'_>) -> bool {
    match (&a.entry().kind, &b.entry().kind) {
        (EntryKind::File { size: x }, EntryKind::File { size: y }) => {
            x == y && (*x == 0 || (a.entry.content.is_some() && a.entry.content == b.entry.content))
        }
        (x, y) => x == y,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod compare_tests {
    use super::*;
    use crate::layer::{Toc, TocEntry};

    fn tree(entries: &[(&str, EntryKind, u8)]) -> Tree {
        let entries = entries
            .iter()
            .map(|(path, kind, content)| TocEntry {
                entry: Entry::new(LayerPath::parse(path.as_bytes()).unwrap(), kind.clone(), 0o755),
                offset: 0,
                content: matches!(kind, EntryKind::File { .. }).then_some([*content; 32]),
            })
            .collect();
        let toc = Toc { entries, restarts: Vec::new() };
        Tree::from_layers([Arc::new(toc)]).unwrap()
    }

    #[test]
    fn names_are_added_modified_and_deleted() {
        let file = EntryKind::File { size: 1 };
        let link = |target: &str| EntryKind::Symlink { target: target.into() };
        let old = tree(&[
            ("a", EntryKind::Directory, 0),
            ("a/x", file.clone(), 1),
            ("a.b", file.clone(), 1),
            ("gone/x", file.clone(), 1),
            ("link", link("a"), 0),
            ("same", file.clone(), 1),
        ]);
        let new = tree(&[
            ("a", EntryKind::Directory, 0),
            ("a/x", file.clone(), 2),
            ("a.b", file.clone(), 1),
            ("link", link("b"), 0),
            ("new", file.clone(), 1),
            ("same", file, 1),
        ]);
        let changes: Vec<(Change, String)> = compare(&old, &new)
            .into_iter()
            .map(|(change, path)| (change, path.to_string()))
            .collect();
        use Change::{Added, Deleted, Modified};
        let expected = [
            (Modified, "/a/x"),
            (Deleted, "/gone"),
            (Deleted, "/gone/x"),
            (Modified, "/link"),
            (Added, "/new"),
        ];
        assert_eq!(changes, expected.map(|(change, path)| (change, path.to_owned())));
        assert!(compare(&old, &old).is_empty());
    }
}
