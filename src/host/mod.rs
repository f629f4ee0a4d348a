//! Hosts: their addresses, how to log in to them, and how to run commands on them.
//!
//! Every access to a host goes through a [`transport::Transport`]: SSH, or a child process for the
//! controller itself. Must not depend on agents, clusters or images.

pub(crate) mod address;
mod command;
pub(crate) mod connect;
mod guarded;
mod known_hosts;
mod local;
pub(crate) mod login;
mod pattern;
pub(crate) mod quote;
pub(crate) mod reactor;
mod resolve;
pub(crate) mod send_tree;
mod ssh;
mod ssh_config;
mod sudo;
#[cfg(test)]
mod test_sshd;
#[cfg(test)]
mod tests;
pub(crate) mod transport;
pub(crate) mod upload;
