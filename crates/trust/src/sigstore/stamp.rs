//! Timestamps (RFC 3161): the request, and the verification of a response, which is a CMS message
//! (RFC 5652) around the time.

use crate::keys::PublicKey;
use crate::sigstore::certificate::Certificate;
use crate::sigstore::root::Authority;
use crate::sigstore::{chain, chain::TIME_STAMPING};
use crate::sigstore::{
    der,
    der::{
        BOOLEAN, GENERALIZED_TIME, INTEGER, OCTET_STRING, OID, Reader, SEQUENCE, SET, context,
        encode,
    },
};
use imgctl_base::error::{Context as _, Error, Kind, Result};

/// Maximum size of a response, in bytes.
pub(super) const MAX_RESPONSE: u64 = 256 << 10;

/// 1.2.840.113549.1.7.2.
const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2];
/// 1.2.840.113549.1.9.16.1.4.
const TIME_INFO: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 16, 1, 4];
/// 1.2.840.113549.1.9.3 and .4.
const CONTENT_TYPE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 3];
const MESSAGE_DIGEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 4];
/// 2.16.840.1.101.3.4.2.1, .2 and .3: SHA-256, SHA-384 and SHA-512.
const SHA2: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2];

/// Encodes a request for a timestamp of `message` that includes the signer's certificate.
pub(super) fn request(message: &[u8], nonce: u64) -> Vec<u8> {
    let oid = encode(OID, &[SHA2, &[1]]);
    let null = [5, 0];
    let algorithm = encode(SEQUENCE, &[&oid, &null]);
    let hashed = encode(OCTET_STRING, &[&super::sha256(message)]);
    let imprint = encode(SEQUENCE, &[&algorithm, &hashed]);
    // A positive integer of eight bytes.
    let nonce = ((nonce >> 1) | 1 << 62).to_be_bytes();
    encode(
        SEQUENCE,
        &[&[INTEGER, 1, 1], &imprint, &encode(INTEGER, &[&nonce]), &[BOOLEAN, 1, 0xff]],
    )
}

/// Fails unless the response grants a timestamp; the error quotes the authority.
pub(super) fn granted(response: &[u8]) -> Result<()> {
    token(response).map(|_| ())
}

/// Verifies a response for `message` by one of the authorities. Returns its time, in seconds since
/// 1970.
pub(super) fn verify(response: &[u8], message: &[u8], stampers: &[Authority]) -> Result<i64> {
    let token = Token::read(token(response)?)?;
    let time = token.time_of(message)?;
    let mut reason = denied("the trusted root has no time-stamping authority");
    for stamper in stampers {
        match token.by(stamper, time) {
            Ok(()) => return Ok(time),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

/// Returns the token in a response.
fn token(response: &[u8]) -> Result<Reader<'_>> {
    let mut outer = der::only(response, SEQUENCE)?.inside();
    let status = outer.sequence()?.expect(INTEGER)?.content;
    // Granted, or granted with modifications.
    if !matches!(status, [0 | 1]) {
        return Err(denied("the authority refused to make it"));
    }
    outer.sequence()
}

/// The parts of a token that verification needs.
struct Token<'a> {
    info: &'a [u8],
    embedded: Vec<&'a [u8]>,
    /// The last byte of the hash's OID.
    hash: u8,
    /// The signed attributes, as they are hashed.
    attributes: Vec<u8>,
    digest: &'a [u8],
    signature: &'a [u8],
    issuer: &'a [u8],
}

impl<'a> Token<'a> {
    fn read(mut content: Reader<'a>) -> Result<Self> {
        if content.expect(OID)?.content != SIGNED_DATA {
            return Err(denied("it is not signed"));
        }
        let mut signed = content.expect(context(0))?.inside().sequence()?;
        signed.expect(INTEGER)?;
        signed.expect(SET)?;
        let mut encapsulated = signed.sequence()?;
        if encapsulated.expect(OID)?.content != TIME_INFO {
            return Err(denied("it contains no time"));
        }
        let info = encapsulated.expect(context(0))?.inside().expect(OCTET_STRING)?.content;
        let mut embedded = Vec::new();
        if let Some(certificates) = signed.optional(context(0))? {
            let mut list = certificates.inside();
            while !list.is_empty() {
                embedded.push(list.any()?.whole);
            }
        }
        signed.optional(context(1))?;
        let mut signers = signed.expect(SET)?.inside();
        let mut signer = signers.sequence()?;
        signers.end()?;
        signer.expect(INTEGER)?;
        let issuer = signer.any()?.content;
        let hash = hash_of(signer.sequence()?)?;
        let attributes = signer.expect(context(0))?;
        let (mut digest, mut kind) = (None, None);
        let mut list = attributes.inside();
        while !list.is_empty() {
            let mut attribute = list.sequence()?;
            let oid = attribute.expect(OID)?.content;
            let mut values = attribute.expect(SET)?.inside();
            let known = if oid == MESSAGE_DIGEST {
                digest.replace(values.expect(OCTET_STRING)?.content).is_some()
            } else if oid == CONTENT_TYPE {
                kind.replace(values.expect(OID)?.content).is_some()
            } else {
                continue;
            };
            values.end()?;
            if known {
                return Err(denied("it has a signed attribute twice"));
            }
        }
        if kind != Some(TIME_INFO) {
            return Err(denied("its signature is for something else"));
        }
        signer.sequence()?;
        let signature = signer.expect(OCTET_STRING)?.content;
        Ok(Self {
            info,
            embedded,
            hash,
            // The signature is over the set, not over the implicit tag.
            attributes: encode(SET, &[attributes.content]),
            digest: digest.ok_or_else(|| denied("it has no digest"))?,
            signature,
            issuer,
        })
    }

    /// Returns the time if it is that of `message`.
    fn time_of(&self, message: &[u8]) -> Result<i64> {
        if digest(self.hash, self.info)? != self.digest {
            return Err(denied("its time was changed"));
        }
        let mut info = der::only(self.info, SEQUENCE)?.inside();
        info.expect(INTEGER)?;
        info.expect(OID)?;
        let mut imprint = info.sequence()?;
        let hash = hash_of(imprint.sequence()?)?;
        if imprint.expect(OCTET_STRING)?.content != digest(hash, message)? {
            return Err(denied("it is for another signature"));
        }
        info.expect(INTEGER)?;
        der::time(&info.expect(GENERALIZED_TIME)?)
    }

    /// Fails unless this authority signed the token at `time`.
    fn by(&self, stamper: &Authority, time: i64) -> Result<()> {
        let mut reason = denied("the trusted root does not have the certificate that signed it");
        for leaf in stamper.leaf().into_iter().chain(self.embedded.iter().copied()) {
            let outcome = Certificate::read(leaf).and_then(|leaf| {
                let named = [leaf.issuer, &encode(INTEGER, &[leaf.serial])].concat();
                // A key identifier in place of the name is not compared: the signature is.
                if self.issuer.first() == Some(&SEQUENCE) && self.issuer != named {
                    return Err(denied("another certificate signed it"));
                }
                if !PublicKey::with_any_hash(leaf.key)?.verifies(&self.attributes, self.signature) {
                    return Err(denied("the authority did not sign it"));
                }
                chain::verify(&leaf, stamper, TIME_STAMPING, time)
                    .map(|_| ())
                    .context(|| "the timestamp: its certificate".to_owned())
            });
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }
}

fn hash_of(mut algorithm: Reader<'_>) -> Result<u8> {
    match algorithm.expect(OID)?.content.strip_prefix(SHA2) {
        Some([hash @ 1..=3]) => Ok(*hash),
        _ => Err(denied("its hash is not SHA-2")),
    }
}

fn digest(hash: u8, bytes: &[u8]) -> Result<Vec<u8>> {
    use aws_lc_rs::digest::{SHA256, SHA384, SHA512};
    let algorithm = match hash {
        1 => &SHA256,
        2 => &SHA384,
        3 => &SHA512,
        _ => return Err(denied("its hash is not SHA-2")),
    };
    Ok(aws_lc_rs::digest::digest(algorithm, bytes).as_ref().to_vec())
}

fn denied(why: &str) -> Error {
    Error::new(Kind::Denied, format!("the timestamp: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_read_panics() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = verify(bytes, b"message", &[]);
        });
    }
}
