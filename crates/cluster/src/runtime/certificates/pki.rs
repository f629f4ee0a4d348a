//! The authorities of one cluster, stored in the controller's `pki/` with sealos' layout.

use std::{path::Path, time::Duration};

use crate::runtime::certificates::authority::{Algorithm, Authority, Key};
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::fs::atomic::write_private;
use imgctl_base::fs::directory::read_text;

/// Root of trust for all other certificates and tokens.
pub(crate) struct Pki {
    pub ca: Authority,
    pub(crate) etcd_ca: Authority,
    pub(crate) front_proxy_ca: Authority,
    /// Signs the tokens of service accounts.
    pub(crate) service_accounts: Key,
}

/// Maximum size of a file, in bytes.
const LONGEST: u64 = 1 << 20;
/// File without extension, common name.
const AUTHORITIES: [(&str, &str); 3] =
    [("ca", "kubernetes"), ("etcd/ca", "etcd-ca"), ("front-proxy-ca", "front-proxy-ca")];

impl Pki {
    /// Reads the contents of `directory`. Creates and saves missing parts before they are used.
    pub(crate) fn open(directory: &Path, algorithm: Algorithm, validity: Duration) -> Result<Self> {
        let [ca, etcd_ca, front_proxy_ca] =
            AUTHORITIES.map(|(file, name)| authority(directory, file, name, algorithm, validity));
        Ok(Self {
            ca: ca?,
            etcd_ca: etcd_ca?,
            front_proxy_ca: front_proxy_ca?,
            service_accounts: service_accounts(directory, algorithm)?,
        })
    }

    /// Reads the contents of `directory`; fails if an authority's certificate is missing.
    pub(crate) fn load(directory: &Path) -> Result<Self> {
        for (file, _) in AUTHORITIES {
            let path = directory.join(format!("{file}.crt"));
            if !path.exists() {
                return Err(Error::not_found(format!("{} does not exist", path.display())).hint(
                    "the controller that created a cluster holds its authorities: run there, \
                         or copy its pki directory",
                ));
            }
        }
        Self::open(directory, Algorithm::default(), Duration::ZERO)
    }

    /// Returns the files that every control plane needs: `(path below /etc/kubernetes/pki, text,
    /// secret)`.
    pub(crate) fn shared_files(&self) -> Vec<(String, String, bool)> {
        let mut files = Vec::new();
        let authorities = [&self.ca, &self.etcd_ca, &self.front_proxy_ca];
        for ((file, _), authority) in AUTHORITIES.iter().zip(authorities) {
            files.push((format!("{file}.crt"), authority.certificate.clone(), false));
            let key = authority.key.pem.expose().to_owned();
            files.push((format!("{file}.key"), key, true));
        }
        let key = &self.service_accounts;
        files.push(("sa.key".to_owned(), key.pem.expose().to_owned(), true));
        files.push(("sa.pub".to_owned(), key.public_pem(), false));
        files
    }
}

fn authority(
    directory: &Path,
    file: &str,
    name: &str,
    algorithm: Algorithm,
    validity: Duration,
) -> Result<Authority> {
    let certificate_path = directory.join(format!("{file}.crt"));
    let key_path = directory.join(format!("{file}.key"));
    match (read_text(&certificate_path, LONGEST)?, read_text(&key_path, LONGEST)?) {
        (Some(certificate), Some(key)) => Authority::parse(&certificate, &key)
            .context(|| format!("cannot use the authority {}", certificate_path.display())),
        (Some(_), None) => Err(Error::not_found(format!(
            "{} exists, but its key {} does not",
            certificate_path.display(),
            key_path.display()
        ))
        .hint("put the key next to it; an authority whose key is elsewhere cannot be used")),
        // A key without a certificate remains if imgctl stopped between writing the two.
        (None, key) => {
            let key = match key {
                Some(pem) => Key::parse(&pem)
                    .context(|| format!("cannot use the key {}", key_path.display()))?,
                None => {
                    let key = Key::generate(algorithm)?;
                    write_private(&key_path, key.pem.expose())?;
                    key
                }
            };
            let authority = Authority::create(name, key, validity)?;
            write_private(&certificate_path, &authority.certificate)?;
            Ok(authority)
        }
    }
}

fn service_accounts(directory: &Path, algorithm: Algorithm) -> Result<Key> {
    let path = directory.join("sa.key");
    let key = match read_text(&path, LONGEST)? {
        Some(pem) => Key::parse(&pem).context(|| format!("cannot use {}", path.display()))?,
        None => {
            let key = Key::generate(algorithm)?;
            write_private(&path, key.pem.expose())?;
            key
        }
    };
    let public = directory.join("sa.pub");
    if read_text(&public, LONGEST)?.is_none() {
        write_private(&public, &key.public_pem())?;
    }
    Ok(key)
}
