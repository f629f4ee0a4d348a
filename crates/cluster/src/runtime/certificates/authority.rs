//! Certificate authority: creation, parsing and signing.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};

use crate::runtime::certificates::inspect::{self, Certificate};
use crate::runtime::certificates::key::{Algorithm, Key};
use crate::runtime::certificates::leaf::{Leaf, Signed};
use crate::runtime::certificates::validity::now;
use imgctl_base::error::{Context, Error, Result};

/// Seconds by which certificates are backdated, because clocks of hosts can be slightly slow.
const BACKDATED: u64 = 300;

/// A certificate authority with its key.
pub(crate) struct Authority {
    pub certificate: String,
    pub key: Key,
    read: Certificate,
}

impl Authority {
    /// Creates a self-signed authority with `key`.
    pub(crate) fn create(name: &str, key: Key, validity: Duration) -> Result<Self> {
        let start = now().saturating_sub(BACKDATED);
        let mut parameters = parameters(name, None, start, start + BACKDATED + validity.as_secs())?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::KeyCertSign,
        ];
        parameters.subject_alt_names = vec![dns(name)?];
        let certificate =
            parameters.self_signed(key.pair()).map_err(|error| cannot_sign(name, error))?.pem();
        Self::new(certificate, key)
    }

    /// Parses an existing authority: kubeadm's, sealos' or imgctl's.
    pub(crate) fn parse(certificate: &str, key: &str) -> Result<Self> {
        Self::new(certificate.to_owned(), Key::parse(key)?)
    }

    fn new(certificate: String, key: Key) -> Result<Self> {
        let read = inspect::read(&certificate)?;
        if !read.is_authority {
            return Err(Error::bad_content("the certificate is not an authority"));
        }
        if read.public_key != key.pair().public_key_raw() {
            return Err(Error::bad_content("the certificate and the private key do not match"));
        }
        Ok(Self { certificate, key, read })
    }

    /// Generates a key and signs a certificate for `leaf`. The certificate expires no later than
    /// the authority.
    pub(crate) fn sign(
        &self,
        leaf: &Leaf,
        algorithm: Algorithm,
        validity: Duration,
    ) -> Result<Signed> {
        self.sign_key(leaf, Key::generate(algorithm)?, validity)
    }

    pub(crate) fn sign_key(&self, leaf: &Leaf, key: Key, validity: Duration) -> Result<Signed> {
        let start =
            now().saturating_sub(BACKDATED).max(self.read.not_before.max(0).cast_unsigned());
        let end = (now() + validity.as_secs()).min(self.read.not_after.max(0).cast_unsigned());
        if end <= start {
            return Err(Error::failed(format!(
                "the authority {} has expired",
                self.read.common_name
            ))
            .hint("recreate the cluster: an expired authority cannot be renewed"));
        }
        let mut parameters =
            parameters(&leaf.common_name, leaf.organization.as_deref(), start, end)?;
        parameters.is_ca = IsCa::ExplicitNoCa;
        parameters.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        parameters.extended_key_usages = leaf.purpose.purposes();
        parameters.use_authority_key_identifier_extension = true;
        parameters.subject_alt_names = leaf
            .names
            .iter()
            .map(|name| match name.parse::<IpAddr>() {
                Ok(address) => Ok(SanType::IpAddress(address)),
                Err(_) => dns(name),
            })
            .collect::<Result<_>>()?;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, self.key.pair())
            .map_err(|error| cannot_sign(&leaf.common_name, error))?;
        let certificate = parameters
            .signed_by(key.pair(), &issuer)
            .map_err(|error| cannot_sign(&leaf.common_name, error))?
            .pem();
        Ok(Signed { certificate, key })
    }

    /// Reports whether `certificate` is equivalent to one from [`Authority::sign`]: signed by this
    /// authority, with the same subject and names, and valid for at least another `margin`.
    pub(crate) fn stands_behind(&self, certificate: &str, leaf: &Leaf, margin: Duration) -> bool {
        let Ok(read) = inspect::read(certificate) else {
            return false;
        };
        let long_enough =
            read.not_after >= i64::try_from(now() + margin.as_secs()).unwrap_or(i64::MAX);
        let mut wanted = leaf.names.clone();
        let mut named = read.names.clone();
        wanted.sort();
        named.sort();
        long_enough
            && read.common_name == leaf.common_name
            && read.organization == leaf.organization
            && wanted == named
            && inspect::signed_by(certificate, &self.certificate)
    }

    /// Returns `sha256:<hex>` over the public key, as `kubeadm join` expects it.
    pub(crate) fn pin(&self) -> String {
        self.read.pin.clone()
    }

    #[cfg(test)]
    pub(crate) fn read(&self) -> &Certificate {
        &self.read
    }
}

fn parameters(
    name: &str,
    organization: Option<&str>,
    start: u64,
    end: u64,
) -> Result<CertificateParams> {
    let mut parameters = CertificateParams::default();
    let epoch = date_time_ymd(1970, 1, 1);
    parameters.not_before = epoch + Duration::from_secs(start);
    parameters.not_after = epoch + Duration::from_secs(end);
    let mut serial = [0_u8; 8];
    aws_lc_rs::rand::fill(&mut serial)
        .map_err(|_| Error::failed("cannot read random numbers from the system"))?;
    // Makes the serial number positive, without a leading zero byte.
    serial[0] = serial[0] & 0x7f | 0x40;
    parameters.serial_number = Some(SerialNumber::from_slice(&serial));
    // Uses Go's attribute order and string type.
    let mut subject = DistinguishedName::new();
    if let Some(organization) = organization {
        subject.push(DnType::OrganizationName, text(organization));
    }
    subject.push(DnType::CommonName, text(name));
    parameters.distinguished_name = subject;
    Ok(parameters)
}

fn text(value: &str) -> DnValue {
    match rcgen::string::PrintableString::try_from(value) {
        Ok(printable) => DnValue::PrintableString(printable),
        Err(_) => DnValue::Utf8String(value.to_owned()),
    }
}

fn dns(name: &str) -> Result<SanType> {
    name.to_owned()
        .try_into()
        .map(SanType::DnsName)
        .map_err(|error| {
            Error::usage(format!("`{name}` is not valid in a certificate")).caused_by(error)
        })
        .context(|| "a certificate needs DNS names or addresses".to_owned())
}

fn cannot_sign(name: &str, error: rcgen::Error) -> Error {
    Error::failed(format!("cannot create the certificate for {name}")).caused_by(error)
}
