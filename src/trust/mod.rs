//! Trust: keys, image signatures, the policy that requires them, and the documents that describe
//! the contents of an image (SBOM) and how it was built (provenance).
//!
//! Signatures are compatible with cosign and with simple signing of the containers project, in both
//! directions (docs/trust.md). Must not depend on the command line: passwords and files are passed
//! as values.

pub(crate) mod attachment;
mod bundle;
mod fetch;
mod gpg;
pub(crate) mod guard;
pub(crate) mod keys;
pub(crate) mod lookaside;
pub(crate) mod payload;
mod pem;
pub(crate) mod policy;
pub(crate) mod provenance;
pub(crate) mod referrer;
pub(crate) mod sbom;
mod sealed;
pub(crate) mod sign;
pub(crate) mod verify;

pub(crate) use keys::{PrivateKey, PublicKey};
