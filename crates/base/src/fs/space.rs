//! The free space of file systems. Must not know what it is for.

use std::path::Path;

use crate::error::{IoContext as _, Result};

/// Returns the number of bytes that this process can still write to the file system of `path`; `None` if the
/// file system does not tell.
pub fn free(path: &Path) -> Result<Option<u64>> {
    let facts = rustix::fs::statvfs(path).path("examine the file system of", path)?;
    let blocks = if rustix::process::geteuid().is_root() { facts.f_bfree } else { facts.f_bavail };
    Ok((facts.f_blocks > 0).then(|| blocks.saturating_mul(facts.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_blocks_tells_nothing() {
        assert_eq!(free(Path::new("/proc")).unwrap(), None);
        let directory = tempfile::tempdir().unwrap();
        assert!(free(directory.path()).unwrap().is_some());
        assert!(free(&directory.path().join("missing")).is_err());
    }
}
