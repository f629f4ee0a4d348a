//! Probes one API server: requests `/readyz` over HTTPS, on a connection that stays open.
//!
//! Accepting TLS proves nothing: an API server accepts it even if its etcd is unreachable. Must not
//! depend on how the result is used.

use std::error::Error as _;

use reqwest::StatusCode;

use super::Options;
use imgctl_base::error::Result;
use imgctl_registry::registries::{Certificates, Pem};
use imgctl_registry::tls;

/// Maximum number of bytes read from an answer: the failed checks are named at its beginning.
const LONGEST_ANSWER: usize = 16 * 1024;

/// Result of probing a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Ready,
    /// The server answers that it cannot serve, does not answer in time, or has the wrong identity.
    Unready(String),
    /// Nothing listens at the address.
    Down(String),
}

pub(super) struct Probe<'a> {
    options: &'a Options,
    address: String,
    /// Created on demand, and again after a failure, because the certificates may have changed.
    client: Option<reqwest::Client>,
    /// The server refuses anonymous requests (`--anonymous-auth=false`).
    signs: bool,
    /// The warning has been logged: only the operator can resolve its cause, so it is logged once.
    told: bool,
}

impl<'a> Probe<'a> {
    pub(super) fn new(options: &'a Options, address: String) -> Self {
        Self { options, address, client: None, signs: false, told: false }
    }

    pub(super) async fn look(&mut self) -> Finding {
        let looked = tokio::time::timeout(self.options.timeout, self.ask()).await;
        let finding = looked.unwrap_or_else(|_| {
            let seconds = self.options.timeout.as_secs_f32();
            Finding::Unready(format!("no answer to /readyz within {seconds} s"))
        });
        if finding != Finding::Ready {
            self.client = None;
        }
        finding
    }

    async fn ask(&mut self) -> Finding {
        let mut path = "/readyz";
        loop {
            let (status, text) = match self.get(path).await {
                Ok(answer) => answer,
                Err(finding) => return finding,
            };
            match status {
                // Kubernetes before v1.16.
                StatusCode::NOT_FOUND if path == "/readyz" => path = "/healthz",
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.can_sign() => {
                    self.signs = true;
                    self.client = None;
                }
                // The server is up but refuses the probe: treated like a server that cannot be
                // probed.
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    if !std::mem::replace(&mut self.told, true) {
                        tracing::warn!(
                            "{} denies access to /readyz ({status}): it counts as ready while it \
                             responds",
                            self.address
                        );
                    }
                    return Finding::Ready;
                }
                status if status.is_success() => return Finding::Ready,
                status => {
                    return Finding::Unready(format!(
                        "{path} answers {}{}",
                        status.as_u16(),
                        failed_checks(&text)
                    ));
                }
            }
        }
    }

    /// Whether a client certificate exists that has not been tried.
    fn can_sign(&self) -> bool {
        let client = self.options.certificate.as_ref();
        !self.signs && client.is_some_and(|(certificate, key)| certificate.exists() && key.exists())
    }

    async fn get(&mut self, path: &str) -> Result<(StatusCode, String), Finding> {
        let client = match &self.client {
            Some(client) => client,
            None => {
                let made = self.client();
                self.client.insert(
                    made.map_err(|error| Finding::Unready(format!("cannot query it: {error}")))?,
                )
            }
        };
        let host = match &self.options.name {
            Some(name) => {
                let port = self.address.rsplit(':').next().unwrap_or_default();
                format!("{name}:{port}")
            }
            None => self.address.clone(),
        };
        let asked = client.get(format!("https://{host}{path}")).send().await;
        let mut answer = asked.map_err(|error| failure(&error))?;
        let mut text = Vec::new();
        while text.len() < LONGEST_ANSWER
            && let Ok(Some(part)) = answer.chunk().await
        {
            text.extend_from_slice(&part);
        }
        Ok((answer.status(), String::from_utf8_lossy(&text).into_owned()))
    }

    fn client(&self) -> Result<reqwest::Client> {
        // A worker that has not joined yet has no cluster certificates; its requests are not
        // confidential.
        let authority = self.options.authority.clone().filter(|path| path.exists());
        let is_unknown = authority.is_none();
        let certificates = Certificates {
            authorities: authority.into_iter().map(Pem::File).collect(),
            client: self
                .options
                .certificate
                .clone()
                .filter(|_| self.signs)
                .map(|(certificate, key)| (certificate.into(), key.into())),
        };
        let mut builder = tls::builder_for(&certificates, is_unknown)?
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none());
        if let (Some(name), Ok(address)) = (&self.options.name, self.address.parse()) {
            builder = builder.resolve(name, address);
        }
        builder.build().map_err(|error| {
            imgctl_base::error::Error::failed("cannot make an HTTPS client").caused_by(error)
        })
    }
}

fn failure(error: &reqwest::Error) -> Finding {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return Finding::Down("the connection is refused".to_owned());
        }
        why = inner.to_string();
        cause = inner.source();
    }
    Finding::Unready(why)
}

/// Returns the checks that an API server reports as failed: `[-]etcd failed: reason withheld`.
fn failed_checks(text: &str) -> String {
    let failed = text.lines().filter_map(|line| line.strip_prefix("[-]"));
    let names: Vec<&str> =
        failed.filter_map(|line| line.split_whitespace().next()).take(8).collect();
    if names.is_empty() { String::new() } else { format!(" ({} failed)", names.join(", ")) }
}
