//! Progress events of a sync. Must not know who receives them.

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
}

/// A watch that ignores all events.
#[derive(Clone, Copy, Debug)]
#[cfg(test)]
pub(crate) struct Unwatched;

#[cfg(test)]
impl Watch for Unwatched {
    fn moved(&self, _host: &str, _from: Origin<'_>, _bytes: u64) {}

    fn lost(&self, _host: &str, _bytes: u64) {}

    fn checkout(&self, _host: &str, _tree: &str) {}

    fn unpacked(&self, _host: &str, _bytes: u64) {}

    fn ended(&self, _host: &str, _well: bool) {}
}
