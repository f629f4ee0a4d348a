//! The authorities of one cluster, stored in the controller's `pki/` with sealos' layout.

use std::time::Duration;

use crate::certificates::authority::{Algorithm, Authority, Key};
use imgctl_base::error::{Context, Error, Result};
use imgctl_model::state_files::StateFiles;

/// Root of trust for all other certificates and tokens.
pub struct Pki {
    pub(crate) ca: Authority,
    pub(crate) etcd_ca: Authority,
    pub(crate) front_proxy_ca: Authority,
    /// Signs the tokens of service accounts.
    pub(crate) service_accounts: Key,
}

/// Below the state directory.
const DIRECTORY: &str = "pki";
/// Maximum size of a file, in bytes.
const LONGEST: u64 = 1 << 20;
/// File without extension, common name.
const AUTHORITIES: [(&str, &str); 3] =
    [("ca", "kubernetes"), ("etcd/ca", "etcd-ca"), ("front-proxy-ca", "front-proxy-ca")];

impl Pki {
    /// Reads what the cluster's state has. Creates and saves missing parts before they are used.
    pub fn open(state: &StateFiles, algorithm: Algorithm, validity: Duration) -> Result<Self> {
        let [ca, etcd_ca, front_proxy_ca] =
            AUTHORITIES.map(|(file, name)| authority(state, file, name, algorithm, validity));
        Ok(Self {
            ca: ca?,
            etcd_ca: etcd_ca?,
            front_proxy_ca: front_proxy_ca?,
            service_accounts: service_accounts(state, algorithm)?,
        })
    }

    /// Reads what the cluster's state has; fails if an authority's certificate is missing.
    pub fn load(state: &StateFiles) -> Result<Self> {
        for (file, _) in AUTHORITIES {
            let path = state.path(format!("{DIRECTORY}/{file}.crt"));
            if !path.exists() {
                return Err(Error::not_found(format!("{} does not exist", path.display())).hint(
                    "only the controller that created the cluster has its authorities: run there, \
                         or copy its pki directory",
                ));
            }
        }
        Self::open(state, Algorithm::default(), Duration::ZERO)
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

pub(crate) fn authority(
    state: &StateFiles,
    file: &str,
    name: &str,
    algorithm: Algorithm,
    validity: Duration,
) -> Result<Authority> {
    let certificate_file = format!("{DIRECTORY}/{file}.crt");
    let key_file = format!("{DIRECTORY}/{file}.key");
    let (certificate_path, key_path) = (state.path(&certificate_file), state.path(&key_file));
    match (state.read(&certificate_file, LONGEST)?, state.read(&key_file, LONGEST)?) {
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
                    state.write(&key_file, key.pem.expose())?;
                    key
                }
            };
            let authority = Authority::create(name, key, validity)?;
            state.write(&certificate_file, &authority.certificate)?;
            Ok(authority)
        }
    }
}

fn service_accounts(state: &StateFiles, algorithm: Algorithm) -> Result<Key> {
    let file = format!("{DIRECTORY}/sa.key");
    let path = state.path(&file);
    let key = match state.read(&file, LONGEST)? {
        Some(pem) => Key::parse(&pem).context(|| format!("cannot use {}", path.display()))?,
        None => {
            let key = Key::generate(algorithm)?;
            state.write(&file, key.pem.expose())?;
            key
        }
    };
    let public = format!("{DIRECTORY}/sa.pub");
    if state.read(&public, LONGEST)?.is_none() {
        state.write(&public, &key.public_pem())?;
    }
    Ok(key)
}
