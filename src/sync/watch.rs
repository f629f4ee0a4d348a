//! What syncing tells while it goes on. Must not know who looks at it.

/// Receives progress of many hosts at once. Calls come from many threads, and often.
pub(crate) trait Watch: Send + Sync {
    /// `bytes` more of what it lacked are on their way into `host`.
    fn moved(&self, host: &str, from: Origin<'_>, bytes: u64);

    /// `bytes` of those have to come again: a transfer broke.
    fn lost(&self, host: &str, bytes: u64);

    /// Everything is on `host`; its tree `tree` is being made.
    fn checkout(&self, host: &str, tree: &str);

    /// `bytes` of layers more have been unpacked there.
    fn unpacked(&self, host: &str, bytes: u64);

    /// `host` is done, or has failed.
    fn ended(&self, host: &str, well: bool);
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin<'a> {
    Controller,
    Host(&'a str),
}

/// Tells nobody.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn moved(&self, _host: &str, _from: Origin<'_>, _bytes: u64) {}

    fn lost(&self, _host: &str, _bytes: u64) {}

    fn checkout(&self, _host: &str, _tree: &str) {}

    fn unpacked(&self, _host: &str, _bytes: u64) {}

    fn ended(&self, _host: &str, _well: bool) {}
}
