//! What needs hosts of the test bed (docs/testbed.md): the test bed itself, and clusters on it. Each
//! test has a bed of its own; .config/nextest.toml says how many run at a time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test may panic, and prints what is for its reader"
)]

#[path = "../common/mod.rs"]
mod common;

mod bed;
mod cluster_adopt;
mod cluster_apps;
mod cluster_backup;
mod cluster_certificates;
mod cluster_etcd;
mod cluster_faults;
mod cluster_hooks;
mod cluster_k3s;
mod cluster_login;
mod cluster_registry;
mod cluster_renumber;
mod cluster_source;
mod cluster_upgrade;
mod demo;
mod offline;
mod packages;
mod recipes;
mod releases;
mod served_api;
mod tutorials;
