//! OCI distribution: the registry client, the registry server, and the on-disk layout of
//! docker-distribution.
//!
//! Handles repositories, manifests, blobs and tags. Must not depend on the store, the content of
//! images or the command line. Environment and configuration files are passed in as values.

pub mod browser;
pub mod chart;
pub mod client;
pub mod config_file;
pub mod credentials;
pub mod fetch;
pub mod layout;
pub mod registries;
pub mod server;
pub mod serving;
pub mod tls;

pub use client::{Client, ClientOptions, Repository, Target};
