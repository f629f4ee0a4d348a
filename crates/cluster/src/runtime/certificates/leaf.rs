//! A certificate to be signed by an authority.

use std::net::IpAddr;

use rcgen::ExtendedKeyUsagePurpose;

use crate::runtime::certificates::key::Key;

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

/// A certificate with its key.
pub struct Signed {
    pub certificate: String,
    pub key: Key,
}
