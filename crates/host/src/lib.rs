//! Machines: SSH, this machine, the agent that runs on hosts, and what is rendered on them.
//!
//! Must not depend on what a cluster is.

pub mod agent;
pub mod containerd;
pub mod host;
pub mod render;
