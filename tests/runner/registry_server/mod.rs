//! `imgctl registry serve`, seen from the wire and through the clients people use.

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
