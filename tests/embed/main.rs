//! Container images inside cluster images: found in contexts, taken from a real registry, written as
//! registry layers, and served by Debian's docker-registry.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

#[path = "../common/mod.rs"]
mod common;

mod found;
mod layers;
mod lock;
mod served;
mod support;
