//! The embedded registry on its hosts: users, data directory, start, and a check that every image
//! is served. All hosts learn which hosts serve it: containerd by a file of its own, other clients by the
//! hosts file, which pipeline/ writes.
//!
//! Its content is already in place: syncing applied the registry layers to `<root>/registry`.

pub(crate) mod clients;
pub(crate) mod collect;
pub(crate) mod config_path;
mod containerd;
pub(crate) mod hosts_toml;
mod lines;
mod logins;
pub(crate) mod passwords;
pub(crate) mod peer_access;
pub(crate) mod peers;
mod steps;

#[cfg(test)]
mod tests;

use crate::runtime::action::Line;
use imgctl_model::context::RegistryAccess;

pub use steps::{clean_steps, registry_steps};

/// Returns the line that succeeds if the registry of the host answers and accepts the login.
pub(crate) fn serves(access: &RegistryAccess) -> Line {
    lines::answers(access)
}
