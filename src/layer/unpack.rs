//! Applies a layer's entries to a directory: as an overlay lower (whiteouts become 0/0 devices or
//! xattrs) or flat (whiteouts delete). The one place that creates files from foreign content.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use crate::error::Result;
use crate::layer::{Entry, LayerPath};

/// What the directory is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One layer for overlayfs, with `trusted.overlay.*` xattrs and 0/0 devices as root, or with
    /// `user.overlay.*` xattrs (mount option `userxattr`).
    Overlay { user_xattrs: bool },
    /// The merged tree of all layers applied so far: whiteouts delete.
    Flat,
}

/// What to do about ownership, devices and privileged xattrs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Set everything; failing to is an error.
    Root,
    /// Owners are not set, devices are refused or left out with a note, as for an ordinary user.
    User,
}

/// Finds the content of hard-link targets that lie in lower layers (overlay form only).
pub(crate) trait LowerFiles {
    /// Opens the regular file `path` of the lower layers, or `None` if there is none.
    fn open(&self, path: &LayerPath) -> Result<Option<(Entry, File)>>;
}

/// No lower layers: a link to something the layer does not contain is an error.
pub(crate) struct NoLowerFiles;

impl LowerFiles for NoLowerFiles {
    fn open(&self, _path: &LayerPath) -> Result<Option<(Entry, File)>> {
        Ok(None)
    }
}

/// Applies entries, one after another, inside one directory.
pub(crate) struct Unpacker {
    _root: OwnedFd,
}

impl Unpacker {
    /// Works inside `root` (an open directory).
    pub(crate) fn new(root: OwnedFd, _form: Form, _privilege: Privilege) -> Result<Self> {
        Ok(Self { _root: root })
    }

    /// Applies one entry with its content.
    pub(crate) fn apply(
        &mut self,
        _entry: &Entry,
        _content: &mut dyn Read,
        _lower: &dyn LowerFiles,
    ) -> Result<()> {
        todo!()
    }

    /// Sets the times of directories and returns notes about what could not be kept (an ordinary
    /// user's devices and owners, `user.*` xattrs the file system lacks).
    pub(crate) fn finish(self) -> Result<Vec<String>> {
        todo!()
    }
}
