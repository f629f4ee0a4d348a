//! The client side of the SSH handshake, and the verification of the host key. Must not depend on
//! the login method.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use russh::client::{self, DisconnectReason, Session};
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey, PublicKeyOrCertificate};

use crate::host::known_hosts::{self, KnownHosts, Place, Verdict, name_of};
use crate::host::login::HostKeys;
use crate::host::ssh::algorithms::offered;
use crate::host::ssh::target::Target;
use imgctl_base::error::Error;

/// Reason why a session ended or did not start.
#[derive(Debug)]
pub(super) enum Fault {
    Ssh(russh::Error),
    Ours(Error),
}

impl From<russh::Error> for Fault {
    fn from(error: russh::Error) -> Self {
        Self::Ssh(error)
    }
}

/// Reason why the connection was lost, if it was.
#[derive(Clone, Default)]
pub(super) struct Lost(Arc<Mutex<Option<String>>>);

impl Lost {
    pub(super) fn why(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Maximum number of banners of a connection that are kept, and of characters of each.
const MOST_BANNERS: usize = 8;
const LONGEST_BANNER: usize = 4 << 10;

/// What the host said before the login succeeded.
#[derive(Clone, Default)]
pub(super) struct Banners(Arc<Mutex<Vec<String>>>);

impl Banners {
    pub(super) fn add(&self, text: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_BANNERS && !text.trim().is_empty() {
            all.push(text.trim().chars().take(LONGEST_BANNER).collect());
        }
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Callbacks from russh during a session.
pub(super) struct Client {
    target: Target,
    known: KnownHosts,
    lost: Lost,
    banners: Banners,
}

impl Client {
    pub(super) fn new(target: &Target, known: KnownHosts, lost: Lost, banners: Banners) -> Self {
        Self { target: target.clone(), known, lost, banners }
    }
}

/// Returns the session configuration for this host.
pub(super) fn config(target: &Target, known: &KnownHosts) -> client::Config {
    let name = name_of(&target.known_as);
    let authorities = !known.authorities(&name).is_empty();
    let list = target.host_key_algorithms.as_deref();
    client::Config {
        preferred: offered(list, &known.algorithms(&name), authorities),
        keepalive_interval: target.alive_interval,
        keepalive_max: target.alive_count,
        nodelay: true,
        ..client::Config::default()
    }
}

impl client::Handler for Client {
    type Error = Fault;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Fault> {
        if let Some(certificate) = shown.certificate() {
            return self.check_certificate(certificate).map(|()| true).map_err(Fault::Ours);
        }
        self.check_key(&shown.public_key()).map(|()| true).map_err(Fault::Ours)
    }

    async fn auth_banner(&mut self, banner: &str, _: &mut Session) -> Result<(), Fault> {
        tracing::debug!("{}: {}", self.target.label, banner.trim());
        self.banners.add(banner);
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Fault>) -> Result<(), Fault> {
        let why = match &reason {
            DisconnectReason::ReceivedDisconnect(info) => {
                format!("the host ended the connection: {}", info.message.trim())
            }
            DisconnectReason::Error(Fault::Ssh(error)) => error.to_string(),
            DisconnectReason::Error(Fault::Ours(error)) => error.to_string(),
        };
        tracing::debug!("{}: disconnected: {why}", self.target.label);
        *self.lost.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        match reason {
            DisconnectReason::ReceivedDisconnect(_) => Ok(()),
            DisconnectReason::Error(error) => Err(error),
        }
    }
}

impl Client {
    fn check_key(&self, key: &PublicKey) -> Result<(), Error> {
        let name = name_of(&self.target.known_as);
        let mut verdict = self.known.check(&name, key);
        if verdict == Verdict::Unknown {
            if self.target.host_keys == HostKeys::Strict {
                return Err(self.unknown(key));
            }
            verdict = self.learn(&name, key);
        }
        match verdict {
            Verdict::Known | Verdict::Unknown => Ok(()),
            Verdict::Changed(place) => Err(self.changed(&name, key, &place)),
            Verdict::Revoked(place) => Err(self.revoked(key, &place)),
        }
    }

    /// As in OpenSSH, a known_hosts file that cannot be written is not an error.
    fn learn(&self, name: &str, key: &PublicKey) -> Verdict {
        let (label, print) = (&self.target.label, key.fingerprint(HashAlg::Sha256));
        match known_hosts::learn(&self.target.known_hosts, name, key) {
            Ok(verdict) => {
                tracing::info!("added the key of {label} to known_hosts: {print}");
                verdict
            }
            Err(error) => {
                tracing::warn!("cannot add the key of {label} ({print}) to known_hosts: {error}");
                Verdict::Unknown
            }
        }
    }

    fn unknown(&self, key: &PublicKey) -> Error {
        let label = &self.target.label;
        Error::denied(format!(
            "the key of {label} is not known ({} {})",
            key.algorithm(),
            key.fingerprint(HashAlg::Sha256)
        ))
        .hint(format!(
            "compare it with the host's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` \
             there), then add it: ssh-keyscan -p {} {} >> {}; or drop --strict-host-key",
            self.target.address.port,
            self.target.address.name,
            self.learnt_file()
        ))
    }

    fn changed(&self, name: &str, key: &PublicKey, place: &Place) -> Error {
        Error::denied(format!(
            "the key of {} is not the one in {place}: it shows {} {}",
            self.target.label,
            key.algorithm(),
            key.fingerprint(HashAlg::Sha256)
        ))
        .hint("the connection may be intercepted, or the host was reinstalled: find out which")
        .hint(format!(
            "if the host was reinstalled: ssh-keygen -f {} -R '{name}', then try again",
            place.file.display()
        ))
    }

    fn revoked(&self, key: &PublicKey, place: &Place) -> Error {
        Error::denied(format!(
            "the key of {} ({}) is revoked in {place}",
            self.target.label,
            key.fingerprint(HashAlg::Sha256)
        ))
        .hint("the host needs a new key")
    }

    /// Checks that an authority trusted for this host has signed its key.
    fn check_certificate(&self, certificate: &Certificate) -> Result<(), Error> {
        let key = PublicKey::new(certificate.public_key().clone(), "");
        let signer = PublicKey::new(certificate.signature_key().clone(), "");
        for key in [&key, &signer] {
            if let Some(place) = self.known.revoked(key) {
                return Err(self.revoked(key, &place));
            }
        }
        let name = name_of(&self.target.known_as);
        let authorities = self.known.authorities(&name);
        let trusted = authorities.iter().any(|ca| ca.key_data() == signer.key_data());
        if !trusted {
            // Without a trusted signer, the certificate counts as its plain key.
            return self.check_key(&key);
        }
        let refused = |why: String| {
            Error::denied(format!("the certificate of {} {why}", self.target.label))
                .hint("have the host's key signed again (ssh-keygen -s CA -h -n NAME …)")
        };
        if certificate.cert_type() != CertType::Host {
            return Err(refused("is not a host certificate".to_owned()));
        }
        if certificate.signature().algorithm() == (Algorithm::Rsa { hash: None }) {
            return Err(refused("is signed with SHA-1".to_owned()));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        certificate
            .validate_at(now, [&signer.fingerprint(HashAlg::Sha256)])
            .map_err(|error| refused("is not valid".to_owned()).caused_by(error))?;
        let host = &self.target.known_as.name;
        let principals = certificate.valid_principals();
        if !principals.iter().any(|principal| principal.eq_ignore_ascii_case(host)) {
            return Err(refused(format!("is not for {host}")));
        }
        Ok(())
    }

    fn learnt_file(&self) -> String {
        self.target.known_hosts.first().map_or_else(String::new, |file| file.display().to_string())
    }
}
