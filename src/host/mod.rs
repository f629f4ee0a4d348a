//! Hosts: their addresses, how to log in to them, and a way to run commands there.
//!
//! Everything that reaches a host goes through a [`Transport`]: SSH, or a child process for the
//! machine we run on. Must not know agents, clusters or images.

pub(crate) mod address;
pub(crate) mod login;
pub(crate) mod transport;
