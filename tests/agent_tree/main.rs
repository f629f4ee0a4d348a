//! What the agent does on a host: commands that outlive everything, and trees of images.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

#[path = "../common/mod.rs"]
mod common;

mod checkout;
mod execution;
mod support;
