//! Asks one API server whether it can serve: `/readyz` over HTTPS, on a connection that stays open.
//!
//! Accepting TLS proves nothing: an API server whose etcd is away still does. Must not know what
//! becomes of the answer.

use std::error::Error as _;

use reqwest::StatusCode;

use super::Options;
use crate::error::Result;
use crate::registry::registries::Certificates;
use crate::registry::tls;

/// An answer names its failed checks in the first of its bytes.
const LONGEST_ANSWER: usize = 16 * 1024;

/// What a look at a server shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Ready,
    /// It answers, and says that it cannot serve; or does not answer in time, or as somebody else.
    Unready(String),
    /// Nothing listens there.
    Down(String),
}

pub(super) struct Probe<'a> {
    options: &'a Options,
    address: String,
    /// Made when needed; made again after a failure, because certificates may have changed.
    client: Option<reqwest::Client>,
    /// The server refuses those who do not say who they are (`--anonymous-auth=false`).
    signs: bool,
    /// Nobody but the operator can change it: said once.
    told: bool,
}

impl<'a> Probe<'a> {
    pub(super) fn new(options: &'a Options, address: String) -> Self {
        Self {
            options,
            address,
            client: None,
            signs: false,
            told: false,
        }
    }

    pub(super) async fn look(&mut self) -> Finding {
        let looked = tokio::time::timeout(self.options.timeout, self.ask()).await;
        let finding = looked.unwrap_or_else(|_| {
            let seconds = self.options.timeout.as_secs_f32();
            Finding::Unready(format!("no answer to /readyz in {seconds} s"))
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
                // Before Kubernetes v1.16.
                StatusCode::NOT_FOUND if path == "/readyz" => path = "/healthz",
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.can_sign() => {
                    self.signs = true;
                    self.client = None;
                }
                // It lives and is not to be asked: no worse than a balancer that cannot ask.
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    if !std::mem::replace(&mut self.told, true) {
                        tracing::warn!(
                            "{} refuses to say whether it is ready ({status}): it counts as ready while it answers",
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

    /// Whether there is a client certificate that has not been tried.
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
                    made.map_err(|error| Finding::Unready(format!("it cannot be asked: {error}")))?,
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
        // A worker that has yet to join has no certificates of the cluster: what it asks is no secret.
        let authority = self.options.authority.clone().filter(|path| path.exists());
        let is_unknown = authority.is_none();
        let certificates = Certificates {
            authorities: authority.into_iter().collect(),
            client: self.options.certificate.clone().filter(|_| self.signs),
        };
        let mut builder = tls::builder_for(&certificates, is_unknown)?
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none());
        if let (Some(name), Ok(address)) = (&self.options.name, self.address.parse()) {
            builder = builder.resolve(name, address);
        }
        builder.build().map_err(|error| {
            crate::error::Error::failed("cannot make an HTTPS client").caused_by(error)
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

/// The checks that an API server names as failed: `[-]etcd failed: reason withheld`.
fn failed_checks(text: &str) -> String {
    let failed = text.lines().filter_map(|line| line.strip_prefix("[-]"));
    let names: Vec<&str> = failed
        .filter_map(|line| line.split_whitespace().next())
        .take(8)
        .collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" ({} failed)", names.join(", ")),
    }
}
