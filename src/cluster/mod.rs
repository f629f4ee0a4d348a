//! Clusters as values: the Clusterfile, its hosts and images, what is kept of them on disk.
//!
//! Must not know how anything is done to a host.

pub(crate) mod host;
pub(crate) mod image;
pub(crate) mod paths;
pub(crate) mod scene;
