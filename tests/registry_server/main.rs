//! `imgctl registry serve`, seen from the wire and through the clients people use.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test may panic"
)]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod discovery;
mod faults;
mod http;
mod peers;
mod proxy;
mod pull;
mod push;
mod server;
mod store;
mod tree;
