//! Certificates of hosts: which there are, when they expire, and their renewal by a timer on each host
//! that needs no controller.
//!
//! [`inventory`] reads the certificates of a host, from anywhere. [`host`] is what the timer runs: it
//! decides what is due, waits for its turn, signs, makes services use the result, verifies that, and
//! puts everything back if it does not come true. [`timer`] installs it. Must not depend on the
//! pipeline.

pub(crate) mod change;
pub mod host;
pub mod inventory;
pub(crate) mod k3s;
pub(crate) mod kubeadm;
pub mod record;
pub(crate) mod script;
pub mod settings;
pub mod timer;
mod turn;
