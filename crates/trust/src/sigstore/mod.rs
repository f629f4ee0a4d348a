//! Sigstore: signatures without keys. Verifies a bundle offline against a trusted root, and signs
//! with a short-lived certificate for an identity token.
//!
//! The order of the checks is that of Sigstore's client specification. Every failure names the check
//! that failed. Must not depend on registries of images or on files.

mod certificate;
mod chain;
mod der;
mod log;
pub mod root;
pub mod sign;
mod stamp;
pub mod verify;

/// Returns the digest of `bytes`.
fn sha256(bytes: &[u8]) -> Vec<u8> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref().to_vec()
}
