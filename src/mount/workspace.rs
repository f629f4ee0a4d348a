//! The directory of one mount, `store/mounts/<id>`, locked while somebody makes or removes it.
//!
//! A directory that its maker has not finished (no record, or one that is not ready) and whose
//! lock is free belongs to a process that died: it is garbage. The lock of all mounts is held for
//! the moments between making a directory and locking it, and while garbage is looked for, so
//! that nobody takes a newborn for a dead one.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext, Kind, Result};
use crate::fs::atomic;
use crate::fs::lock::{Lock, Mode};
use crate::mount::record::{Backend, Record};
use crate::mount::{detach, mountinfo};
use crate::store::Store;

/// What the source of each of our mounts starts with in the mount table; the ID follows.
pub(crate) const SOURCE: &str = "imgctl:";
/// Build containers' IDs start so.
pub(crate) const BUILD: &str = "build-";
/// Where changes go.
pub(crate) const UPPER: &str = "upper";
/// overlayfs's own directory.
pub(crate) const WORK: &str = "work";
/// Where the files appear.
pub(crate) const MERGED: &str = "merged";
const TRASH: &str = ".trash-";
const LOCK_OF_ALL: &str = ".lock";
const LOCK: &str = "lock";

/// Where all mounts of `store` lie.
pub(crate) fn directory(store: &Store) -> PathBuf {
    store.root().join("store").join("mounts")
}

/// One mount's directory, locked by us. Dropped without [`Workspace::keep`] it is unmounted and
/// removed.
#[derive(Debug)]
pub(crate) struct Workspace {
    id: String,
    path: PathBuf,
    keep: bool,
    _lock: Lock,
}

impl Workspace {
    /// Makes a new one, its ID `prefix` and twelve random hex digits.
    pub(crate) fn create(store: &Store, prefix: &str) -> Result<Self> {
        let all = directory(store);
        make_directory(&all)?;
        let _newborn = lock_all(&all)?;
        loop {
            let id = format!("{prefix}{}", random_hex());
            let path = all.join(&id);
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                made => made.path("create", &path)?,
            }
            let lock = Lock::acquire(&path.join(LOCK), Mode::Exclusive, &mut || {})?;
            return Ok(Self {
                id,
                path,
                keep: false,
                _lock: lock,
            });
        }
    }

    /// Takes an existing one; waits while another process makes or removes it. `None` if it is gone.
    pub(crate) fn open(store: &Store, id: &str) -> Result<Option<Self>> {
        let path = directory(store).join(id);
        if !path.is_dir() {
            return Ok(None);
        }
        let lock = match Lock::acquire(&path.join(LOCK), Mode::Exclusive, &mut || {}) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            lock => lock?,
        };
        // The previous holder may have moved it to the trash.
        if !path.join(LOCK).exists() {
            return Ok(None);
        }
        Ok(Some(Self {
            id: id.to_owned(),
            path,
            keep: true,
            _lock: lock,
        }))
    }

    /// The mount's ID.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// A file or directory in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a directory in it, mode 0755 (what the image's root gets is set by whoever fills it).
    pub(crate) fn make(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        std::fs::create_dir(&path).path("create", &path)?;
        Ok(path)
    }

    /// What the mount table shows as source.
    pub(crate) fn source(&self) -> String {
        format!("{SOURCE}{}", self.id)
    }

    /// The mount is made: it stays when this value goes.
    pub(crate) fn keep(mut self) {
        self.keep = true;
    }

    /// Unmounts what is mounted from it and removes it.
    pub(crate) fn remove(mut self, lazy: bool) -> Result<()> {
        self.keep = true;
        self.remove_now(lazy)
    }

    fn remove_now(&self, lazy: bool) -> Result<()> {
        detach::everything_of(&self.id, &self.path, lazy)?;
        discard(&self.path)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = self.remove_now(true)
        {
            tracing::warn!(id = self.id, %error, "cannot clean up after a mount");
        }
    }
}

/// The IDs of all mounts, whatever their state.
pub(crate) fn ids(store: &Store) -> Result<Vec<String>> {
    let all = directory(store);
    let entries = match std::fs::read_dir(&all) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.path("read", &all)?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry.path("read", &all)?.file_name();
        if let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) {
            ids.push(name.to_owned());
        }
    }
    ids.sort();
    Ok(ids)
}

/// Removes what dead processes and reboots left behind: unfinished mounts, build containers,
/// unchanged mounts of an earlier boot, half-emptied trash. What a user may have written into
/// is never touched.
pub(crate) fn sweep(store: &Store) -> Result<()> {
    let all = directory(store);
    let mut garbage = Vec::new();
    {
        let _no_newborns = match lock_all(&all) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            lock => lock?,
        };
        let ids = ids(store)?;
        // Without mounts there is no need of /proc, which a bare container may not have.
        let boot_id = match ids.is_empty() {
            true => String::new(),
            false => mountinfo::boot_id()?,
        };
        for id in ids {
            let path = all.join(&id);
            if !is_garbage(&path, &boot_id) {
                continue;
            }
            let lock = match Lock::try_acquire(&path.join(LOCK), Mode::Exclusive) {
                // Another process has just removed it.
                Err(error) if error.kind() == Kind::NotFound => continue,
                lock => lock?,
            };
            let Some(_ours) = lock else {
                continue;
            };
            detach::everything_of(&id, &path, true)?;
            garbage.push(move_to_trash(&path)?);
        }
        let entries = std::fs::read_dir(&all).path("read", &all)?;
        garbage.extend(
            entries
                .flatten()
                .filter(|entry| {
                    entry
                        .file_name()
                        .as_encoded_bytes()
                        .starts_with(TRASH.as_bytes())
                })
                .map(|entry| entry.path()),
        );
    }
    garbage.sort();
    garbage.dedup();
    garbage
        .iter()
        .try_for_each(|path| atomic::remove_tree(path))
}

/// Never finished, or ended by a reboot with nothing written into it. A record that cannot be read
/// is left for the user to decide about.
fn is_garbage(path: &Path, boot_id: &str) -> bool {
    match Record::read(path) {
        Err(_) => false,
        Ok(None) => true,
        Ok(Some(record)) if !record.ready => true,
        Ok(Some(record)) => {
            let unchanged = || {
                std::fs::read_dir(path.join(UPPER)).map_or(true, |mut names| names.next().is_none())
            };
            record.boot_id != boot_id && record.backend != Backend::Checkout && unchanged()
        }
    }
}

/// Out of sight in one step, then gone: a record never names a half-removed directory.
fn discard(path: &Path) -> Result<()> {
    atomic::remove_tree(&move_to_trash(path)?)
}

fn move_to_trash(path: &Path) -> Result<PathBuf> {
    let trash = path.with_file_name(format!("{TRASH}{}", random_hex()));
    std::fs::rename(path, &trash).path("remove", path)?;
    Ok(trash)
}

fn lock_all(all: &Path) -> Result<Lock> {
    Lock::acquire(&all.join(LOCK_OF_ALL), Mode::Exclusive, &mut || {})
}

fn make_directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).path("create", path)
}

/// Twelve hex digits that no other process has; not a secret.
pub(crate) fn random_hex() -> String {
    // The standard library seeds each `RandomState` from the system's random numbers.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    format!("{:012x}", hasher.finish() & 0xffff_ffff_ffff)
}

/// An error about a mount that is in use.
pub(crate) fn busy(path: &Path) -> Error {
    Error::new(
        Kind::Busy,
        format!("cannot unmount {}: it is in use", path.display()),
    )
    .hint(format!(
        "`fuser -vm {0}` or `lsof +f -- {0}` shows by whom",
        path.display()
    ))
    .hint("`imgctl umount --lazy` detaches it now and frees it when the last user is gone")
}
