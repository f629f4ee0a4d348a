//! Operations on clusters: lists of steps over hosts that are planned, recorded in a journal, and
//! executed.
//!
//! The top layer of the logic. Must not print, prompt or read the environment.

mod asked;
pub(crate) mod bootstrap;
pub mod change;
pub mod check;
pub mod execution_context;
pub mod executor;
pub mod files;
pub mod files_of_hosts;
pub mod hooks;
pub(crate) mod host_names;
pub mod image_commands;
mod kept;
pub mod look;
pub mod maintain;
pub mod members;
pub mod nodes;
pub mod ownership;
pub mod record;
pub(crate) mod registry;
pub mod registry_gc;
pub mod registry_password;
pub mod renumber;
pub mod restore;
pub mod rotation;
pub mod status;
pub mod step;
pub mod system_pods;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
