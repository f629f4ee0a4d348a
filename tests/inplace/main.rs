//! `imgctl inplace` as its user runs it: against an API server in memory that behaves as the real
//! one was seen to, or against a real one where `KUBEBUILDER_ASSETS` names it. Kubelets and
//! controllers are played ([`actors`]).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    unreachable_pub,
    dead_code,
    reason = "a test may panic; what is shared with the crate's own tests is used in part"
)]

mod actors;
mod care;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod kube;
mod losses;
mod registries;
mod runs;
mod templates;
