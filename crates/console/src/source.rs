//! Where the data for pages come from. Must not know requests or pages.

use imgctl_ops::report::Recorded;
use imgctl_store::store::Store;

/// The store, the records of the controller, and the path before all addresses.
pub(crate) struct Source {
    pub(crate) store: Store,
    pub(crate) recorded: Recorded,
    pub(crate) base: String,
}
