//! OCI distribution: the client of registries, the server, and the directory layout that
//! docker-distribution keeps on disk.
//!
//! Speaks of repositories, manifests, blobs and tags. Must not know the store, images' insides or
//! the command line; what the environment and configuration files say comes in as values.

pub(crate) mod client;
pub(crate) mod config_file;
pub(crate) mod credentials;
pub(crate) mod gate;
pub(crate) mod layout;
pub(crate) mod registries;
pub(crate) mod server;
pub(crate) mod tls;

pub(crate) use client::{Client, ClientOptions, Repository, Target};
