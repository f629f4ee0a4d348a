//! Temporary names for outputs, beside the final ones: an output is complete or not there.

use std::path::{Path, PathBuf};

use imgctl_base::fs::atomic::remove_tree;

/// A temporary name next to the final one; removed on drop if it still exists.
pub(super) struct Temporary(PathBuf);

impl Temporary {
    /// Returns a name beside `path`.
    pub(super) fn beside(path: &Path) -> Self {
        use std::hash::{BuildHasher, Hasher};
        let random = std::hash::RandomState::new().build_hasher().finish();
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{random:016x}.tmp"));
        Self(path.with_file_name(name))
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}
