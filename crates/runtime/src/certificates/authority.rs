//! Certificate authorities, and the keys and certificates that they sign.

use std::{net::IpAddr, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, RsaKeySize, SanType, SerialNumber, date_time_ymd,
};

use crate::certificates::validity::now;
use crate::certificates::{inspect, inspect::Certificate};
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::secret::Secret;

/// Seconds by which certificates are backdated, because clocks of hosts can be slightly slow.
const BACKDATED: u64 = 300;

pub(crate) struct Authority {
    pub certificate: String,
    pub key: Key,
    read: Certificate,
}

impl Authority {
    /// By how much the certificates of [`Authority::sign`] are backdated.
    pub(crate) const BACKDATED: Duration = Duration::from_secs(BACKDATED);

    /// Returns the fields of the authority's own certificate.
    pub(crate) fn describe(&self) -> Result<Certificate> {
        inspect::read(&self.certificate)
    }

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
        let first = self.read.not_before.max(0).cast_unsigned();
        // kubeadm dates certificates back to their authority: this one says when it was issued.
        let start = now().saturating_sub(BACKDATED).max(first + 1).min(now().max(first));
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

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Server,
    Client,
    /// Server and client at once: etcd members are both to each other.
    Both,
}

impl Use {
    pub(super) fn purposes(self) -> Vec<ExtendedKeyUsagePurpose> {
        match self {
            Self::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Self::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Self::Both => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
        }
    }
}

/// Content of a certificate to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub common_name: String,
    pub organization: Option<String>,
    pub(crate) purpose: Use,
    /// DNS names and addresses that the certificate is valid for, in order, without duplicates.
    pub names: Vec<String>,
}

impl Leaf {
    pub(crate) fn client(common_name: &str, organization: Option<&str>) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organization: organization.map(str::to_owned),
            purpose: Use::Client,
            names: Vec::new(),
        }
    }

    pub(crate) fn server(common_name: &str, purpose: Use, names: &[String]) -> Self {
        let mut unique: Vec<String> = Vec::new();
        for name in names.iter().map(|name| canonical(name)) {
            if !name.is_empty() && !unique.contains(&name) {
                unique.push(name);
            }
        }
        Self { common_name: common_name.to_owned(), organization: None, purpose, names: unique }
    }
}

/// Returns the canonical form of an address, or a name in lowercase.
pub(crate) fn canonical(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

pub struct Signed {
    pub certificate: String,
    pub key: Key,
}

/// `encryptionAlgorithm` of kubeadm's ClusterConfiguration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    #[default]
    Rsa2048,
    Rsa3072,
    Rsa4096,
    EcdsaP256,
    EcdsaP384,
}

impl Algorithm {
    /// Returns the algorithm of a key; that of kubeadm if it is none of these.
    pub(crate) fn of(key: &Key) -> Self {
        let algorithm = key.pair().algorithm();
        match key.pair().public_key_raw().len() {
            _ if *algorithm == PKCS_ECDSA_P256_SHA256 => Self::EcdsaP256,
            _ if *algorithm == PKCS_ECDSA_P384_SHA384 => Self::EcdsaP384,
            // The modulus of a key of 4096 bits has 512 bytes.
            513.. => Self::Rsa4096,
            385.. => Self::Rsa3072,
            _ => Self::Rsa2048,
        }
    }

    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "RSA-2048" => Ok(Self::Rsa2048),
            "RSA-3072" => Ok(Self::Rsa3072),
            "RSA-4096" => Ok(Self::Rsa4096),
            "ECDSA-P256" => Ok(Self::EcdsaP256),
            "ECDSA-P384" => Ok(Self::EcdsaP384),
            other => Err(Error::usage(format!("there is no encryptionAlgorithm `{other}`"))
                .hint("one of RSA-2048, RSA-3072, RSA-4096, ECDSA-P256, ECDSA-P384")),
        }
    }
}

/// A private key with its original PEM.
pub struct Key {
    pub(crate) pem: Secret,
    pair: KeyPair,
}

impl Key {
    pub fn generate(algorithm: Algorithm) -> Result<Self> {
        let rsa = |size| KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, size);
        let pair = match algorithm {
            Algorithm::Rsa2048 => rsa(RsaKeySize::_2048),
            Algorithm::Rsa3072 => rsa(RsaKeySize::_3072),
            Algorithm::Rsa4096 => rsa(RsaKeySize::_4096),
            Algorithm::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Algorithm::EcdsaP384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
        }
        .map_err(|error| Error::failed("cannot create a private key").caused_by(error))?;
        Ok(Self { pem: Secret::new(pair.serialize_pem()), pair })
    }

    /// Parses PKCS#8, PKCS#1 (kubeadm's own) or SEC1.
    pub fn parse(pem: &str) -> Result<Self> {
        let pair = KeyPair::from_pem(pem).map_err(|error| {
            Error::bad_content("the private key cannot be read").caused_by(error)
        })?;
        Ok(Self { pem: Secret::new(pem), pair })
    }

    pub fn pair(&self) -> &KeyPair {
        &self.pair
    }

    /// Returns the public key in the format of `sa.pub`.
    pub(crate) fn public_pem(&self) -> String {
        self.pair.public_key_pem()
    }
}
