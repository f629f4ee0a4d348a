//! Everything that needs no host of the test bed: the built binary, and what it makes, as users and
//! other tools see them. A folder or file is one area.

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

mod agent;
mod agent_tree;
mod apps;
mod archives;
mod arm64;
mod bake;
mod build_cache;
mod build_output;
mod cache_faults;
mod cache_gha;
mod cache_inline;
mod cache_mounts;
mod cache_verb;
mod chart_sources;
mod ci;
mod cli;
mod clusterfile;
mod clusters;
mod corpus;
mod delta;
mod demanded;
mod edit;
mod embed;
mod examples;
mod faults;
mod foreign_text;
mod full_screen;
mod gate;
mod inplace;
mod language;
mod listings;
mod login;
mod manifest_list;
mod mistakes;
mod mount;
mod outputs;
mod partial;
mod pipeline;
mod pull;
mod push;
mod questions;
mod recipes;
mod registry_faults;
mod registry_server;
mod registry_sync;
mod release;
mod report;
mod run_layers;
mod sandbox;
mod sealos;
mod settings;
mod sigstore;
mod split;
mod ssh;
mod state;
mod tools;
mod trust;
mod unpacking;
mod verdicts;
