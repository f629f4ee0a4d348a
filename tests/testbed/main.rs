//! The test bed itself: hosts that boot systemd, are apart from each other and from this machine, can
//! be cut off, slowed down, lost and rebooted, and leave nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod hosts;
mod leftovers;
