//! Calls of other web services with the client's proxies, certificates and retries: authorities,
//! logs and time-stamping authorities that take part in signing, caches of CI systems. Does not know
//! what they say.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Url};

use crate::client::failure::quoted;
use crate::client::hosts::Shared;
use crate::client::retry::{Tries, may_pass, retry_after};
use crate::{Client, tls};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::secret::Secret;

/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause before the second attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// One request.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// What the service is, for messages: `the transparency log`.
    pub service: &'a str,
    pub url: &'a str,
    /// Media type and content of a POST; `None` makes it a GET.
    pub body: Option<(&'a str, Vec<u8>)>,
    /// Accepted media type.
    pub accept: &'a str,
    /// Sent as a bearer token, only through TLS or to this machine.
    pub token: Option<&'a Secret>,
    /// Maximum size of the answer, in bytes.
    pub limit: u64,
    /// Deadline of retries.
    pub until: Instant,
}

/// The answer to a call, whatever its status.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// The header `Location`, as a full URL.
    pub location: Option<String>,
}

impl Answer {
    /// Returns the beginning of the body as printable text, for messages.
    pub fn said(&self) -> String {
        let start = self.body.get(..self.body.len().min(2048)).unwrap_or_default();
        quoted(&String::from_utf8_lossy(start))
    }
}

/// One request to a store of blobs whose URL is signed, and therefore a secret.
#[derive(Clone, Debug)]
pub struct Transfer<'a> {
    /// What the service is, for messages.
    pub service: &'a str,
    pub url: &'a str,
    /// Content of a PUT; `None` makes it a GET.
    pub content: Option<Bytes>,
    pub headers: &'a [(&'a str, &'a str)],
    /// Maximum size of the answer, in bytes.
    pub limit: u64,
    /// Deadline of retries.
    pub until: Instant,
}

/// Connections to services, kept between calls.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    client: reqwest::Client,
}

impl Client {
    /// Returns connections for several calls; connects to nothing yet.
    pub fn service(&self) -> Result<Service> {
        let builder = tls::with_proxies(tls::builder()?, &self.shared.options.proxies)?;
        let client = builder
            .timeout(PATIENCE)
            .redirect(Policy::none())
            .build()
            .map_err(|error| Error::failed("cannot make an HTTP client").caused_by(error))?;
        Ok(Service { shared: Arc::clone(&self.shared), client })
    }

    /// Calls a service once: see [`Service::call`].
    pub fn call(&self, call: &Call<'_>) -> Result<Answer> {
        self.service()?.call(call)
    }
}

impl Service {
    /// Calls a service. Failures that may pass (no connection, 429, 5xx) are retried until
    /// `call.until`; then the error names the service.
    pub fn call(&self, call: &Call<'_>) -> Result<Answer> {
        let url = parsed(call.url)?;
        if call.token.is_some() && url.scheme() != "https" && !is_local(&url) {
            return Err(Error::new(
                Kind::Denied,
                format!("not sending a token to {} without TLS", host(call.url)),
            )
            .hint("use an https URL"));
        }
        let request = || {
            let mut request = match &call.body {
                None => self.client.get(url.clone()),
                Some((media_type, bytes)) => self
                    .client
                    .post(url.clone())
                    .header(header::CONTENT_TYPE, *media_type)
                    .body(bytes.clone()),
            };
            request = request.header(header::ACCEPT, call.accept);
            match call.token {
                Some(token) => request.bearer_auth(token.expose()),
                None => request,
            }
        };
        self.repeat(&request, &Limits::new(call.service, &url, call.limit, call.until))
    }

    /// Sends or fetches content, with the same retries as [`Service::call`]. Answers with 401 and
    /// 403 are returned: the signature of the URL may have expired.
    pub fn transfer(&self, transfer: &Transfer<'_>) -> Result<Answer> {
        let url = parsed(transfer.url)?;
        if url.scheme() != "https" && !is_local(&url) {
            return Err(Error::new(
                Kind::Denied,
                format!("not using a signed URL of {} without TLS", host(transfer.url)),
            ));
        }
        let request = || {
            let request = match &transfer.content {
                None => self.client.get(url.clone()),
                Some(bytes) => self.client.put(url.clone()).body(bytes.clone()),
            };
            transfer
                .headers
                .iter()
                .fold(request, |request, (name, value)| request.header(*name, *value))
        };
        let limits = Limits::new(transfer.service, &url, transfer.limit, transfer.until);
        self.repeat(&request, &limits)
    }

    fn repeat(&self, request: &dyn Fn() -> RequestBuilder, limits: &Limits<'_>) -> Result<Answer> {
        let (service, host) = (limits.service, host(limits.url.as_str()));
        let mut tries = Tries::new(u32::MAX, FIRST_PAUSE);
        let mut answered = None;
        loop {
            let left = limits.until.saturating_duration_since(Instant::now());
            let request = request().timeout(left.clamp(Duration::from_millis(1), PATIENCE));
            let (why, delay) = match self.shared.run(once(request, limits)) {
                Ok((answer, _)) if !passing(answer.status) => return Ok(answer),
                Ok((answer, headers)) => {
                    let why = format!("answered {}: {}", answer.status, answer.said());
                    (answered.insert(why).clone(), retry_after(&headers))
                }
                Err(error) if error.kind() != Kind::Network => return Err(error),
                // The last attempt may be cut off by the deadline: the answer before it says more.
                Err(error) => match &answered {
                    Some(why) if Instant::now() >= limits.until => (String::clone(why), None),
                    _ => (format!("did not answer: {error}"), None),
                },
            };
            let pause = tries.failed(delay).unwrap_or(FIRST_PAUSE);
            if Instant::now() + pause >= limits.until {
                return Err(Error::new(Kind::Network, format!("{service} ({host}) {why}"))
                    .hint("try again later, or with a longer timeout"));
            }
            tracing::debug!("{service} {why}; next attempt in {} ms", pause.as_millis());
            std::thread::sleep(pause);
        }
    }
}

/// What bounds the attempts of one request.
struct Limits<'a> {
    service: &'a str,
    url: &'a Url,
    /// Maximum size of the answer, in bytes.
    answer: u64,
    until: Instant,
}

impl<'a> Limits<'a> {
    fn new(service: &'a str, url: &'a Url, answer: u64, until: Instant) -> Self {
        Self { service, url, answer, until }
    }
}

async fn once(request: RequestBuilder, limits: &Limits<'_>) -> Result<(Answer, HeaderMap)> {
    let network = |error: reqwest::Error| {
        let error = error.without_url();
        let mut cause: &dyn std::error::Error = &error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        Error::new(Kind::Network, quoted(&cause.to_string()))
    };
    let mut response = request.send().await.map_err(network)?;
    let headers = response.headers().clone();
    let status = response.status().as_u16();
    let location = headers
        .get(header::LOCATION)
        .and_then(|text| limits.url.join(text.to_str().ok()?).ok())
        .map(String::from);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(network)? {
        if (body.len() + chunk.len()) as u64 > limits.answer {
            return Err(Error::bad_content(format!(
                "{} ({}) answered with more than {} bytes",
                limits.service,
                host(limits.url.as_str()),
                limits.answer
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok((Answer { status, body, location }, headers))
}

/// Parses a URL, of which only the host may be shown.
fn parsed(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|error| {
        Error::usage(format!("the URL of {} cannot be used", host(url))).caused_by(error)
    })
}

fn passing(status: u16) -> bool {
    StatusCode::from_u16(status).is_ok_and(may_pass)
}

/// Returns the host and port of a URL: the rest may hold secrets.
fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default().to_owned()
}

fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
