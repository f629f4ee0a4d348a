//! The embedded registry on its hosts: users, data directory, start, and a check that every image
//! is served. All hosts learn which hosts serve it: containerd by a file of its own, other clients by the
//! hosts file, which pipeline/ writes.
//!
//! Its content is already in place: syncing applied the registry layers to `<root>/registry`.

pub mod clients;
pub mod collect;
pub(crate) mod config_path;
mod containerd;
pub mod hosts_toml;
mod lines;
mod logins;
pub mod passwords;
pub mod peer_access;
pub mod peers;
mod steps;

#[cfg(test)]
mod tests;

use crate::action::Line;
use imgctl_model::context::{ClusterContext, RegistryAccess};

pub use steps::{clean_leftovers, clean_steps, registry_steps};

/// Returns the line that succeeds if the registry of the host answers and accepts the login.
pub fn serves(context: &ClusterContext, access: &RegistryAccess) -> Line {
    lines::answers(context, access)
}
