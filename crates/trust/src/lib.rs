//! Trust: keys, image signatures, the policy that requires them, and the documents that describe
//! the contents of an image (SBOM) and how it was built (provenance).
//!
//! Signatures are compatible with cosign and with simple signing of the containers project, in both
//! directions (docs/trust.md). Must not depend on the command line: passwords and files are passed
//! as values.

pub mod attachment;
pub mod attestation;
pub mod blob;
pub(crate) mod bundle;
pub mod document_file;
mod fetch;
mod gpg;
pub mod guard;
pub mod keys;
pub(crate) mod lookaside;
pub mod payload;
mod pem;
pub mod place;
pub mod policy;
pub mod provenance;
pub mod referrer;
pub mod sbom;
mod sealed;
pub mod sign;
pub mod sigstore;
pub mod verify;

pub use keys::{PrivateKey, PublicKey};
