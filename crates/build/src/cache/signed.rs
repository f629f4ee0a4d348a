//! Signatures of records: who holds the key vouches that a step made these layers. A signature covers
//! the step's key, what that covers, and the layers, and therefore holds in every cache.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::cache::records::Step;
use imgctl_base::error::{Error, Result};
use imgctl_trust::{PrivateKey, PublicKey};

/// Distinguishes these signatures from all others of the same key.
const PURPOSE: &str = "imgctl build cache record 1";

/// A key that signs records.
#[derive(Clone)]
pub struct Signer {
    key: Arc<PrivateKey>,
    public: PublicKey,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({:?})", self.public)
    }
}

impl Signer {
    /// Signs with `key`.
    pub fn new(key: PrivateKey) -> Result<Self> {
        Ok(Self { public: key.public()?, key: Arc::new(key) })
    }

    /// Returns the key that verifies the signatures.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs the record of the step `key`. A signature that this key has made stays, so that an
    /// unchanged record keeps its bytes.
    pub(crate) fn sign(&self, key: &str, step: &mut Step) -> Result<()> {
        if !is_signed(key, step, &self.public) {
            let signature = self.key.sign(&message(key, step)?)?;
            step.signature = Some(STANDARD.encode(signature));
        }
        Ok(())
    }
}

/// Reports whether `by` has signed the record of the step `key`.
pub(crate) fn is_signed(key: &str, step: &Step, by: &PublicKey) -> bool {
    let signature = step.signature.as_ref().and_then(|text| STANDARD.decode(text).ok());
    let message = message(key, step);
    matches!((signature, message), (Some(signature), Ok(message)) if by.verifies(&message, &signature))
}

fn message(key: &str, step: &Step) -> Result<Vec<u8>> {
    serde_json::to_vec(&(PURPOSE, key, step.basis, &step.layers))
        .map_err(|error| Error::failed("cannot sign a build cache record").caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::records::Basis;

    #[test]
    fn a_signature_holds_for_one_step_of_one_key() {
        let signer = || Signer::new(PrivateKey::generate().unwrap()).unwrap();
        let (one, other) = (signer(), signer());
        let step = Step { basis: Basis::Run, used: 1, layers: Vec::new(), signature: None };
        let mut signed = step.clone();
        one.sign("k", &mut signed).unwrap();
        assert!(is_signed("k", &signed, &one.public));
        assert!(!is_signed("k", &signed, &other.public));
        assert!(!is_signed("other", &signed, &one.public));
        assert!(!is_signed("k", &step, &one.public));
        let later = Step { used: 2, ..signed.clone() };
        assert!(is_signed("k", &later, &one.public), "a use is no change");
        let changed = Step { basis: Basis::Content, ..signed.clone() };
        assert!(!is_signed("k", &changed, &one.public));
        let kept = signed.clone();
        one.sign("k", &mut signed).unwrap();
        assert_eq!(signed, kept);
        other.sign("k", &mut signed).unwrap();
        assert!(is_signed("k", &signed, &other.public));
    }
}
