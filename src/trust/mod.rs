//! Trust: keys, signatures of images, the policy that asks for them, and the documents that say
//! what an image is made of (SBOM) and how (provenance).
//!
//! Signatures are those of cosign and of containers' simple signing, so that other tools accept
//! ours and we theirs (docs/trust.md). Must not know the command line: passwords and files come in
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
