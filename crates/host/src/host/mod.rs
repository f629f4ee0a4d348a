//! Hosts: their addresses, how to log in to them, and how to run commands on them.
//!
//! Every access to a host goes through a [`transport::Transport`]: SSH, or a child process for the
//! controller itself. Must not depend on agents, clusters or images.

pub mod address;
mod command;
pub mod connect;
mod known_hosts;
mod local;
pub mod login;
mod pattern;
pub mod reactor;
mod ssh;
mod ssh_config;
mod sudo;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "for tests only")]
pub mod testing;
#[cfg(test)]
mod testing_run;
#[cfg(test)]
mod tests;
pub mod transport;
pub mod upload;

pub use ssh::resolved;
