//! OCI distribution: the registry client, the registry server, and the on-disk layout of
//! docker-distribution.
//!
//! Handles repositories, manifests, blobs and tags. Must not depend on the store, the content of
//! images or the command line. Environment and configuration files are passed in as values.

pub(crate) mod client;
pub(crate) mod config_file;
pub(crate) mod credentials;
pub(crate) mod gate;
pub(crate) mod layout;
pub(crate) mod registries;
pub(crate) mod server;
pub(crate) mod tls;

pub(crate) use client::{Client, ClientOptions, Repository, Target};
