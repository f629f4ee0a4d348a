//! Reads the fields of a certificate.

use std::net::IpAddr;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, pem::Pem};

use imgctl_base::error::{Error, Result};
use imgctl_base::text::hex;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificate {
    pub common_name: String,
    pub organization: Option<String>,
    pub issuer: String,
    /// DNS names and addresses.
    pub names: Vec<String>,
    pub is_authority: bool,
    /// Seconds since the Unix epoch.
    pub not_before: i64,
    pub not_after: i64,
    /// `sha256:<hex>` over the public key.
    #[serde(skip)]
    pub(crate) pin: String,
    #[serde(skip)]
    pub(crate) public_key: Vec<u8>,
    /// What extended key usages allow.
    #[serde(skip)]
    pub(crate) for_servers: bool,
    #[serde(skip)]
    pub(crate) for_clients: bool,
    /// The subject and names are no more than `common_name`, `organization` and `names`.
    #[serde(skip)]
    pub(crate) is_plain: bool,
    /// The certificate as it is sent over a connection.
    #[serde(skip)]
    pub(crate) der: Vec<u8>,
}

/// Reads the first certificate in a PEM text.
pub fn read(pem: &str) -> Result<Certificate> {
    with(pem, |certificate| {
        let subject = certificate.subject();
        let organization = subject
            .iter_organization()
            .next()
            .and_then(|value| value.as_str().ok())
            .map(str::to_owned);
        let alternative = certificate.subject_alternative_name().ok().flatten();
        let all_names = alternative.map_or(0, |extension| extension.value.general_names.len());
        let usage = certificate.extended_key_usage().ok().flatten();
        let names: Vec<String> = certificate
            .subject_alternative_name()
            .ok()
            .flatten()
            .map(|extension| {
                let names = &extension.value.general_names;
                names.iter().filter_map(general_name).collect()
            })
            .unwrap_or_default();
        let pin = hex(&Sha256::digest(certificate.public_key().raw));
        Certificate {
            common_name: common_name(subject),
            organization,
            issuer: common_name(certificate.issuer()),
            is_authority: certificate.is_ca(),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            pin: format!("sha256:{pin}"),
            public_key: certificate.public_key().subject_public_key.data.as_ref().to_vec(),
            for_servers: usage.as_ref().is_some_and(|usage| usage.value.server_auth),
            for_clients: usage.as_ref().is_some_and(|usage| usage.value.client_auth),
            is_plain: all_names == names.len()
                && subject.iter_organization().count() <= 1
                && subject.iter_attributes().count()
                    == subject.iter_organization().count() + subject.iter_common_name().count(),
            names,
            der: certificate.as_raw().to_vec(),
        }
    })
}

/// Reports whether the key of `authority` signed `certificate`.
pub(crate) fn signed_by(certificate: &str, authority: &str) -> bool {
    let checked = with(authority, |authority| {
        let issuer = authority.subject().as_raw().to_vec();
        let key = authority.public_key().raw.to_vec();
        (issuer, key)
    })
    .and_then(|(issuer, key)| {
        with(certificate, |certificate| {
            certificate.issuer().as_raw() == issuer && verifies(certificate, &key)
        })
    });
    checked.unwrap_or(false)
}

fn verifies(certificate: &X509Certificate<'_>, key: &[u8]) -> bool {
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    };
    let algorithm: &'static dyn aws_lc_rs::signature::VerificationAlgorithm =
        match certificate.signature_algorithm.algorithm.to_id_string().as_str() {
            "1.2.840.113549.1.1.11" => &RSA_PKCS1_2048_8192_SHA256,
            "1.2.840.10045.4.3.2" => &ECDSA_P256_SHA256_ASN1,
            "1.2.840.10045.4.3.3" => &ECDSA_P384_SHA384_ASN1,
            _ => return false,
        };
    ParsedPublicKey::new(algorithm, key).is_ok_and(|key| {
        key.verify_sig(certificate.tbs_certificate.as_ref(), &certificate.signature_value.data)
            .is_ok()
    })
}

fn with<T>(pem: &str, look: impl FnOnce(&X509Certificate<'_>) -> T) -> Result<T> {
    let wrong = || Error::bad_content("the certificate cannot be read");
    for block in Pem::iter_from_buffer(pem.as_bytes()) {
        let block = block.map_err(|error| wrong().caused_by(error))?;
        if block.label == "CERTIFICATE" {
            let certificate = block.parse_x509().map_err(|error| wrong().caused_by(error))?;
            return Ok(look(&certificate));
        }
    }
    Err(wrong())
}

fn common_name(name: &x509_parser::x509::X509Name<'_>) -> String {
    let value = name.iter_common_name().next();
    let text = value.and_then(|value| value.as_str().ok());
    text.unwrap_or_default().to_owned()
}

fn general_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let address = match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
                16 => <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from),
                _ => None,
            };
            address.map(|address| address.to_string())
        }
        _ => None,
    }
}
