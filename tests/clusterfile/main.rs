//! The Clusterfile as users meet it: `gen`, `render`, `env`, and directories that sealos has made.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

#[path = "../common/mod.rs"]
mod common;

mod adopted;
mod generated;
mod rendered;
