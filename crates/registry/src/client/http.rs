//! Sends one HTTP request and reads its response. Downloads small files from plain web servers
//! without credentials: signatures in a lookaside.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use reqwest::redirect::Policy;
use reqwest::{Body, Url};

use crate::client::failure::Failure;
use crate::client::sending::Sending;
use crate::{Client, tls};
use imgctl_base::error::{Error, Kind, Result};

/// Timeouts and limits of requests.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    pub(super) connect: Duration,
    /// Timeout for the head of a response.
    pub(super) answer: Duration,
    /// Timeout for the head of the response to a write. A registry may move gigabytes before it
    /// answers.
    pub(super) write_answer: Duration,
    /// Timeout without data within a body, in either direction.
    pub(super) silence: Duration,
    /// Minimum number of bytes received within the `silence` timeout.
    pub(super) least: u64,
    /// Pause before the second attempt.
    pub(super) first_pause: Duration,
    /// Maximum number of attempts at a mirror, which always has another place to fall back to.
    pub(super) mirror_tries: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            answer: Duration::from_secs(60),
            write_answer: Duration::from_secs(300),
            silence: Duration::from_secs(60),
            least: 16 << 10,
            first_pause: Duration::from_millis(250),
            mirror_tries: 2,
        }
    }
}

/// Head of a response, and its unread body.
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// URL of the response after redirects.
    pub(super) url: Url,
    body: Body,
}

impl Response {
    /// Returns a response without a body.
    pub(super) fn without_body(status: StatusCode, headers: HeaderMap, url: Url) -> Self {
        Self { status, headers, url, body: Body::default() }
    }

    /// Returns the next bytes of the body.
    pub(super) async fn chunk(&mut self, silence: Duration) -> Result<Option<Bytes>, Failure> {
        let host = self.url.host_str().unwrap_or_default();
        loop {
            match tokio::time::timeout(silence, self.body.frame()).await {
                Err(_) => return Err(Failure::silence(host, silence)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Failure::transport(host, &error)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// Reads the whole body. Fails if it is longer than `limit` bytes.
    pub(super) async fn read(&mut self, limit: u64, pace: &Pace) -> Result<Vec<u8>, Failure> {
        let host = self.url.host_str().unwrap_or_default().to_owned();
        let too_long = || {
            Failure::from(Error::bad_content(format!(
                "{host} answered with more than {limit} bytes"
            )))
        };
        if self.length().is_some_and(|length| length > limit) {
            return Err(too_long());
        }
        let until = Instant::now() + pace.answer;
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(pace.silence).await? {
            if bytes.len() as u64 + chunk.len() as u64 > limit {
                return Err(too_long());
            }
            bytes.extend_from_slice(&chunk);
            if Instant::now() > until {
                return Err(Failure::silence(&host, pace.answer));
            }
        }
        Ok(bytes)
    }

    /// Returns `Content-Length`.
    pub(super) fn length(&self) -> Option<u64> {
        self.text(header::CONTENT_LENGTH.as_str())?.parse().ok()
    }

    /// Returns a header as text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Sends one request and waits for the head of its response. While a body is being sent, progress
/// of `sending` extends the timeout.
pub(super) async fn carry(
    connection: &reqwest::Client,
    request: http::Request<Body>,
    url: &Url,
    pace: &Pace,
    sending: Option<&Sending>,
) -> Result<Response, Failure> {
    let host = url.host_str().unwrap_or_default();
    let limit = if request.method().is_safe() { pace.answer } else { pace.write_answer };
    let shown = format!("{} {host}{}", request.method(), url.path());
    let request =
        reqwest::Request::try_from(request).map_err(|error| Failure::transport(host, &error))?;
    let mut answer = std::pin::pin!(connection.execute(request));
    let sent = || sending.map_or(0, Sending::sent);
    let answer = loop {
        let before = sent();
        match tokio::time::timeout(limit, &mut answer).await {
            Ok(answer) => break answer,
            Err(_) if sent() > before => {}
            Err(_) => return Err(Failure::silence(host, limit)),
        }
    };
    let response = answer.map_err(|error| {
        tracing::debug!("{shown}: no answer");
        Failure::transport(host, &error)
    })?;
    tracing::debug!("{shown}: {}", response.status());
    let (parts, body) = http::Response::from(response).into_parts();
    Ok(Response { status: parts.status, headers: parts.headers, url: url.clone(), body })
}

/// A body that can be sent only once, and its progress.
pub(super) struct Stream {
    pub(super) body: Body,
    pub(super) sending: Arc<Sending>,
}

/// Timeout from the request to the last byte.
const PATIENCE: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 5;

impl Client {
    /// Downloads the file at `url` (http or https) of at most `limit` bytes. Returns `None` if the
    /// server has no such file.
    pub fn file(&self, url: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let builder = tls::with_proxies(tls::builder()?, &self.shared.options.proxies)?;
        let client = builder
            .timeout(PATIENCE)
            .redirect(Policy::limited(MAX_REDIRECTS))
            .build()
            .map_err(|error| Error::failed("cannot make an HTTP client").caused_by(error))?;
        self.shared.run(get(&client, url, limit))
    }
}

async fn get(client: &reqwest::Client, url: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let network = |error: reqwest::Error| {
        Error::new(Kind::Network, format!("cannot get {url}")).caused_by(error.without_url())
    };
    let mut response = client.get(url).send().await.map_err(network)?;
    match response.status() {
        StatusCode::NOT_FOUND => return Ok(None),
        status if !status.is_success() => {
            return Err(Error::new(
                Kind::Network,
                format!("cannot get {url}: the server answered {status}"),
            ));
        }
        _ => {}
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(network)? {
        if (bytes.len() + chunk.len()) as u64 > limit {
            return Err(Error::bad_content(format!("{url} is longer than {limit} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}
