//! Clusters of real etcd on hosts of the test bed: a whole life of one, and every way to interrupt it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail the test"
)]

#[path = "../common/mod.rs"]
mod common;
mod kills;
mod life;
mod local;
mod support;
