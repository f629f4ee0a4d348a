//! What a layer hides of the layers below: whiteouts and opaque directories, either in the form
//! that overlayfs reads or by deletion. A marker never affects the entries of its own layer,
//! regardless of their order in the archive.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::{self, Errno};

use crate::LayerPath;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::remove_at;
use imgctl_base::fs::directory;
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::fs::xattr;

use super::parents::{Missing, Parents};
use super::{Form, display};

/// The hidden paths, and the paths that the current layer has written.
pub(super) struct Hidden {
    form: Form,
    /// Overlay form: whiteouts in the tree.
    whiteouts: BTreeSet<Vec<u8>>,
    /// Overlay form: directories marked opaque.
    opaque: BTreeSet<Vec<u8>>,
    /// Flat form: whether there are files below the current layer.
    has_lower: bool,
    /// Flat form, if there are lower layers: the paths that the current layer has written, and
    /// whether it lists them (otherwise an opaque marker implies them).
    written: BTreeMap<Vec<u8>, bool>,
    /// Directories that replaced something that the current layer had written there.
    fresh: BTreeSet<Vec<u8>>,
}

impl Hidden {
    /// Creates the state for a tree of this form; `has_lower` states whether the tree already has
    /// content.
    pub(super) fn new(form: Form, has_lower: bool) -> Self {
        Self {
            form,
            whiteouts: BTreeSet::new(),
            opaque: BTreeSet::new(),
            has_lower,
            written: BTreeMap::new(),
            fresh: BTreeSet::new(),
        }
    }

    /// Treats everything written so far as a lower layer.
    pub(super) fn next_layer(&mut self) {
        self.has_lower = true;
        self.written.clear();
        self.fresh.clear();
    }

    /// Records that the layer has written `path`.
    pub(super) fn wrote(&mut self, path: &[u8]) {
        if self.has_lower && self.form == Form::Flat {
            self.written.insert(path.to_vec(), true);
        }
    }

    /// Records that the layer has an opaque marker in `path`.
    pub(super) fn marked(&mut self, path: &[u8]) {
        if self.has_lower && self.form == Form::Flat {
            self.written.entry(path.to_vec()).or_insert(false);
        }
    }

    /// Records that a directory is about to replace what is at `path`.
    pub(super) fn replacing(&mut self, path: &[u8]) {
        if self.is_own(path) {
            self.fresh.insert(path.to_vec());
        }
    }

    /// Returns whether the non-directory at `path` was written by the current layer.
    fn is_own(&self, path: &[u8]) -> bool {
        match self.form {
            Form::Flat => !self.has_lower || self.written.contains_key(path),
            Form::Overlay { .. } => !self.whiteouts.contains(path),
        }
    }

    /// Returns whether lower layers are already hidden in the directory `path`, because the current
    /// layer has or had something else there or above.
    pub(super) fn is_settled(&self, parents: &mut Parents, path: &[u8]) -> Result<bool> {
        if has_at_or_above(&self.fresh, path) {
            return Ok(true);
        }
        let entered =
            parents.enter(path, Missing::Leave).path("open the directory", display(path))?;
        let Some(next) = parents.next_below(path).filter(|_| !entered.found) else {
            return Ok(false);
        };
        match Metadata::at(parents.top(), next) {
            Ok(_) => Ok(self.is_own(&parents.path_of(next))),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error).path("examine", display(path)),
        }
    }

    /// Returns whether `path` is a whiteout, which does not count as a file.
    pub(super) fn is_whiteout(&self, path: &[u8]) -> bool {
        self.whiteouts.contains(path)
    }

    /// Discards the state of `path` and everything below it after their removal.
    pub(super) fn forget(&mut self, path: &[u8]) {
        for set in [&mut self.whiteouts, &mut self.opaque] {
            if !set.is_empty() {
                set.remove(path);
                take_below(set, path);
            }
        }
    }

    /// Marks the directory that has replaced something else at `path` as opaque: what it replaced
    /// had hidden any lower directory of that name.
    pub(super) fn replaced(&mut self, parents: &Parents, path: &[u8]) -> Result<()> {
        if self.form == Form::Flat {
            return Ok(());
        }
        self.set_opaque(parents.at(path.len()), path)
    }

    /// Hides what lower layers have at `path`. Returns the directories that remain because the
    /// current layer has something in them, but that no longer belong to lower layers (flat form).
    pub(super) fn whiteout(
        &mut self,
        parents: &mut Parents,
        path: &LayerPath,
    ) -> Result<Vec<Vec<u8>>> {
        let path = path.as_bytes();
        if self.form == Form::Flat {
            return self.delete(parents, path);
        }
        self.whiteout_in_overlay(parents, path)?;
        Ok(Vec::new())
    }

    fn whiteout_in_overlay(&mut self, parents: &mut Parents, path: &[u8]) -> Result<()> {
        let (parent, name) = split(path);
        // Nothing is visible there to hide, and overlayfs would list the whiteout's name.
        if self.is_below_opaque(parent) || !self.enter_parent(parents, parent)? {
            return Ok(());
        }
        match self.make_whiteout(parents, parent, name) {
            Ok(()) => {
                self.whiteouts.insert(path.to_vec());
                Ok(())
            }
            // Either a file of this layer, which already hides what is below, or a directory, whose
            // own content remains.
            Err(Errno::EXIST) => match Metadata::at(parents.top(), name) {
                Ok(found) if found.is_directory() => self.opaque_in_overlay(parents, path),
                _ => Ok(()),
            },
            Err(error) => Err(error).doing(|| "cannot create the whiteout".to_owned()),
        }
    }

    /// Hides everything that lower layers have in the directory `path`, which exists. Returns the
    /// same as [`Hidden::whiteout`].
    pub(super) fn opaque(&mut self, parents: &mut Parents, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.form == Form::Flat {
            let mut kept = self.delete_below(parents, path)?;
            kept.retain(|kept| kept != path);
            return Ok(kept);
        }
        self.opaque_in_overlay(parents, path)?;
        Ok(Vec::new())
    }

    fn opaque_in_overlay(&mut self, parents: &mut Parents, path: &[u8]) -> Result<()> {
        parents.enter(path, Missing::Create).path("open the directory", display(path))?;
        self.set_opaque(parents.top(), path)?;
        for whiteout in take_below(&mut self.whiteouts, path) {
            let (parent, name) = split(&whiteout);
            parents
                .enter(parent, Missing::Create)
                .and_then(|_| fs::unlinkat(parents.top(), name, AtFlags::empty()))
                .path("remove the needless whiteout of", display(&whiteout))?;
        }
        Ok(())
    }

    /// Enters the directory of a whiteout, creating it if necessary. Returns `false` if this layer
    /// has something else there or above, in which case there is nothing to hide.
    fn enter_parent(&self, parents: &mut Parents, parent: &[u8]) -> Result<bool> {
        let entered =
            parents.enter(parent, Missing::Leave).path("open the directory", display(parent))?;
        if let Some(next) = parents.next_below(parent).filter(|_| !entered.found) {
            match Metadata::at(parents.top(), next) {
                Ok(_) => return Ok(false),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error).path("examine", display(parent)),
            }
        }
        parents.enter(parent, Missing::Create).path("create the directory", display(parent))?;
        Ok(true)
    }

    /// Creates a 0/0 device, which user namespaces also permit, or the xattr form (Linux 6.7).
    fn make_whiteout(&self, parents: &Parents, parent: &[u8], name: &[u8]) -> io::Result<()> {
        let directory = parents.top();
        let kind = FileType::CharacterDevice;
        match fs::mknodat(directory, name, kind, Mode::empty(), fs::makedev(0, 0)) {
            Err(Errno::PERM | Errno::ACCESS) => {}
            made => return made,
        }
        self.make_xattr_whiteout(parents, parent, name)
    }

    /// Creates an empty file with an xattr, which overlayfs looks for in directories marked
    /// accordingly.
    pub(super) fn make_xattr_whiteout(
        &self,
        parents: &Parents,
        parent: &[u8],
        name: &[u8],
    ) -> io::Result<()> {
        let directory = parents.top();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        xattr::set(&file, &self.overlay_xattr(b"whiteout"), b"y")?;
        if self.opaque.contains(parent) {
            return Ok(());
        }
        xattr::set(directory, &self.overlay_xattr(b"opaque"), b"x")
    }

    fn set_opaque(&mut self, directory: impl std::os::fd::AsFd, path: &[u8]) -> Result<()> {
        let name = self.overlay_xattr(b"opaque");
        xattr::set(directory, &name, b"y").map_err(|error| {
            Error::io(
                format!("cannot mark {} as opaque ({})", display(path), String::from_utf8_lossy(&name)),
                error,
            )
            .hint("the store needs a file system with extended attributes, such as ext4, XFS or btrfs")
        })?;
        self.opaque.insert(path.to_vec());
        Ok(())
    }

    fn overlay_xattr(&self, name: &[u8]) -> Vec<u8> {
        [self.form.overlay_prefix().unwrap_or_default(), name].concat()
    }

    /// Overlay form: returns whether lower layers are hidden in the directory `path`.
    pub(super) fn is_below_opaque(&self, path: &[u8]) -> bool {
        has_at_or_above(&self.opaque, path)
    }

    /// Flat form: deletes what lower layers have at `path`.
    fn delete(&self, parents: &mut Parents, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (parent, name) = split(path);
        if !self.has_lower {
            return Ok(Vec::new());
        }
        let entered =
            parents.enter(parent, Missing::Leave).path("open the directory", display(parent))?;
        if !entered.found {
            return Ok(Vec::new());
        }
        if self.brought(path) {
            return self.delete_below(parents, path);
        }
        parents.changed();
        remove_at(parents.top(), name).path("remove", display(path))?;
        Ok(Vec::new())
    }

    /// Flat form: deletes what lower layers have below `path`, if it is a directory. Returns the
    /// remaining directories that the current layer does not list, including `path`.
    fn delete_below(&self, parents: &mut Parents, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut kept = Vec::new();
        let mut pending = vec![path.to_vec()];
        while let Some(path) = pending.pop().filter(|_| self.has_lower) {
            let entered =
                parents.enter(&path, Missing::Leave).path("open the directory", display(&path))?;
            if !entered.found {
                continue;
            }
            parents.changed();
            let names = directory::names(parents.top()).path("list", display(&path))?;
            for found in names {
                let mut child = path.clone();
                if !child.is_empty() {
                    child.push(b'/');
                }
                child.extend_from_slice(found.name.as_bytes());
                if !self.brought(&child) {
                    remove_at(parents.top(), found.name.as_bytes())
                        .path("remove", display(&child))?;
                } else if found.kind == FileKind::Directory {
                    pending.push(child);
                }
            }
            if self.written.get(&path) != Some(&true) {
                kept.push(path);
            }
        }
        Ok(kept)
    }

    /// Returns whether the current layer has written `path` or something below it.
    fn brought(&self, path: &[u8]) -> bool {
        let start = start_below(path);
        let from = (Bound::Excluded(start.clone()), Bound::Unbounded);
        let next = self.written.range::<Vec<u8>, _>(from).next();
        self.written.contains_key(path) || next.is_some_and(|(other, _)| other.starts_with(&start))
    }
}

/// Returns the common prefix of all paths below `path`.
fn start_below(path: &[u8]) -> Vec<u8> {
    let mut start = path.to_vec();
    if !path.is_empty() {
        start.push(b'/');
    }
    start
}

/// Returns whether `set` contains `path` or one of its parents.
fn has_at_or_above(set: &BTreeSet<Vec<u8>>, path: &[u8]) -> bool {
    if set.is_empty() {
        return false;
    }
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let above = slashes.map(|(at, _)| &path[..at]);
    std::iter::once(&path[..0]).chain(above).chain([path]).any(|path| set.contains(path))
}

/// Removes the members of `set` below `path` and returns them.
fn take_below(set: &mut BTreeSet<Vec<u8>>, path: &[u8]) -> Vec<Vec<u8>> {
    let start = start_below(path);
    let from = (Bound::Excluded(start.clone()), Bound::Unbounded);
    let taken: Vec<Vec<u8>> = set
        .range::<Vec<u8>, _>(from)
        .take_while(|other| other.starts_with(&start))
        .cloned()
        .collect();
    for path in &taken {
        set.remove(path);
    }
    taken
}

/// Splits a path into directory and name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&path[..0], path),
    }
}
