//! Leases: a running process's claims on objects that no name reaches yet.
//!
//! A lease is a file in `leases/`, locked by its holder, with one digest per line. It is valid
//! while the lock is held, so the lease of a dead holder ends by itself. A claim is written under
//! the store's shared lock; `prune` collects its roots and sweeps under the exclusive lock. A
//! process that claims an object first and checks for it second can therefore rely on the result.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::Store;
use crate::store::layout::unique_name;
use imgctl_base::error::{IoContext, Kind, Result};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::Digest;

/// A running process's claim on blobs that no name reaches yet; prune leaves them alone. Released
/// when the value is dropped or the process ends.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    store_lock: PathBuf,
    state: Mutex<State>,
    /// Shows that this process is alive.
    _alive: Lock,
}

#[derive(Debug)]
struct State {
    file: File,
    held: HashSet<Digest>,
}

impl Lease {
    /// Claims `digest` (of a blob or a diff ID's snapshot), whether or not it exists yet. Claim
    /// first, then check whether it exists.
    pub fn hold(&self, digest: &Digest) -> Result<()> {
        self.hold_all([digest])
    }

    /// Claims several digests at once; cheaper than one by one.
    pub fn hold_all<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) -> Result<()> {
        let mut state = lock(&self.state);
        let mut lines = String::new();
        let mut fresh = Vec::new();
        for digest in digests {
            if !state.held.contains(digest) {
                let _ = writeln!(lines, "{digest}");
                fresh.push(digest.clone());
            }
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let _lock = Lock::acquire(&self.store_lock, Mode::Shared, &mut || {})?;
        state.file.write_all(lines.as_bytes()).path("write", &self.path)?;
        state.held.extend(fresh);
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Store {
    /// Creates a lease.
    pub fn lease(&self) -> Result<Lease> {
        let path = self.path("leases").join(unique_name());
        // No garbage collection may see the file before it is locked.
        let _lock = self.lock(Mode::Shared)?;
        let alive = Lock::acquire(&path, Mode::Exclusive, &mut || {})?;
        let file = OpenOptions::new().append(true).open(&path).path("open", &path)?;
        Ok(Lease {
            path,
            store_lock: self.path("lock"),
            state: Mutex::new(State { file, held: HashSet::new() }),
            _alive: alive,
        })
    }

    /// Claims objects while this store value lives.
    pub(super) fn hold<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) -> Result<()> {
        let mut session = lock(&self.shared.session);
        let lease = match &mut *session {
            Some(lease) => lease,
            none => none.insert(self.lease()?),
        };
        lease.hold_all(digests)
    }

    /// Claims objects for reading only. In a read-only store, this user cannot run a garbage
    /// collection either, so reading continues without a claim.
    pub(super) fn hold_for_reading<'a>(
        &self,
        digests: impl IntoIterator<Item = &'a Digest>,
    ) -> Result<()> {
        match self.hold(digests) {
            Err(error) if error.kind() == Kind::Denied => Ok(()),
            held => held,
        }
    }

    /// Returns the claims of all live leases and removes dead leases. The caller holds the
    /// exclusive lock.
    pub(super) fn leased(&self) -> Result<HashSet<Digest>> {
        self.leased_except(None)
    }

    /// Returns the claims of live leases other than this store value's own.
    pub(super) fn leased_by_others(&self) -> Result<HashSet<Digest>> {
        let session = lock(&self.shared.session);
        self.leased_except(session.as_ref().map(|lease| &*lease.path))
    }

    fn leased_except(&self, own: Option<&Path>) -> Result<HashSet<Digest>> {
        let directory = self.path("leases");
        let mut all = HashSet::new();
        for entry in std::fs::read_dir(&directory).path("list", &directory)? {
            let path = entry.path("list", &directory)?.path();
            if own == Some(&*path) {
                continue;
            }
            if let Some(_dead) = Lock::try_acquire(&path, Mode::Exclusive)? {
                let _ = std::fs::remove_file(&path);
                continue;
            }
            all.extend(read_lease(&path)?);
        }
        Ok(all)
    }
}

fn read_lease(path: &Path) -> Result<Vec<Digest>> {
    match std::fs::read_to_string(path) {
        // The lease's holder has just ended.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.path("read", path)?.lines().map(Digest::parse).collect(),
    }
}

/// Locks a mutex and ignores poisoning: a panic in another thread leaves these states consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
