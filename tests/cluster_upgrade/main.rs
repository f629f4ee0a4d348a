//! Clusters go from version to version and back: real etcd under a client that never pauses, and a
//! small image that counts what its scripts do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail the test"
)]

mod aborts;
mod batches;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod counting;
mod distribution;
mod hooks;
mod kills;
mod plans;
mod rolling;
mod snapshots;
mod stops;
#[allow(dead_code, reason = "each binary uses a part")]
#[path = "../cluster_etcd/support.rs"]
mod support;
mod writer;
