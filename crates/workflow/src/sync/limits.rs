//! Limits on the concurrent work of a sync. Must not know how it is scheduled.

/// Maximum number of hosts that pull the same blob from a registry at the same time.
const COPIES: u32 = 4;
/// Maximum number of concurrent pulls from a registry.
const PULLS: u32 = 16;

/// Limits on concurrent work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent uploads from the controller.
    pub uploads: u32,
    /// Concurrent transfers into one host.
    pub(crate) per_host: u32,
    /// Number of hosts that one host serves at the same time.
    pub(crate) per_source: u32,
    /// Concurrent transfers in total.
    pub(crate) transfers: u32,
    /// Number of hosts that create their trees at the same time.
    pub(crate) checkouts: u32,
    /// Whether hosts fetch from each other.
    pub(crate) fan_out: bool,
    /// Maximum number of concurrent uploads of the same blob.
    pub(crate) copies: u32,
}

impl Limits {
    /// Returns these limits with a registry in place of the controller.
    pub(super) fn of_registry(self) -> Self {
        Self { uploads: PULLS, copies: COPIES, ..self }
    }

    /// Returns these limits without zeros, which would stop everything.
    pub(super) fn at_least_one(self) -> Self {
        Self {
            uploads: self.uploads.max(1),
            per_host: self.per_host.max(1),
            per_source: self.per_source.max(1),
            transfers: self.transfers.max(1),
            checkouts: self.checkouts.max(1),
            copies: self.copies.max(1),
            ..self
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            uploads: 4,
            per_host: 3,
            per_source: 2,
            transfers: 32,
            checkouts: 32,
            fan_out: true,
            copies: 1,
        }
    }
}
