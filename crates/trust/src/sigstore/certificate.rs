//! Certificates as Fulcio issues them (X.509): read, and the bytes that a certificate transparency
//! log signs for one (RFC 6962 §3.2).
//!
//! Reads only; chains are verified in [`super::chain`].

use imgctl_base::error::{Error, Result};

use crate::sigstore::{
    der,
    der::{
        BIT_STRING, BOOLEAN, INTEGER, OCTET_STRING, OID, Reader, SEQUENCE, UTF8_STRING, context,
        encode,
    },
};

const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
/// 1.3.6.1.4.1.11129.2.4.2.
const TIMESTAMP_LIST: &[u8] = &[0x2b, 6, 1, 4, 1, 0xd6, 0x79, 2, 4, 2];
/// 1.3.6.1.4.1.57264.1, Fulcio's extensions (fulcio, docs/oid-info.md).
const FULCIO: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xbf, 0x30, 1];

/// A certificate that has been read, but not verified.
#[derive(Clone, Debug)]
pub(super) struct Certificate<'a> {
    pub(super) der: &'a [u8],
    pub(super) serial: &'a [u8],
    pub(super) issuer: &'a [u8],
    /// DER of the SubjectPublicKeyInfo.
    pub(super) key: &'a [u8],
    pub(super) not_before: i64,
    pub(super) not_after: i64,
    /// The values of the TBSCertificate, with the extensions apart.
    fields: Vec<&'a [u8]>,
    extensions: Vec<Extension<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Extension<'a> {
    oid: &'a [u8],
    value: &'a [u8],
    whole: &'a [u8],
}

/// An alternative name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) text: String,
    pub(super) is_mail: bool,
}

/// A signed certificate timestamp.
#[derive(Clone, Debug)]
pub(super) struct Receipt<'a> {
    pub(super) log: &'a [u8],
    /// Milliseconds since 1970.
    pub(super) time: u64,
    extensions: &'a [u8],
    pub(super) signature: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Reads a certificate.
    pub(super) fn read(der: &'a [u8]) -> Result<Self> {
        let mut outer = der::only(der, SEQUENCE)?.inside();
        let mut tbs = outer.sequence()?;
        let (mut fields, mut extensions) = (Vec::new(), Vec::new());
        if let Some(version) = tbs.optional(context(0))? {
            fields.push(version.whole);
        }
        let serial = tbs.expect(INTEGER)?;
        let algorithm = tbs.expect(SEQUENCE)?;
        let issuer = tbs.expect(SEQUENCE)?;
        let validity = tbs.expect(SEQUENCE)?;
        let subject = tbs.expect(SEQUENCE)?;
        let key = tbs.expect(SEQUENCE)?;
        fields.extend([serial, algorithm, issuer, validity, subject, key].map(|it| it.whole));
        let mut times = validity.inside();
        let (not_before, not_after) = (der::time(&times.any()?)?, der::time(&times.any()?)?);
        while !tbs.is_empty() {
            let value = tbs.any()?;
            if value.tag != context(3) {
                fields.push(value.whole);
                continue;
            }
            let mut list = value.inside().sequence()?;
            while !list.is_empty() {
                let one = list.expect(SEQUENCE)?;
                let mut inside = one.inside();
                let oid = inside.expect(OID)?.content;
                inside.optional(BOOLEAN)?;
                let value = inside.expect(OCTET_STRING)?.content;
                extensions.push(Extension { oid, value, whole: one.whole });
            }
        }
        Ok(Self {
            der,
            serial: serial.content,
            issuer: issuer.whole,
            key: key.whole,
            not_before,
            not_after,
            fields,
            extensions,
        })
    }

    fn extension(&self, oid: &[u8]) -> Option<&'a [u8]> {
        self.extensions.iter().find(|it| it.oid == oid).map(|it| it.value)
    }

    /// Returns whether the certificate is that of an authority.
    pub(super) fn is_authority(&self) -> bool {
        self.extension(BASIC_CONSTRAINTS).is_some_and(|value| {
            Reader(value)
                .sequence()
                .and_then(|mut inside| inside.optional(BOOLEAN))
                .is_ok_and(|flag| flag.is_some_and(|flag| flag.content == [0xff]))
        })
    }

    /// Returns whether the key may make signatures.
    pub(super) fn may_sign(&self) -> bool {
        self.extension(KEY_USAGE).is_some_and(|value| {
            der::only(value, BIT_STRING)
                .is_ok_and(|bits| bits.content.get(1).is_some_and(|bits| bits & 0x80 != 0))
        })
    }

    /// Returns whether the key is for `usage`, the content of an OID (extended key usage).
    pub(super) fn is_for(&self, usage: &[u8]) -> bool {
        let listed = || {
            let mut list = der::only(self.extension(EXTENDED_KEY_USAGE)?, SEQUENCE).ok()?.inside();
            while let Ok(one) = list.expect(OID) {
                if one.content == usage {
                    return Some(());
                }
            }
            None
        };
        listed().is_some()
    }

    /// Returns the identity: the alternative names that are a URI, a mail address or Fulcio's own
    /// kind of name.
    pub(super) fn identities(&self) -> Result<Vec<Identity>> {
        /// 1.3.6.1.4.1.57264.1.7.
        const USER_NAME: u8 = 7;
        /// Tags of GeneralName (RFC 5280 §4.2.1.6).
        const MAIL: u8 = 0x81;
        const URI: u8 = 0x86;
        let Some(value) = self.extension(ALTERNATIVE_NAME) else { return Ok(Vec::new()) };
        let mut names = der::only(value, SEQUENCE)?.inside();
        let mut found = Vec::new();
        while !names.is_empty() {
            let name = names.any()?;
            let text = match name.tag {
                MAIL | URI => name.content,
                tag if tag == context(0) => {
                    let mut inside = name.inside();
                    let oid = inside.expect(OID)?.content;
                    if oid != [FULCIO, &[USER_NAME]].concat() {
                        continue;
                    }
                    let mut explicit = inside.expect(context(0))?.inside();
                    explicit.expect(UTF8_STRING)?.content
                }
                _ => continue,
            };
            found.push(Identity { text: text_of(text)?, is_mail: name.tag == MAIL });
        }
        Ok(found)
    }

    /// Returns the issuer of the identity token: extension 8, or the older extension 1.
    pub(super) fn token_issuer(&self) -> Result<Option<String>> {
        if let Some(value) = self.extension(&[FULCIO, &[8]].concat()) {
            return text_of(der::only(value, UTF8_STRING)?.content).map(Some);
        }
        self.extension(&[FULCIO, &[1]].concat()).map(text_of).transpose()
    }

    /// Returns the signed certificate timestamps in the certificate.
    pub(super) fn receipts(&self) -> Result<Vec<Receipt<'a>>> {
        let Some(value) = self.extension(TIMESTAMP_LIST) else { return Ok(Vec::new()) };
        let mut input = der::only(value, OCTET_STRING)?.content;
        let mut list = vector(&mut input)?;
        let mut found = Vec::new();
        while !list.is_empty() {
            let mut one = vector(&mut list)?;
            let version = take(&mut one, 1)?;
            let log = take(&mut one, 32)?;
            let time = take(&mut one, 8)?.iter().fold(0, |time, byte| time << 8 | u64::from(*byte));
            let extensions = vector(&mut one)?;
            let _algorithm = take(&mut one, 2)?;
            let signature = vector(&mut one)?;
            if version == [0] {
                found.push(Receipt { log, time, extensions, signature });
            }
        }
        Ok(found)
    }

    /// Returns the bytes that the log signed for `receipt`, if the issuer has the key with this
    /// hash.
    pub(super) fn logged(&self, receipt: &Receipt<'_>, issuer_key_hash: &[u8]) -> Vec<u8> {
        let kept: Vec<&[u8]> = self
            .extensions
            .iter()
            .filter(|extension| extension.oid != TIMESTAMP_LIST)
            .map(|extension| extension.whole)
            .collect();
        let list = encode(SEQUENCE, &kept);
        let extensions = encode(context(3), &[&list]);
        let mut fields = self.fields.clone();
        fields.push(&extensions);
        let tbs = encode(SEQUENCE, &fields);
        let length = |bytes: &[u8], width: usize| bytes.len().to_be_bytes()[8 - width..].to_vec();
        [
            // v1, certificate_timestamp
            &[0, 0][..],
            &receipt.time.to_be_bytes(),
            // precert_entry
            &[0, 1],
            issuer_key_hash,
            &length(&tbs, 3),
            &tbs,
            &length(receipt.extensions, 2),
            receipt.extensions,
        ]
        .concat()
    }
}

fn text_of(bytes: &[u8]) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(Error::bad_content("the certificate has a name that is not text")),
    }
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    let (taken, rest) = input
        .split_at_checked(count)
        .ok_or_else(|| Error::bad_content("the certificate's SCT ends too early"))?;
    *input = rest;
    Ok(taken)
}

/// Reads a vector with a length of two bytes (TLS).
fn vector<'a>(input: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = take(input, 2)?;
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    take(input, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_read_panics() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(certificate) = Certificate::read(bytes) {
                let _ = (certificate.identities(), certificate.token_issuer());
                for receipt in certificate.receipts().unwrap_or_default() {
                    certificate.logged(&receipt, &[0; 32]);
                }
            }
        });
    }
}
