//! `RUN --mount=type=cache`: which directory of the store holds a cache, what the cache starts
//! with, and which steps may use it concurrently. Does not know about other mounts, and mounts
//! nothing.
//!
//! A cache is identified by more than its ID (as in BuildKit): its initial content, owner and mode
//! count as well. A step therefore never sees the files of another base or the directory of another
//! user under the same ID, and a changed base starts a new cache.

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::build::stage::Stage;
use crate::build::step_cache::Key;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::fs::metadata::Metadata;
use imgctl_base::fs::root::Root;
use imgctl_kubefile::ast::{CacheMount, CacheSharing};

/// Mode of a cache that starts empty, unless `mode=` says otherwise (BuildKit).
const DEFAULT_MODE: u32 = 0o755;

/// The caches of one step, by name. They stay locked for the lifetime of this value.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    open: HashMap<String, (PathBuf, Lock)>,
}

impl Caches {
    /// Finds or creates the directory of a cache; `content` provides the content of a new one.
    /// Returns the path to mount, with its device and inode.
    pub(super) fn open(
        &mut self,
        stage: &Stage<'_>,
        cache: &CacheMount,
        content: &mut dyn FnMut() -> Result<PathBuf>,
    ) -> Result<(PathBuf, (u64, u64))> {
        let name = name(stage, cache)?;
        let path = match self.open.get(&name) {
            // Two mounts in one step share the lock that the step holds; otherwise it would wait
            // for itself.
            Some((path, _)) => path.clone(),
            None => {
                let (path, lock) = acquire(stage, cache, &name)?;
                if !path.try_exists().path("look at", &path)? {
                    put(cache, &content()?, &path)?;
                }
                self.open.insert(name, (path.clone(), lock));
                path
            }
        };
        match &cache.source {
            Some(source) if cache.from.is_none() => inside(&path, source, &cache.id),
            _ => {
                let path = std::fs::canonicalize(&path).path("find", &path)?;
                let metadata = std::fs::symlink_metadata(&path).path("look at", &path)?;
                Ok((path, (metadata.dev(), metadata.ino())))
            }
        }
    }
}

/// Adds the initial content and the owner of a cache to a key. A cache with defaults adds nothing.
pub(crate) fn add_base(stage: &Stage<'_>, cache: &CacheMount, key: &mut Key) -> Result<()> {
    if let Some(from) = &cache.from {
        key.add(b"from");
        stage.add_source(Some(from), cache.source.as_deref(), key)?;
        key.add(format!("{:?} {:?} {:?}", cache.uid, cache.gid, cache.mode).as_bytes());
    } else if owner(cache) != (0, 0, DEFAULT_MODE) {
        key.add(format!("{:?}", owner(cache)).as_bytes());
    }
    Ok(())
}

fn name(stage: &Stage<'_>, cache: &CacheMount) -> Result<String> {
    let mut key = Key::new("cache mount");
    key.add(cache.id.as_bytes());
    add_base(stage, cache, &mut key)?;
    let mut name = key.finish();
    name.truncate(32);
    Ok(name)
}

/// Returns owner and mode of a cache that starts empty.
fn owner(cache: &CacheMount) -> (u32, u32, u32) {
    (cache.uid.unwrap_or(0), cache.gid.unwrap_or(0), cache.mode.unwrap_or(DEFAULT_MODE))
}

/// Returns the directory for this step, locked: the cache itself or, if a private cache is in use,
/// the first additional copy that is free.
fn acquire(stage: &Stage<'_>, cache: &CacheMount, name: &str) -> Result<(PathBuf, Lock)> {
    let all = stage.shared.store.cache_directory().join("mounts");
    std::fs::create_dir_all(&all).path("make", &all)?;
    let first = all.join(name);
    let lock = first.with_extension("lock");
    let held = match cache.sharing {
        CacheSharing::Shared => Lock::acquire(&lock, Mode::Shared, &mut || {})?,
        CacheSharing::Locked => {
            let reporter = stage.shared.reporter;
            let id = &cache.id;
            Lock::acquire(&lock, Mode::Exclusive, &mut || {
                reporter.note(&format!("waiting for another build that uses cache {id}"));
            })?
        }
        CacheSharing::Private => {
            let mut number = 0;
            loop {
                let path = match number {
                    0 => first.clone(),
                    number => all.join(format!("{name}-{number}")),
                };
                let lock = path.with_extension("lock");
                if let Some(lock) = Lock::try_acquire(&lock, Mode::Exclusive)? {
                    return Ok((path, lock));
                }
                number += 1;
            }
        }
    };
    Ok((first, held))
}

/// Sets owner and mode of a new cache and renames it into place, so that it never appears
/// half-made.
fn put(cache: &CacheMount, new: &Path, path: &Path) -> Result<()> {
    if cache.from.is_some() {
        dress(new, cache.uid, cache.gid, cache.mode)?;
    } else {
        let (uid, gid, mode) = owner(cache);
        dress(new, Some(uid), Some(gid), Some(mode))?;
    }
    match std::fs::rename(new, path) {
        // Another build that shares the cache was faster.
        Err(_) if path.exists() => Ok(()),
        renamed => renamed.path("create the cache", path),
    }
}

fn dress(path: &Path, uid: Option<u32>, gid: Option<u32>, mode: Option<u32>) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, uid, gid).path("set the owner of", path)?;
    }
    match mode {
        Some(mode) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .path("set the mode of", path),
        None => Ok(()),
    }
}

/// Returns a directory inside a cache. Symlinks left there by commands resolve inside the cache
/// only; the inode number detects a directory that is replaced before it is mounted.
fn inside(cache: &Path, source: &str, id: &str) -> Result<(PathBuf, (u64, u64))> {
    let root = Root::open(cache)?;
    let source = source.trim_start_matches('/');
    let directory = root.open_directory(Path::new(source)).map_err(|error| {
        if error.kind() != Kind::NotFound {
            return error;
        }
        Error::not_found(format!("cache `{id}` has no directory `{source}`"))
            .hint("a cache without from= starts empty: create the directory in an earlier RUN")
    })?;
    let metadata = Metadata::of(&directory).path("look at", cache)?;
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let path = std::fs::read_link(&link).path("find", cache)?;
    Ok((path, (metadata.dev, metadata.ino)))
}
