//! Clusters as values: the Clusterfile, its hosts and images, and their state on disk.
//!
//! Must not depend on how operations on hosts are carried out.

pub(crate) mod clusterfile;
pub(crate) mod compose;
pub(crate) mod desired;
pub(crate) mod diff;
pub(crate) mod environment;
pub(crate) mod facts;
pub(crate) mod host;
pub(crate) mod image;
mod label;
pub(crate) mod local_addresses;
pub(crate) mod name;
pub(crate) mod paths;
pub(crate) mod registry_access;
pub(crate) mod scene;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod test_scenes;
pub(crate) mod touched;
pub(crate) mod variable;
