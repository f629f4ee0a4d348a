//! Hosts: their addresses, how to log in to them, and a way to run commands there.
//!
//! Everything that reaches a host goes through a [`transport::Transport`]: SSH, or a child process
//! for the machine we run on. Must not know agents, clusters or images.

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
