//! Directory of one mount, `store/mounts/<id>`, locked while a process creates or removes it.
//!
//! An unfinished directory (no record, or one that is not ready) whose lock is free belongs to a
//! process that died, so it is garbage. The lock of all mounts is held briefly between creating a
//! directory and locking it, and while searching for garbage, so that a new directory is not
//! mistaken for an abandoned one.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mount::mountinfo::{self, SOURCE};
use crate::mount::path_serde;
use crate::store::{Store, is_torn};
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::directory::list;
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::Digest;

/// Prefix of the IDs of build containers.
pub(super) const BUILD: &str = "build-";
/// Directory that receives changes.
pub(crate) const UPPER: &str = "upper";
/// Work directory of overlayfs.
pub(crate) const WORK: &str = "work";
/// Directory at which the files appear.
pub(crate) const MERGED: &str = "merged";
const TRASH: &str = ".trash-";
const LOCK_OF_ALL: &str = ".lock";
const LOCK: &str = "lock";

/// Returns the directory of all mounts of `store`.
pub(super) fn directory(store: &Store) -> PathBuf {
    store.root().join("store").join("mounts")
}

/// Directory of one mount, locked by this process. Unmounted and removed on drop unless
/// [`Workspace::keep`] was called.
#[derive(Debug)]
pub(crate) struct Workspace {
    id: String,
    path: PathBuf,
    keep: bool,
    _lock: Lock,
}

impl Workspace {
    /// Creates a workspace whose ID is `prefix` followed by twelve random hex digits.
    pub(super) fn create(store: &Store, prefix: &str) -> Result<Self> {
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
            return Ok(Self { id, path, keep: false, _lock: lock });
        }
    }

    /// Opens an existing workspace, waiting while another process creates or removes it. Returns
    /// `None` if it no longer exists.
    pub(super) fn open(store: &Store, id: &str) -> Result<Option<Self>> {
        let path = directory(store).join(id);
        if !path.is_dir() {
            return Ok(None);
        }
        let lock = match Lock::acquire(&path.join(LOCK), Mode::Exclusive, &mut || {}) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            lock => lock?,
        };
        // The previous lock holder may have moved the directory to the trash.
        if !path.join(LOCK).exists() {
            return Ok(None);
        }
        Ok(Some(Self { id: id.to_owned(), path, keep: true, _lock: lock }))
    }

    /// Returns the mount's ID.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the path of a file or directory in the workspace.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates a directory in the workspace, mode 0755. The caller that fills it sets the metadata
    /// of the image's root.
    pub(super) fn make(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        std::fs::create_dir(&path).path("create", &path)?;
        Ok(path)
    }

    /// Returns the source that the mount table shows.
    pub(super) fn source(&self) -> String {
        format!("{SOURCE}{}", self.id)
    }

    /// Keeps the mount when this value is dropped.
    pub(super) fn keep(mut self) {
        self.keep = true;
    }

    /// Unmounts everything mounted from the workspace and removes it.
    pub(super) fn remove(mut self, lazy: bool) -> Result<()> {
        self.keep = true;
        self.remove_now(lazy)
    }

    fn remove_now(&self, lazy: bool) -> Result<()> {
        mountinfo::unmount_all_of(&self.id, &self.path, lazy)?;
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

/// Returns the IDs of all mounts, in any state.
pub(super) fn ids(store: &Store) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for path in list(&directory(store))? {
        let name = path.file_name().and_then(OsStr::to_str);
        ids.extend(name.filter(|name| !name.starts_with('.')).map(str::to_owned));
    }
    Ok(ids)
}

/// Removes what dead processes and reboots left behind: unfinished mounts, build containers,
/// unchanged mounts of an earlier boot, and half-emptied trash. Never touches a mount into which a
/// user may have written.
pub fn sweep(store: &Store) -> Result<()> {
    let all = directory(store);
    let mut garbage = Vec::new();
    {
        let _no_newborns = match lock_all(&all) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            lock => lock?,
        };
        let ids = ids(store)?;
        // Without mounts, /proc is not needed; a minimal container may not have it.
        let boot_id = if ids.is_empty() { String::new() } else { mountinfo::boot_id()? };
        for id in ids {
            let path = all.join(&id);
            if !is_garbage(&path, &boot_id) {
                continue;
            }
            let lock = match Lock::try_acquire(&path.join(LOCK), Mode::Exclusive) {
                // Another process has just removed the directory.
                Err(error) if error.kind() == Kind::NotFound => continue,
                lock => lock?,
            };
            let Some(_ours) = lock else {
                continue;
            };
            mountinfo::unmount_all_of(&id, &path, true)?;
            garbage.push(move_to_trash(&path)?);
        }
        let entries = std::fs::read_dir(&all).path("read", &all)?;
        garbage.extend(
            entries
                .flatten()
                .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(TRASH.as_bytes()))
                .map(|entry| entry.path()),
        );
    }
    garbage.sort();
    garbage.dedup();
    garbage.iter().try_for_each(|path| atomic::remove_tree(path))
}

/// Returns whether the mount was never finished, or was ended by a reboot with nothing written into
/// it. A mount with an unreadable record is not garbage: the user decides about it.
fn is_garbage(path: &Path, boot_id: &str) -> bool {
    let unchanged =
        || std::fs::read_dir(path.join(UPPER)).map_or(true, |mut names| names.next().is_none());
    match Record::read(path) {
        Err(_) => false,
        // Torn by a power cut, which ended the mount.
        Ok(None) if path.join(FILE).exists() => unchanged(),
        Ok(None) => true,
        Ok(Some(record)) if !record.ready => true,
        Ok(Some(record)) => {
            record.boot_id != boot_id && record.backend != Backend::Checkout && unchanged()
        }
    }
}

/// Moves the directory to the trash in one step, then removes it. A record never names a
/// half-removed directory.
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

/// Returns twelve hex digits that no other process uses; not a secret.
pub(crate) fn random_hex() -> String {
    // The standard library seeds each `RandomState` from the system's random number generator.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    format!("{:012x}", hasher.finish() & 0xffff_ffff_ffff)
}

const FILE: &str = "mount.json";

/// Mechanism that makes the files appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// An overlay of one snapshot per layer.
    Overlay,
    /// An index over the layers' tars, mounted without unpacking.
    Erofs,
    /// A plain directory with all layers flattened into it.
    Checkout,
}

impl Backend {
    /// Returns the name used on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overlay => "overlay",
            Self::Erofs => "erofs",
            Self::Checkout => "checkout",
        }
    }
}

/// One mount. `digests` are the digests that prune must keep for it (store/ reads this member by
/// name).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub id: String,
    /// Name given by the user or generated by `create`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The image as the user named it, or its full name.
    pub image: String,
    /// Digest of the image's manifest.
    pub manifest: Digest,
    /// Blobs and diff IDs in use.
    pub digests: Vec<Digest>,
    /// Path of the mounted files.
    #[serde(with = "path_serde")]
    pub path: PathBuf,
    pub backend: Backend,
    pub read_only: bool,
    /// Creation time in RFC 3339.
    pub created: String,
    /// ID of the boot in which the image was mounted.
    pub boot_id: String,
    /// Mount namespace in which the image was mounted.
    pub namespace: String,
    /// Set after mounting. A record that is not ready belongs to a process that is still working or
    /// has died.
    pub ready: bool,
}

impl Record {
    /// Writes the record into the mount's directory. Not synced: a mount does not survive a power
    /// failure.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        let json = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::failed("cannot write a mount's record").caused_by(error))?;
        atomic::write(&path, &json, 0o600, Durability::Atomic)
    }

    /// Reads the record in a mount's directory; `None` if there is none, or if a power cut came
    /// before its bytes were on disk.
    pub fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        let json = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            json => json.path("read", &path)?,
        };
        if is_torn(&json) {
            return Ok(None);
        }
        serde_json::from_slice(&json).map(Some).map_err(|error| {
            Error::bad_content(format!("{} is malformed", path.display()))
                .caused_by(error)
                .hint("run `imgctl umount --all` to remove it")
        })
    }
}
