//! Space for temporary data: unnamed files and directories in `ingest/`, and removal of those that
//! dead processes left.
//!
//! An entry of `ingest/` is locked while its process lives: a file by itself, a directory by the
//! file `<name>.lock` beside it. Must not know what the data is for.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use crate::store::Store;
use crate::store::layout::unique_name;
use crate::store::partial::is_worth_keeping;
use imgctl_base::error::{IoContext, Result};
use imgctl_base::fs::atomic::remove_tree;
use imgctl_base::fs::lock::{Lock, Mode};

/// Extension of a directory's lock.
const LOCK: &str = "lock";

/// A directory on the store's file system, removed with the value; if the process dies, the next
/// process removes it.
#[derive(Debug)]
pub struct ScratchDirectory {
    path: PathBuf,
    /// Shows that this process is alive.
    _alive: Lock,
}

impl ScratchDirectory {
    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = remove_tree(&self.path);
        let _ = std::fs::remove_file(self.path.with_added_extension(LOCK));
    }
}

impl Store {
    /// Creates an empty directory for exclusive use.
    pub fn scratch_directory(&self) -> Result<ScratchDirectory> {
        let path = self.path("ingest").join(unique_name());
        // Lock before the directory exists: a directory without a held lock belongs to a dead
        // process.
        let lock = path.with_added_extension(LOCK);
        let alive = Lock::acquire(&lock, Mode::Exclusive, &mut || {})?;
        std::fs::create_dir(&path).path("make", &path)?;
        Ok(ScratchDirectory { path, _alive: alive })
    }

    /// Creates an unnamed file on the store's file system, for reading and writing; it is gone once
    /// closed.
    pub fn scratch_file(&self) -> Result<File> {
        let path = self.path("ingest").join(unique_name());
        // The lock prevents a sweep until the name is removed.
        let _alive = Lock::acquire(&path, Mode::Exclusive, &mut || {})?;
        let file = OpenOptions::new().read(true).write(true).open(&path).path("open", &path)?;
        std::fs::remove_file(&path).path("unlink", &path)?;
        Ok(file)
    }

    /// Removes unfinished data whose process is gone, which a free lock shows.
    pub(super) fn sweep_ingest(&self) {
        let Ok(entries) = std::fs::read_dir(self.path("ingest")) else {
            return;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let lock = if is_directory { path.with_added_extension(LOCK) } else { path.clone() };
            // A directory's lock must outlive it.
            let is_lock = path.extension().is_some_and(|ending| ending == LOCK);
            if is_lock && path.with_extension("").is_dir() {
                continue;
            }
            if !is_directory && is_worth_keeping(&path) {
                continue;
            }
            if let Ok(Some(_free)) = Lock::try_acquire(&lock, Mode::Exclusive) {
                let _ = if is_directory { remove_tree(&path) } else { Ok(()) };
                let _ = std::fs::remove_file(&lock);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Options;

    #[test]
    fn directories_live_with_their_maker_and_no_longer() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let ingest = store.path("ingest");
        let count = || std::fs::read_dir(&ingest).unwrap().count();
        let scratch = store.scratch_directory().unwrap();
        std::fs::write(scratch.path().join("file"), "x").unwrap();
        store.sweep_ingest();
        assert!(scratch.path().join("file").exists());
        drop(scratch);
        assert_eq!(count(), 0);
        // A killed process leaves an unlocked lock file, or none.
        for lock in [true, false] {
            std::fs::create_dir_all(ingest.join("1.2/inner")).unwrap();
            if lock {
                std::fs::write(ingest.join("1.2.lock"), "").unwrap();
            }
            store.sweep_ingest();
            assert_eq!(count(), 0);
        }
        std::fs::write(ingest.join("1.3.lock"), "").unwrap();
        store.sweep_ingest();
        assert_eq!(count(), 0);
    }
}
