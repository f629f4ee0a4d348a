//! Bootstrap tokens: generated here, valid in the API for at most two hours, removed after a host
//! has joined.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::runtime::kubectl::Kubectl;
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;

const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const LIFETIME: Duration = Duration::from_secs(2 * 3600);

/// A token such as `abcdef.0123456789abcdef`.
pub(super) struct Token {
    id: String,
    secret: Secret,
}

impl Token {
    pub(super) fn generate() -> Result<Self> {
        Ok(Self { id: random(6)?, secret: Secret::new(random(16)?) })
    }

    /// Returns the complete token: for configuration files only.
    pub(super) fn text(&self) -> Secret {
        Secret::new(format!("{}.{}", self.id, self.secret.expose()))
    }

    /// Registers the token with the API, as `kubeadm token create` does. That command takes the
    /// token as an argument, which every user on the host can read.
    pub(super) fn announce(&self, kubectl: &Kubectl<'_>) -> Result<()> {
        let lifetime = SignedDuration::try_from(LIFETIME)
            .map_err(|error| Error::failed("invalid duration").caused_by(error))?;
        let end = Timestamp::now()
            .checked_add(lifetime)
            .and_then(|end| end.round(jiff::Unit::Second))
            .map_err(|error| Error::failed("the clock is out of range").caused_by(error))?;
        kubectl.apply(&json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": self.object(), "namespace": "kube-system"},
            "stringData": {
                "token-id": self.id,
                "token-secret": self.secret.expose(),
                "expiration": end.to_string(),
                "usage-bootstrap-authentication": "true",
                "usage-bootstrap-signing": "true",
                "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
                "description": "imgctl: for one host to join",
            },
        }))
    }

    /// Deletes the token. Otherwise it would expire by itself.
    pub(super) fn withdraw(&self, kubectl: &Kubectl<'_>) -> Result<()> {
        let object = self.object();
        kubectl
            .run(&["delete", "secret", &object, "-n", "kube-system", "--ignore-not-found"])
            .map(|_| ())
    }

    fn object(&self) -> String {
        format!("bootstrap-token-{}", self.id)
    }
}

/// Returns random characters, each equally likely.
fn random(length: usize) -> Result<String> {
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut bytes = [0_u8; 32];
        aws_lc_rs::rand::fill(&mut bytes)
            .map_err(|_| Error::failed("cannot read random numbers from the system"))?;
        let fair = bytes.iter().filter(|byte| **byte < 252);
        let characters = fair.map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        text.extend(characters.take(length - text.len()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_look_as_kubeadm_wants_them() {
        let token = Token::generate().unwrap();
        let text = token.text();
        let (id, secret) = text.expose().split_once('.').unwrap();
        assert_eq!((id.len(), secret.len()), (6, 16));
        assert!(
            (id.to_owned() + secret).chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        );
        assert_ne!(Token::generate().unwrap().text().expose(), text.expose());
    }
}
