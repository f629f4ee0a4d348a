//! Progress of a sync: which host gets how many bytes from where. Must not know how they get there.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts one transfer. The final total is right even if existing bytes were skipped or bytes
/// arrived twice.
pub(super) struct Count<'a> {
    watch: &'a dyn Watch,
    host: &'a str,
    origin: Origin<'a>,
    size: u64,
    told: AtomicU64,
}

impl<'a> Count<'a> {
    pub(super) fn new(watch: &'a dyn Watch, host: &'a str, origin: Origin<'a>, size: u64) -> Self {
        Self { watch, host, origin, size, told: AtomicU64::new(0) }
    }

    pub(super) fn add(&self, bytes: u64) {
        let before = self.told.fetch_add(bytes, Ordering::Relaxed);
        let bytes = bytes.min(self.size.saturating_sub(before));
        if bytes > 0 {
            self.watch.moved(self.host, self.origin, bytes);
        }
    }

    /// Returns the number of bytes so far.
    pub(super) fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self, well: bool) {
        self.end_at(if well { self.size } else { 0 });
    }

    /// Ends a transfer of which the host itself had what was not counted.
    pub(super) fn end_with_own(&self) {
        let told = self.told().min(self.size);
        if told < self.size {
            self.watch.moved(self.host, Origin::Itself, self.size - told);
        }
    }

    /// Sets the final count to `bytes`.
    pub(super) fn end_at(&self, bytes: u64) {
        let told = self.told.load(Ordering::Relaxed).min(self.size);
        if told < bytes {
            self.watch.moved(self.host, self.origin, bytes - told);
        } else if told > bytes {
            self.watch.lost(self.host, told - bytes);
        }
    }
}

/// Receives the progress of many hosts. Calls come frequently and from many threads.
pub trait Watch: Send + Sync {
    /// Another `bytes` of the blobs that `host` lacked were transferred.
    fn moved(&self, host: &str, from: Origin<'_>, bytes: u64);

    /// `bytes` of those must be transferred again after a failed transfer.
    fn lost(&self, host: &str, bytes: u64);

    /// `host` has all blobs and is creating `tree`.
    fn checkout(&self, host: &str, tree: &str);

    /// Another `bytes` of layers were unpacked on `host`.
    fn unpacked(&self, host: &str, bytes: u64);

    /// `host` has finished or failed.
    fn ended(&self, host: &str, well: bool);
}

/// Source of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    Controller,
    Host(&'a str),
    Registry,
    /// The host itself had them.
    Itself,
}
