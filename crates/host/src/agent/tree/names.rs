//! The paths of one tree, derived from names that are validated once.

use std::path::{Path, PathBuf};

use imgctl_base::error::{Error, Result};
use imgctl_layer::LayerPath;

/// Locations of one tree's directories.
#[derive(Clone, Debug)]
pub(super) struct TreePaths {
    /// `<data>/<cluster>`.
    pub(super) root: PathBuf,
    /// `rootfs`, `applications/x/workdir`.
    pub(super) tree: String,
    /// Directory that contains the link and the trees.
    pub(super) parent: PathBuf,
    /// File name of the link.
    pub(super) base: String,
}

impl TreePaths {
    pub(super) fn new(root: &str, tree: &str) -> Result<Self> {
        let root = PathBuf::from(root);
        let path = LayerPath::parse(tree.as_bytes())?;
        let clean = !path.is_root() && path.as_bytes() == tree.as_bytes();
        let ours = ["registry", "registry-layers", "trees", "runs"];
        let first = tree.split('/').next().unwrap_or_default();
        if !root.is_absolute() || !clean || ours.contains(&first) {
            return Err(Error::usage(format!(
                "`{tree}` below `{}` cannot be a tree",
                root.display()
            )));
        }
        let (above, base) = tree.rsplit_once('/').unwrap_or(("", tree));
        Ok(Self { parent: root.join(above), tree: tree.to_owned(), base: base.to_owned(), root })
    }

    /// Returns the link to the current tree.
    pub(super) fn link(&self) -> PathBuf {
        self.parent.join(&self.base)
    }

    pub(super) fn target(&self, id: &str) -> String {
        format!("{}.{id}", self.base)
    }

    pub(super) fn directory(&self, id: &str) -> PathBuf {
        self.parent.join(self.target(id))
    }

    pub(super) fn partial(&self, id: &str) -> PathBuf {
        self.parent.join(format!("{}{PARTIAL}", self.target(id)))
    }

    pub(super) fn removing(&self, id: &str) -> PathBuf {
        self.parent.join(format!("{}{REMOVING}", self.target(id)))
    }

    /// Number of directories between the tree and the root: 0 for `rootfs`.
    pub(super) fn depth(&self) -> usize {
        self.tree.matches('/').count()
    }

    /// Returns the ID of the current tree, if it exists and was made by imgctl.
    pub(super) fn current(&self) -> Option<String> {
        let target = std::fs::read_link(self.link()).ok()?;
        let id = target.to_str()?.strip_prefix(&format!("{}.", self.base))?;
        check_id(id).ok()?;
        self.directory(id).is_dir().then(|| id.to_owned())
    }

    /// Returns the IDs of all complete trees.
    pub(super) fn made(&self) -> Vec<String> {
        let start = format!("{}.", self.base);
        let mut ids: Vec<String> = std::fs::read_dir(&self.parent)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let id = name.to_str()?.strip_prefix(&start)?;
                check_id(id).ok()?;
                self.directory(id).is_dir().then(|| id.to_owned())
            })
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Returns what interrupted checkouts left behind for this tree.
    pub(super) fn leftovers(&self) -> Vec<PathBuf> {
        let start = format!("{}.", self.base);
        std::fs::read_dir(&self.parent)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let is_end = name.ends_with(PARTIAL) || name.ends_with(REMOVING);
                name.starts_with(&start) && (is_end || name.ends_with(LINK))
            })
            .map(|entry| entry.path())
            .collect()
    }
}

const PARTIAL: &str = ".partial";
const REMOVING: &str = ".removing";
/// Suffix of a link before it is renamed into place.
pub(super) const LINK: &str = ".link";

/// Validates an ID, which becomes part of file names.
pub(super) fn check_id(id: &str) -> Result<()> {
    let fine =
        id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'-'));
    if fine && !id.is_empty() && id.len() <= 128 && id != "former" {
        return Ok(());
    }
    Err(Error::usage(format!(
        "`{id}` is not a valid tree ID: use only letters, digits, `:`, `_` and `-`"
    )))
}

/// Returns the path as text for records.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_stay_below_their_root() {
        for bad in ["", "/", "../x", "a//b", "/rootfs", "a/../b", "registry", "runs/x", "a/"] {
            assert!(TreePaths::new("/data/c", bad).is_err(), "{bad}");
        }
        assert!(TreePaths::new("data", "rootfs").is_err());
        let paths = TreePaths::new("/data/c", "applications/x/workdir").unwrap();
        assert_eq!(paths.link(), Path::new("/data/c/applications/x/workdir"));
        assert_eq!(paths.depth(), 2);
        for bad in ["", "a/b", "..", "x.partial", "former", "a b"] {
            assert!(check_id(bad).is_err(), "{bad}");
        }
        assert!(check_id("sha256:abc-1").is_ok());
    }
}
