//! Clusters as values: the Clusterfile, its hosts and images, and their state on disk.
//!
//! Must not depend on how operations on hosts are carried out.

pub mod backup;
pub mod clusterfile;
pub mod compose;
pub mod context;
pub mod desired;
pub mod diff;
pub mod environment;
pub mod facts;
pub mod host_addresses;
pub mod image;
pub mod local_addresses;
pub mod name;
pub mod redact;
pub mod registry_access;
pub mod registry_password;
pub mod renumber;
pub mod state;
pub mod state_encryption;
pub mod state_files;
pub mod state_identity;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "for tests only")]
pub mod testing;
pub mod touched;
pub mod uid;
pub mod variable;
pub mod variables;
