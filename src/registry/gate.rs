//! Who decides whether an image that a registry offers may be used. Must not know why.

use std::fmt;

use crate::error::Result;
use crate::image::{Digest, Reference};
use crate::registry::Client;

/// Decides about images before anything of them is used. Asked through [`Client::admit`].
pub(crate) trait Gate: fmt::Debug + Send + Sync {
    /// Fails (kind Denied) unless the image may be used. `digest` is what `reference` means in its
    /// registry; `manifests` are those of it, or listed below it, that are wanted.
    fn admit(
        &self,
        client: &Client,
        reference: &Reference,
        digest: &Digest,
        manifests: &[Digest],
    ) -> Result<()>;
}
