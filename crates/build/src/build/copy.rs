//! COPY and ADD: converts sources and a destination to the items of a layer. Nothing is read or
//! written here. The rules are those of the Dockerfile reference, as applied by BuildKit and
//! buildah.

use std::collections::{HashMap, HashSet};

use crate::build::chmod::Chmod;
use crate::build::copy_sources::{Source, find_sources, not_there};
use crate::build::items::{self, Content, Item, NO_TIME, Node, SourceTree, clamp, follow, sort};
use imgctl_base::error::{Error, Result};
use imgctl_embed::plan::DIRECTORY;
use imgctl_kubefile::ignore::IgnoreRules;
use imgctl_layer::tree::Tree;
use imgctl_layer::{Entry, EntryKind, LayerPath};

/// Mode of directories that the destination implies, unless `--chmod` gives one in octal.
const IMPLIED_DIRECTORY: u32 = 0o755;

/// Flags of one COPY or ADD, with their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// `--chown`, resolved to numbers.
    pub owner: Option<(u32, u32)>,
    pub chmod: Option<Chmod>,
    pub link: bool,
    pub parents: bool,
    pub exclude: Option<IgnoreRules>,
}

/// The destination as written, and the tree that contains it.
pub(super) struct Destination<'a> {
    pub tree: &'a Tree,
    /// Absolute path.
    path: LayerPath,
    is_directory: bool,
}

impl<'a> Destination<'a> {
    /// Parses an expanded destination word; an empty one is the working directory (BuildKit,
    /// buildah). With `link`, symlinks in the tree are not followed.
    pub(super) fn new(tree: &'a Tree, workdir: &str, word: &str, link: bool) -> Result<Self> {
        let absolute =
            if word.starts_with('/') { word.to_owned() } else { format!("{workdir}/{word}") };
        let lexical = clamp(absolute.as_bytes())?;
        let path = if link { lexical } else { follow(&lexical, &|path| Ok(node_of(tree, path)))? };
        let last = word.rsplit('/').next().unwrap_or_default();
        let named_directory = matches!(last, "" | "." | "..");
        let is_directory = named_directory
            || path.is_root()
            || (!link && node_of(tree, &path) == Some(Node::Directory));
        Ok(Self { tree, path, is_directory })
    }

    fn file_path(&self, name: &[u8]) -> LayerPath {
        if self.is_directory { self.path.join(name) } else { self.path.clone() }
    }
}

/// Returns the node at `path` of a merged tree.
pub(super) fn node_of(tree: &Tree, path: &LayerPath) -> Option<Node> {
    let found = tree.lookup(path)?;
    Some(match &found.entry.entry.kind {
        EntryKind::Directory => Node::Directory,
        EntryKind::Symlink { target } => Node::Symlink(target.clone()),
        EntryKind::File { .. } => Node::File,
        _ => Node::Other,
    })
}

/// The items of one step, by path; a later item of the same path replaces an earlier one.
pub(crate) struct Gathered<'a> {
    destination: Destination<'a>,
    flags: Flags,
    /// In the order in which they were added; for each path, the last one counts.
    items: Vec<Item>,
    /// Directories among the items.
    directories: HashSet<LayerPath>,
    /// Parent directory of the last item; most items have the same parent as the one before.
    last_parent: LayerPath,
    /// Whether the image has this directory, so that an item could replace something in it.
    parent_is_in_image: bool,
    /// Files of the current source: maps their identity there to a number that is unique in this
    /// step.
    files: HashMap<(u64, u64), u64>,
    /// Number of files that have a number.
    known_files: u64,
    /// Whether an archive is among the sources, whose entries replace what is there.
    replaces: bool,
    /// Whether an archive is being added, whose modes `--chmod` does not change.
    unpacks: bool,
}

impl<'a> Gathered<'a> {
    /// Creates an empty collection.
    pub(super) fn new(destination: Destination<'a>, flags: Flags) -> Self {
        Self {
            destination,
            flags,
            items: Vec::new(),
            directories: HashSet::new(),
            last_parent: LayerPath::root(),
            parent_is_in_image: true,
            files: HashMap::new(),
            known_files: 0,
            replaces: false,
            unpacks: false,
        }
    }

    /// Keeps hard links between files of the same source. Another source, or the same one again,
    /// provides separate files, as in BuildKit and buildah; and file identities of two archives are
    /// unrelated.
    fn keep_links_within_source(&mut self, item: &mut Item) {
        let Some(file) = &mut item.file else { return };
        let known_files = &mut self.known_files;
        let number = *self.files.entry(**file).or_insert_with(|| {
            *known_files += 1;
            *known_files
        });
        **file = (0, number);
    }

    /// Adds the expanded source words of one COPY or ADD; `tree` contains the sources. `unpack`
    /// returns the content of a file that must be extracted instead of copied.
    ///
    /// A pattern may match nothing, but at least one source must exist: a COPY with a typing error
    /// must not pass for a COPY of optional files.
    pub(crate) fn add_sources(
        &mut self,
        tree: &dyn SourceTree,
        words: &[String],
        unpack: &mut dyn FnMut(&LayerPath) -> Result<Option<Vec<Item>>>,
    ) -> Result<()> {
        let mut sources = Vec::new();
        for word in words {
            sources.extend(find_sources(tree, word, self.flags.parents)?);
        }
        if let (true, true, Some(word)) = (sources.is_empty(), self.items.is_empty(), words.first())
        {
            return Err(Error::not_found(format!("`{word}` matches nothing in {}", tree.name()))
                .about(word)
                .hint(
                    "a pattern that matches nothing is allowed only next to another source that \
                 exists; patterns are matched after the ignore rules are applied",
                ));
        }
        let mut found = Vec::with_capacity(sources.len());
        for source in sources {
            let node_at = |path: &LayerPath| tree.node(path);
            // --parents keeps symlinks (BuildKit), except on the way to a source.
            let real = match (self.flags.parents, source.path.parent(), source.path.file_name()) {
                (true, Some(parent), Some(name)) => follow(&parent, &node_at)?.join(name),
                _ => follow(&source.path, &node_at)?,
            };
            let node = tree.node(&real)?;
            found.push((source, real, node));
        }
        // Directories contribute their content, whatever their number.
        let has_file = found.iter().any(|(_, _, node)| *node != Some(Node::Directory));
        if found.len() > 1 && has_file && !self.destination.is_directory && !self.flags.parents {
            return Err(Error::usage(format!(
                "{} sources need a directory as the destination",
                found.len()
            ))
            .hint("end the destination with `/`"));
        }
        for (source, real, node) in &found {
            if *node == Some(Node::File)
                && let Some(items) = unpack(real)?
            {
                self.add_archive(items)?;
                continue;
            }
            self.add_source(tree, source, real, node.as_ref())?;
        }
        Ok(())
    }

    fn add_source(
        &mut self,
        tree: &dyn SourceTree,
        source: &Source,
        real: &LayerPath,
        node: Option<&Node>,
    ) -> Result<()> {
        let into = match (&source.pivot, self.flags.parents) {
            (pivot, true) => {
                self.add_parents(tree, source)?;
                let below = relative(&source.path, pivot.as_ref().unwrap_or(&LayerPath::root()));
                join(&self.destination.path, &below)
            }
            _ => self.destination.path.clone(),
        };
        match node {
            Some(Node::Directory) if tree.is_embedded_registry(real) => {
                if into.as_bytes() != DIRECTORY.as_bytes() {
                    return Err(Error::usage(format!(
                        "the embedded images go to /{DIRECTORY}, not to {into}"
                    ))
                    .hint(format!("write `COPY {DIRECTORY} /{DIRECTORY}`, or leave it out")));
                }
                self.imply_directories(&into)?;
            }
            Some(Node::Directory) => {
                self.files.clear();
                let named = self.excludable(source);
                let place = |mut item: Item| {
                    let below = relative(&item.entry.path, real);
                    // The directory itself is the destination, which is left unchanged if it
                    // exists.
                    if below.is_root() && !self.flags.parents
                        || self.is_excluded(&join(&named, &below))
                    {
                        return None;
                    }
                    self.keep_links_within_source(&mut item);
                    Some(self.place(join(&into, &below), item))
                };
                // `collect` reuses the memory of the items.
                let mut items =
                    tree.below(real)?.into_iter().filter_map(place).collect::<Result<Vec<_>>>()?;
                items::prepend(std::mem::take(&mut self.items), &mut items);
                self.items = items;
                self.imply_directories(&into)?;
            }
            Some(_) => {
                let name = source.path.file_name().unwrap_or_default().to_vec();
                let named = self.excludable(source);
                let named = if self.flags.parents { named } else { named.join(&name) };
                if self.is_excluded(&named) {
                    return Ok(());
                }
                let target =
                    if self.flags.parents { into } else { self.destination.file_path(&name) };
                for mut item in tree.below(real)? {
                    // Hard links that are named individually become separate files.
                    item.file = None;
                    self.put(target.clone(), item)?;
                }
            }
            None => return Err(not_there(tree, &source.path, &source.word)),
        }
        Ok(())
    }

    /// `--parents`: the directories between pivot and source keep their metadata. One that the image
    /// has stays its owner's: `--chown` is for what is copied.
    fn add_parents(&mut self, tree: &dyn SourceTree, source: &Source) -> Result<()> {
        let pivot = source.pivot.clone().unwrap_or_default();
        let mut parent = source.path.parent();
        while let Some(directory) = parent.filter(|path| *path != pivot && path.starts_with(&pivot))
        {
            if let Some(item) = tree.below(&directory)?.into_iter().next() {
                let below = relative(&directory, &pivot);
                let path = join(&self.destination.path, &below);
                let mut item = self.place(path.clone(), item)?;
                if let Some(found) = self.destination.tree.lookup(&path) {
                    (item.entry.uid, item.entry.gid) = (found.entry().uid, found.entry().gid);
                }
                self.items.push(item);
            }
            parent = directory.parent();
        }
        Ok(())
    }

    /// Returns the path of a source as `--exclude` sees it: with `--parents`, patterns start where the
    /// copied paths start (BuildKit).
    fn excludable(&self, source: &Source) -> LayerPath {
        if !self.flags.parents {
            return LayerPath::root();
        }
        relative(&source.path, source.pivot.as_ref().unwrap_or(&LayerPath::root()))
    }

    fn is_excluded(&self, below: &LayerPath) -> bool {
        self.flags.exclude.as_ref().is_some_and(|rules| rules.matches(below.as_bytes()))
    }

    /// Adds a file created by the Kubefile itself: heredoc or download.
    pub(super) fn add_file(&mut self, name: &[u8], item: Item) -> Result<()> {
        let path = self.destination.file_path(name);
        self.put(path, item)
    }

    /// Adds the content of an archive below the destination, with the archive's own modes, and with
    /// its owners unless `--chown` specifies one (BuildKit's rule).
    ///
    /// Like a tar that is extracted there, it goes through symlinks of the image to directories, and
    /// an entry replaces what has its own name, whatever that is (moby/go-archive).
    pub(crate) fn add_archive(&mut self, items: Vec<Item>) -> Result<()> {
        self.files.clear();
        self.unpacks = true;
        // Where the directory of the entry before is, as the archive names it and in the image.
        let mut parents: Option<(LayerPath, LayerPath)> = None;
        for mut item in items {
            // The archive's entry for its root describes a directory that is not part of it.
            if item.entry.path.is_root() {
                continue;
            }
            self.keep_links_within_source(&mut item);
            let link = match &item.entry.kind {
                EntryKind::HardLink { target } => Some(join(&self.destination.path, target)),
                _ => None,
            };
            if let Some(target) = link {
                let directory = self.behind_links(&target.parent().unwrap_or_default())?;
                let target = directory.join(target.file_name().unwrap_or_default());
                self.refuse_dangling(&item.entry.path, &target)?;
                item.entry.kind = EntryKind::HardLink { target };
            }
            let path = join(&self.destination.path, &item.entry.path);
            let parent = path.parent().unwrap_or_default();
            let directory = match parents.take() {
                Some((named, directory)) if named == parent => directory,
                _ => self.behind_links(&parent)?,
            };
            let path = directory.join(path.file_name().unwrap_or_default());
            let owner = (item.entry.uid, item.entry.gid);
            let item = self.place_owned(path, item, self.flags.owner.unwrap_or(owner))?;
            // A directory may have taken the place of a link that led to the next entry's.
            parents = (!item.entry.is_directory()).then_some((parent, directory));
            self.items.push(item);
        }
        self.replaces = true;
        self.imply_directories(&self.destination.path.clone())?;
        self.unpacks = false;
        Ok(())
    }

    /// Adds the files of a git repository below the destination, as those of a directory.
    pub(crate) fn add_checkout(&mut self, items: Vec<Item>) -> Result<()> {
        self.files.clear();
        for mut item in items {
            if item.entry.path.is_root() || self.is_excluded(&item.entry.path) {
                continue;
            }
            self.keep_links_within_source(&mut item);
            let path = join(&self.destination.path, &item.entry.path);
            let item = self.place(path, item)?;
            self.items.push(item);
        }
        self.imply_directories(&self.destination.path.clone())
    }

    /// Follows symlinks of the image in the path of a directory, except for those that this step has
    /// already replaced by a directory.
    /// Fails if a hard link whose target is not in the archive leads to no file of the image: no reader could
    /// unpack such a layer. With `--link`, a layer must not depend on the image below.
    fn refuse_dangling(&self, link: &LayerPath, target: &LayerPath) -> Result<()> {
        let is_in_image = !self.flags.link
            && *target != join(&self.destination.path, link)
            && !self.directories.contains(target)
            && node_of(self.destination.tree, target).is_some_and(|node| node != Node::Directory);
        // An archive that was added earlier may have the target.
        let is_file = |item: &Item| item.entry.path == *target && !item.entry.is_directory();
        if is_in_image || self.items.iter().any(is_file) {
            return Ok(());
        }
        Err(Error::bad_content(format!(
            "{link} is a hard link to {target}, a file that neither the archive nor the image has"
        ))
        .hint("pack the file and its link into the same archive"))
    }

    fn behind_links(&self, path: &LayerPath) -> Result<LayerPath> {
        follow(path, &|path| {
            let replaced = self.directories.contains(path);
            Ok(if replaced { None } else { node_of(self.destination.tree, path) })
        })
    }

    fn imply_directories(&mut self, path: &LayerPath) -> Result<()> {
        let mut directory = Some(path.clone());
        while let Some(path) = directory.filter(|path| !path.is_root()) {
            // A directory that is already listed has implied its parents.
            if self.directories.contains(&path) {
                break;
            }
            self.imply_directory(&path)?;
            directory = path.parent();
        }
        Ok(())
    }

    fn imply_directory(&mut self, path: &LayerPath) -> Result<()> {
        if path.is_root() || self.directories.contains(path) {
            return Ok(());
        }
        match node_of(self.destination.tree, path) {
            Some(Node::Directory) => return Ok(()),
            Some(node) => return Err(not_a_directory(path, &node)),
            None => {}
        }
        let (uid, gid) = self.flags.owner.unwrap_or((0, 0));
        let mode = match self.flags.chmod {
            Some(Chmod::Octal(mode)) if !self.unpacks => mode,
            _ => IMPLIED_DIRECTORY,
        };
        let mut entry = Entry::new(path.clone(), EntryKind::Directory, mode);
        (entry.uid, entry.gid) = (uid, gid);
        entry.mtime = NO_TIME;
        self.directories.insert(path.clone());
        self.items.push(Item::bare(entry));
        Ok(())
    }

    fn put(&mut self, path: LayerPath, item: Item) -> Result<()> {
        let item = self.place(path, item)?;
        self.items.push(item);
        Ok(())
    }

    /// Gives `item` its path, mode and owner in the image, and adds the parents that it needs.
    fn place(&mut self, path: LayerPath, mut item: Item) -> Result<Item> {
        if let Some(chmod) = &self.flags.chmod
            && !matches!(item.entry.kind, EntryKind::Symlink { .. })
        {
            item.entry.mode = chmod.apply(item.entry.mode, item.entry.is_directory());
        }
        let own = (item.entry.uid, item.entry.gid);
        let item = self.place_owned(path, item, self.flags.owner.unwrap_or(own))?;
        self.refuse_other_type(&item)?;
        Ok(item)
    }

    /// Refuses a directory in the place of anything else, and the reverse, as BuildKit does: what the
    /// image has there, or behind a symlink there, would vanish with no word about it.
    fn refuse_other_type(&self, item: &Item) -> Result<()> {
        if !self.parent_is_in_image {
            return Ok(());
        }
        let path = &item.entry.path;
        match node_of(self.destination.tree, path) {
            Some(Node::Directory) if !item.entry.is_directory() => Err(Error::usage(format!(
                "{path} is a directory in the image; a file cannot replace it"
            ))
            .hint("give the file another name, or remove the directory in a RUN before")),
            Some(node) if node != Node::Directory && item.entry.is_directory() => {
                Err(not_a_directory(path, &node))
            }
            _ => Ok(()),
        }
    }

    fn place_owned(&mut self, path: LayerPath, mut item: Item, owner: (u32, u32)) -> Result<Item> {
        refuse_marker(&path)?;
        if path.parent_bytes().unwrap_or_default() != self.last_parent.as_bytes() {
            let parent = path.parent().unwrap_or_default();
            self.imply_directories(&parent)?;
            self.parent_is_in_image = parent.is_root()
                || node_of(self.destination.tree, &parent) == Some(Node::Directory);
            self.last_parent = parent;
        }
        if item.entry.is_directory() {
            self.directories.insert(path.clone());
        }
        item.entry.path = path;
        (item.entry.uid, item.entry.gid) = owner;
        Ok(item)
    }

    /// Returns all items in layer order. A file where a directory with content is needed is an
    /// error.
    pub(super) fn finish(self) -> Result<Vec<Item>> {
        let mut items = self.items;
        sort(&mut items);
        let mut both = None;
        items.dedup_by(|later, kept| {
            let is_same = later.entry.path == kept.entry.path;
            if is_same && later.entry.is_directory() != kept.entry.is_directory() {
                both = Some(kept.entry.path.clone());
            }
            // A directory that was only implied replaces nothing.
            if is_same && !is_implied(later) {
                std::mem::swap(later, kept);
            }
            is_same
        });
        if let (Some(path), false) = (both, self.replaces) {
            return Err(Error::usage(format!(
                "{path} is both a file and a directory of what is copied"
            )));
        }
        // The parents of an item are listed or in the image, so checking its own directory is
        // enough.
        let mut checked = LayerPath::root();
        for item in &items {
            let parent = item.entry.path.parent_bytes().unwrap_or_default();
            if parent == checked.as_bytes() {
                continue;
            }
            let parent = item.entry.path.parent().unwrap_or_default();
            let place = items.binary_search_by(|other| other.entry.path.cmp(&parent));
            if place.is_ok_and(|place| !items[place].entry.is_directory()) {
                return Err(Error::usage(format!(
                    "{parent} is both a file and the directory of {}",
                    item.entry.path
                )));
            }
            checked = parent;
        }
        Ok(items)
    }
}

fn not_a_directory(path: &LayerPath, node: &Node) -> Error {
    if let Node::Symlink(_) = node {
        return Error::usage(format!(
            "{path} is a symbolic link in the image; a directory cannot replace it"
        ))
        .hint("copy into the directory that it leads to, or remove the link in a RUN before");
    }
    Error::usage(format!("{path} is a file in the image, not a directory"))
        .hint("copy to another path, or remove the file in a RUN before")
}

fn is_implied(item: &Item) -> bool {
    item.entry.is_directory() && item.entry.mtime == NO_TIME
}

/// Rejects a name that would delete something in a lower layer (image-spec, layer.md).
pub(crate) fn refuse_marker(path: &LayerPath) -> Result<()> {
    match path.file_name() {
        Some(name) if name.starts_with(b".wh.") => Err(Error::usage(format!(
            "{path} cannot be stored in an image: names that begin with `.wh.` mark deletions"
        ))
        .hint("rename it, or exclude it in .dockerignore")),
        _ => Ok(()),
    }
}

fn relative(path: &LayerPath, base: &LayerPath) -> LayerPath {
    let skip = base.components().count();
    if skip == 0 {
        return path.clone();
    }
    let below = path.as_bytes().splitn(skip + 1, |byte| *byte == b'/').nth(skip);
    LayerPath::root().join(below.unwrap_or_default())
}

fn join(base: &LayerPath, below: &LayerPath) -> LayerPath {
    if below.is_root() {
        return base.clone();
    }
    if base.is_root() {
        return below.clone();
    }
    base.join(below.as_bytes())
}

/// Returns a file created by the Kubefile itself, with mode 0644 and without a time.
pub(crate) fn inline_file(bytes: Vec<u8>) -> Item {
    let size = bytes.len() as u64;
    let digest = *blake3::hash(&bytes).as_bytes();
    let mut entry = Entry::new(LayerPath::root(), EntryKind::File { size }, 0o644);
    entry.mtime = NO_TIME;
    let content = Content::Bytes(bytes.into());
    Item { content, digest: Some(digest), ..Item::bare(entry) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_cannot_be_a_directory_too_whatever_sorts_between() {
        let tree = Tree::new();
        let destination = Destination::new(&tree, "/", "/", false).unwrap();
        let mut gathered = Gathered::new(destination, Flags::default());
        for path in ["a", "a-b", "a/x"] {
            let path = LayerPath::parse(path.as_bytes()).unwrap();
            gathered.put(path, inline_file(b"content".to_vec())).unwrap();
        }
        let error = gathered.finish().unwrap_err();
        assert!(error.to_string().contains("/a is both a file"), "{error}");
    }
}
