//! `imgctl agent --stdio`, spoken to as the controller does: a real process, its pipes, HTTP/2.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test may panic"
)]

#[path = "../common/mod.rs"]
mod common;

mod conversation;
mod host;
mod registry;
mod stdio;
