//! Interpretation of the names in a tar: the paths of entries and the targets of links, within
//! limits.

use super::own_links::OwnLinks;
use super::stream::refuse;
use crate::layer::{Entry, LayerPath, Limits};
use imgctl_base::error::Result;

/// Maximum length of a path component in bytes, as on Linux file systems (NAME_MAX).
const MAX_NAME: usize = 255;

/// Interpretation of entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Literally; rejects `..`. For archives whose members are looked up by name.
    Plain,
    /// As tar(1) and Docker extract them: through the archive's own symlinks, inside the root. An
    /// entry without a name is skipped; one that `..` leads outside is rejected.
    Archive,
    /// As containerd and umoci apply layers: like [`Names::Archive`], but `..` stops at the root.
    Layer,
}

/// Interprets the names of one tar.
#[derive(Debug)]
pub(super) struct Namer {
    kind: Names,
    limits: Limits,
    own_links: OwnLinks,
}

impl Namer {
    pub(super) fn new(kind: Names, limits: Limits) -> Self {
        Self { kind, limits, own_links: OwnLinks::default() }
    }

    pub(super) fn kind(&self) -> Names {
        self.kind
    }

    /// Records an entry that has been read: the following ones may be below it.
    pub(super) fn add(&mut self, entry: &Entry) {
        if self.kind != Names::Plain {
            self.own_links.add(entry);
        }
    }

    /// Returns the path of an entry of this name.
    pub(super) fn entry(&mut self, name: &[u8]) -> Result<LayerPath> {
        let path = self.path(name)?;
        if self.kind == Names::Plain {
            return Ok(path);
        }
        let place = self.own_links.place(path)?;
        self.check(&place)?;
        Ok(place)
    }

    fn path(&self, name: &[u8]) -> Result<LayerPath> {
        if name.len() > self.limits.path {
            return Err(refuse(format!(
                "a path of {} bytes is longer than the limit of {}",
                name.len(),
                self.limits.path
            )));
        }
        let path = match self.kind {
            Names::Plain => LayerPath::parse(name)?,
            Names::Archive => match LayerPath::clean(name)? {
                (path, false) => path,
                (_, true) => {
                    return Err(refuse(format!(
                        "`{}` leads outside the archive with `..`",
                        String::from_utf8_lossy(name)
                    )));
                }
            },
            Names::Layer => LayerPath::clean(name)?.0,
        };
        self.check(&path)?;
        Ok(path)
    }

    fn check(&self, path: &LayerPath) -> Result<()> {
        if path.as_bytes().len() > self.limits.path {
            return Err(refuse(format!(
                "`{path}` is longer than the limit of {} bytes",
                self.limits.path
            )));
        }
        if path.components().count() > self.limits.depth {
            return Err(refuse(format!(
                "a path is deeper than the limit of {} directories",
                self.limits.depth
            )));
        }
        if path.components().any(|name| name.len() > MAX_NAME) {
            return Err(refuse(format!("`{path}` has a component of more than {MAX_NAME} bytes")));
        }
        Ok(())
    }

    /// Interprets a hard link's target like an entry's path, except for its last component.
    pub(super) fn hard_link_target(&mut self, raw: &[u8]) -> Result<LayerPath> {
        let path = self.path(raw)?;
        if self.kind == Names::Plain {
            return Ok(path);
        }
        let target = self.own_links.link_target(raw)?;
        self.check(&target)?;
        Ok(target)
    }

    /// Validates a symlink's target, which is returned unchanged.
    pub(super) fn symlink_target(&self, target: Vec<u8>) -> Result<Vec<u8>> {
        if target.is_empty() || target.contains(&0) || target.len() > self.limits.path {
            return Err(refuse("a symlink's target is empty, too long or has a NUL"));
        }
        Ok(target)
    }
}
