//! Verifies that a certificate was issued below an authority, for a purpose, and was valid at a
//! time. The rules of paths (RFC 5280 §6) are rustls-webpki's.

use std::time::Duration;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use webpki::aws_lc_rs as algorithms;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::sigstore::certificate::Certificate;
use crate::sigstore::root::Authority;
use imgctl_base::error::{Error, Kind, Result};

/// Extended key usages, as the content of their OIDs.
pub(super) const CODE_SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];
pub(super) const TIME_STAMPING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 8];

const ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 10] = [
    algorithms::ECDSA_P256_SHA256,
    algorithms::ECDSA_P256_SHA384,
    algorithms::ECDSA_P384_SHA256,
    algorithms::ECDSA_P384_SHA384,
    algorithms::ECDSA_P521_SHA256,
    algorithms::ECDSA_P521_SHA512,
    algorithms::ED25519,
    algorithms::RSA_PKCS1_2048_8192_SHA256,
    algorithms::RSA_PKCS1_2048_8192_SHA384,
    algorithms::RSA_PKCS1_2048_8192_SHA512,
];

/// Fails unless `leaf` chains up to the root of `authority`, all of it valid at `time` (seconds
/// since 1970), and the leaf may be used for `usage`. Returns the key of the issuer, as DER.
pub(super) fn verify(
    leaf: &Certificate<'_>,
    authority: &Authority,
    usage: &'static [u8],
    time: i64,
) -> Result<Vec<u8>> {
    let denied = |why: String| Error::new(Kind::Denied, why);
    if !authority.valid.contains(time) {
        return Err(denied("the authority was not in use at that time".to_owned()));
    }
    if !leaf.is_for(usage) {
        return Err(denied("it is for another purpose (extended key usage)".to_owned()));
    }
    let above: Vec<&[u8]> = authority.above().collect();
    let Some((root, between)) = above.split_last() else {
        return Err(denied("the authority has no root certificate".to_owned()));
    };
    let anchor_certificate = Certificate::read(root)?;
    if !(anchor_certificate.not_before..=anchor_certificate.not_after).contains(&time) {
        return Err(denied(
            "the authority's root certificate was not valid at that time".to_owned(),
        ));
    }
    let root = CertificateDer::from(*root);
    let unusable = |error: webpki::Error| denied(said(&error));
    let anchors = [anchor_from_trusted_cert(&root).map_err(unusable)?];
    let between: Vec<CertificateDer<'_>> =
        between.iter().map(|der| CertificateDer::from(*der)).collect();
    let seconds = u64::try_from(time).map_err(|_| denied("the time is before 1970".to_owned()))?;
    let der = CertificateDer::from(leaf.der);
    let entity = EndEntityCert::try_from(&der).map_err(unusable)?;
    let path = entity
        .verify_for_usage(
            &ALGORITHMS,
            &anchors,
            &between,
            UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
            // Authorities may have no usage; the leaf must, see above.
            KeyUsage::required_if_present(usage),
            None,
            None,
        )
        .map_err(unusable)?;
    let issuer = path.intermediate_certificates().next().map(webpki::Cert::der);
    let issuer = issuer.as_deref().unwrap_or(root.as_ref());
    Ok(Certificate::read(issuer)?.key.to_vec())
}

fn said(error: &webpki::Error) -> String {
    match error {
        webpki::Error::CertExpired { .. } => "a certificate had expired at that time".to_owned(),
        webpki::Error::CertNotValidYet { .. } => {
            "a certificate was not valid yet at that time".to_owned()
        }
        webpki::Error::UnknownIssuer => "it was issued by another authority".to_owned(),
        webpki::Error::RequiredEkuNotFoundContext(_) => {
            "it is for another purpose (extended key usage)".to_owned()
        }
        webpki::Error::InvalidSignatureForPublicKey => {
            "the authority did not sign it (its signature is wrong)".to_owned()
        }
        other => format!("it is not acceptable ({other})"),
    }
}
