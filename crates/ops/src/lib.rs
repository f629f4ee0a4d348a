//! Operations on clusters: adopt, install, change, grow, shrink, upgrade, roll back, patch in place,
//! back up, restore, renumber, renew certificates, uninstall, tear down, report problems.
//!
//! A front end (the command line, a service, a test) fills in a request, opens a [`session::Session`]
//! and calls one function. What the operation does meanwhile it tells its
//! [`front_end::FrontEnd`]. Must not print, exit, read the environment or depend on the command line.

pub mod adopt;
mod adopted;
pub mod apps;
pub mod backup;
pub mod clusters;
pub mod front_end;
pub mod hosts;
pub mod inplace;
pub mod install;
pub mod layer_source;
pub mod maintain;
pub mod members;
pub mod operation;
pub mod preview;
mod recipients;
pub mod registry;
pub mod rehearsal;
pub mod rehearsal_record;
pub mod renewal;
pub mod renumber;
pub mod report;
pub mod restore;
pub mod rotation;
mod run_options;
pub mod session;
mod settings;
pub mod standing;
pub mod state;
mod state_store;
pub mod support;
#[cfg(test)]
mod tests;
pub mod upgrade;
pub mod watch;
pub mod work;
