//! The tree that docker-distribution keeps on disk: `docker/registry/v2/{blobs,repositories}`.
//!
//! Must not know HTTP, nor who reads or writes.

pub(crate) mod paths;
