//! Decides whether an image from a registry may be used. Does not know about the reasons.

use std::fmt;

use crate::Client;
use imgctl_base::error::Result;
use imgctl_base::image::{Digest, Reference};

/// Decides about images before any part of them is used. Called through [`Client::admit`].
pub trait Gate: fmt::Debug + Send + Sync {
    /// Fails (kind Denied) unless the image may be used. `digest` is the digest of `reference` in
    /// its registry; `manifests` are the selected manifests, which are that one or listed below it.
    fn admit(
        &self,
        client: &Client,
        reference: &Reference,
        digest: &Digest,
        manifests: &[Digest],
    ) -> Result<()>;
}
