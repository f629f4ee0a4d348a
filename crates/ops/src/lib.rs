//! Operations on clusters: install, change, grow, shrink, upgrade, roll back, patch in place, renew
//! certificates, uninstall, tear down.
//!
//! A front end (the command line, a service, a test) fills in a request, opens a [`session::Session`]
//! and calls one function. What the operation does meanwhile it tells its
//! [`front_end::FrontEnd`]. Must not print, exit, read the environment or depend on the command line.

pub mod front_end;
pub mod hosts;
pub mod inplace;
pub mod install;
pub mod maintain;
pub mod members;
pub mod preview;
pub mod session;
mod state_store;
#[cfg(test)]
mod tests;
pub mod upgrade;
pub mod work;
