//! One request and its answer: sent, logged in, redirected, repeated.
//!
//! Credentials go to the origin of the endpoint (scheme, host and port) and nowhere else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use reqwest::{Body, Url};

use crate::error::{Error, Kind, Result};
use crate::registry::client::auth::{Authorization, no_credentials};
use crate::registry::client::challenge::{self, Scopes};
use crate::registry::client::failure::{Failure, said};
use crate::registry::client::hosts::{Host, Pace, Shared};
use crate::registry::client::retry::{DEFAULT_TRIES, MIRROR_TRIES, Tries, may_pass, retry_after};
use crate::registry::registries::Certificates;

/// More redirects of one request are refused.
const MAX_REDIRECTS: usize = 5;
/// So many times a host may say 401 before we believe it: once that it does not know us, once that
/// a token we kept is too old.
const MAX_LOGINS: usize = 2;
/// So much of an error's body is read, in bytes.
const MAX_ERROR: u64 = 64 << 10;

/// One repository at one host.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) shared: Arc<Shared>,
    pub(super) host: Arc<Host>,
    /// As this host calls it; empty for requests that are about none.
    pub(super) repository: String,
    pub(super) by_digest: bool,
    pub(super) by_tag: bool,
    /// A mirror, behind which there is another place.
    pub(super) mirror: bool,
}

/// A request without a streamed body, which can be repeated.
#[derive(Debug)]
pub(super) struct Ask {
    /// `cannot read manifest v1 of quay.io/a/b`.
    pub(super) doing: String,
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) scopes: Scopes,
    /// Answers beside 2xx that the caller understands.
    pub(super) understood: &'static [StatusCode],
}

impl Ask {
    /// A request without headers and body.
    pub(super) fn new(doing: String, method: Method, url: Url, scopes: Scopes) -> Self {
        Self {
            doing,
            method,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            scopes,
            understood: &[],
        }
    }
}

/// The head of an answer, and its body to be read.
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Where it came from in the end.
    pub(super) url: Url,
    /// The address that answered; a proxy's, if there is one.
    peer: Option<SocketAddr>,
    body: Body,
}

impl Response {
    /// The next bytes of the body.
    pub(super) async fn chunk(&mut self, silence: Duration) -> Result<Option<Bytes>, Failure> {
        let host = self.url.host_str().unwrap_or_default();
        loop {
            match tokio::time::timeout(silence, self.body.frame()).await {
                Err(_) => return Err(Failure::silence(host, silence)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Failure::transport(host, error)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// The whole body; longer than `limit` bytes it is refused.
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

    /// `Content-Length`.
    pub(super) fn length(&self) -> Option<u64> {
        self.text(header::CONTENT_LENGTH.as_str())?.parse().ok()
    }

    /// A header's text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// How far a streamed body has gone; somebody else may watch it.
#[derive(Debug, Default)]
pub(super) struct Activity {
    pub(super) sent: AtomicU64,
}

/// Sends one request and waits for the head of its answer: the one place where bytes leave us.
/// While a body is being sent, `activity` says that we are not waiting in vain.
pub(super) async fn carry(
    connection: &reqwest::Client,
    request: http::Request<Body>,
    url: &Url,
    pace: &Pace,
    activity: Option<&Activity>,
) -> Result<Response, Failure> {
    let host = url.host_str().unwrap_or_default();
    let limit = if request.method().is_safe() {
        pace.answer
    } else {
        pace.write_answer
    };
    let shown = format!("{} {host}{}", request.method(), url.path());
    let request = reqwest::Request::try_from(request)
        .map_err(|error| Failure::transport(host, error.without_url()))?;
    let mut answer = std::pin::pin!(connection.execute(request));
    let sent = || activity.map_or(0, |activity| activity.sent.load(Ordering::Relaxed));
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
        Failure::transport(host, error.without_url())
    })?;
    tracing::debug!("{shown}: {}", response.status());
    let peer = response.remote_addr();
    let (parts, body) = http::Response::from(response).into_parts();
    Ok(Response {
        status: parts.status,
        headers: parts.headers,
        url: url.clone(),
        peer,
        body,
    })
}

/// A body that is sent once, and how far it has gone.
pub(super) struct Stream {
    pub(super) body: Body,
    pub(super) activity: Arc<Activity>,
}

impl Place {
    /// `host/repository`, for messages.
    pub(super) fn name(&self) -> String {
        if self.repository.is_empty() {
            return self.host.registry().to_owned();
        }
        format!("{}/{}", self.host.registry(), self.repository)
    }

    /// The URL of `/v2/<repository>/<path>`.
    pub(super) async fn url(&self, path: &str) -> Result<Url, Failure> {
        let base = self.base().await?;
        let path = match self.repository.as_str() {
            "" => format!("v2/{path}"),
            repository => format!("v2/{repository}/{path}"),
        };
        base.join(&path)
            .map_err(|_| Error::bad_content(format!("`{path}` cannot be part of an URL")).into())
    }

    /// How often something is tried here.
    pub(super) fn tries(&self) -> Tries {
        let limit = match self.mirror {
            true => MIRROR_TRIES,
            false => self.shared.options.retries.unwrap_or(DEFAULT_TRIES),
        };
        Tries::new(limit, self.shared.pace.first_pause)
    }

    /// Asks until there is an answer of 2xx or one that is understood, or no hope.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Response> {
        let mut tries = self.tries();
        loop {
            let failure = match self.attempt(ask, None).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            self.pause(failure, &mut tries)
                .await
                .map_err(|error| error.context(ask.doing.clone()))?;
        }
    }

    /// Asks as [`Place::ask`] does and reads the whole body, at most `limit` bytes; a body that
    /// breaks off is asked for again.
    pub(super) async fn ask_whole(&self, ask: &Ask, limit: u64) -> Result<(Vec<u8>, Response)> {
        let mut tries = self.tries();
        loop {
            let mut response = self.ask(ask).await?;
            match response.read(limit, &self.shared.pace).await {
                Ok(body) => return Ok((body, response)),
                Err(failure) => {
                    let waited = self.pause(failure, &mut tries).await;
                    waited.map_err(|error| error.context(ask.doing.clone()))?;
                }
            }
        }
    }

    /// Waits before the next try; gives the error back when there is none.
    pub(super) async fn pause(&self, failure: Failure, tries: &mut Tries) -> Result<()> {
        if !failure.again {
            return Err(failure.error);
        }
        match tries.failed(failure.wish) {
            None if tries.made() > 1 => {
                let message = format!("{} (tried {} times)", failure.error.message(), tries.made());
                Err(failure.error.retold(message))
            }
            None => Err(failure.error),
            Some(pause) => {
                if failure.wish.is_some() {
                    tracing::warn!("{}: waiting {} s", failure.error.message(), pause.as_secs());
                } else {
                    tracing::debug!("{}: trying again in {pause:?}", failure.error);
                }
                tokio::time::sleep(pause).await;
                Ok(())
            }
        }
    }

    /// One try at a server that learns nothing of us: by https, without credentials.
    pub(super) async fn attempt_abroad(&self, ask: &Ask) -> Result<Response, Failure> {
        if ask.url.scheme() != "https" || !ask.url.username().is_empty() {
            let host = ask.url.host_str().unwrap_or_default();
            return Err(self.redirect_refused(host, "it is not https"));
        }
        let (response, _) = self.follow(ask, None, None).await?;
        self.judge(ask, response, false, None).await
    }

    /// `scheme://host/` of this place.
    pub(super) async fn base(&self) -> Result<&Url, Failure> {
        self.host.base(&self.shared.pace).await
    }

    /// One try: with what the host is known to ask for, and once more when it asks for more.
    pub(super) async fn attempt(
        &self,
        ask: &Ask,
        mut stream: Option<Stream>,
    ) -> Result<Response, Failure> {
        let mut authorization = self.host.auth.known(self, &ask.scopes).await?;
        let streamed = stream.is_some();
        for login in 0..=MAX_LOGINS {
            let (response, at_home) = self
                .follow(ask, authorization.as_ref(), stream.take())
                .await?;
            if response.status != StatusCode::UNAUTHORIZED || !at_home {
                return self
                    .judge(ask, response, at_home, authorization.as_ref())
                    .await;
            }
            let challenge = challenge::of_headers(&response.headers);
            let refused = authorization.as_ref();
            let Some(challenge) = challenge.filter(|_| login < MAX_LOGINS) else {
                return self.judge(ask, response, at_home, refused).await;
            };
            let renewed = self
                .host
                .auth
                .renewed(self, &challenge, &ask.scopes, refused)
                .await?;
            if refused.is_some_and(|refused| refused.value == renewed.value) {
                return self.judge(ask, response, at_home, refused).await;
            }
            if streamed {
                return Err(Failure::passing(Error::new(
                    Kind::Denied,
                    format!("{} wants us to log in again", self.host.registry()),
                )));
            }
            authorization = Some(renewed);
        }
        Err(no_credentials(self).into())
    }

    /// Sends it and goes where redirects lead. Says whether the endpoint itself answered.
    async fn follow(
        &self,
        ask: &Ask,
        authorization: Option<&Authorization>,
        mut stream: Option<Stream>,
    ) -> Result<(Response, bool), Failure> {
        let home = self.base().await?;
        let mut url = ask.url.clone();
        let mut seen = Vec::new();
        // Once abroad, even the way back home goes without credentials.
        let mut at_home = true;
        loop {
            at_home &= url.origin() == home.origin();
            let mut request = http::Request::builder()
                .method(&ask.method)
                .uri(url.as_str());
            if let Some(headers) = request.headers_mut() {
                headers.clone_from(&ask.headers);
                if let Some(authorization) = authorization.filter(|_| at_home) {
                    headers.insert(header::AUTHORIZATION, authorization.value.clone());
                }
            }
            let (body, activity) = match stream.take() {
                Some(stream) => (stream.body, Some(stream.activity)),
                None => (ask.body.clone().into(), None),
            };
            let streamed = activity.is_some();
            let request = request
                .body(body)
                .map_err(|_| Error::bad_content("the request's address cannot be used"))?;
            let connection = self.connection(&url, home)?;
            let response = carry(
                &connection,
                request,
                &url,
                &self.shared.pace,
                activity.as_deref(),
            )
            .await?;
            if at_home {
                self.host.saw(response.peer);
            }
            if !matches!(response.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, at_home));
            }
            let next = self.redirected(&response, home)?;
            if streamed || !(ask.method.is_safe() || next.origin() == home.origin()) {
                let host = next.host_str().unwrap_or_default();
                return Err(self.redirect_refused(host, "an upload is not sent elsewhere"));
            }
            seen.push(url);
            if seen.contains(&next) {
                return Err(self.redirect_refused("itself", "that leads in a circle"));
            }
            if seen.len() > MAX_REDIRECTS {
                let host = next.host_str().unwrap_or_default();
                return Err(self.redirect_refused(host, "there were too many redirects before"));
            }
            url = next;
        }
    }

    /// Where a redirect leads, if that is a place to go.
    fn redirected(&self, response: &Response, home: &Url) -> Result<Url, Failure> {
        let location = response.text(header::LOCATION.as_str()).unwrap_or_default();
        self.location(&response.url, location, home)
    }

    /// A `Location` seen from `from`: an URL of http(s), without a password, and not out of TLS.
    pub(super) fn location(&self, from: &Url, text: &str, home: &Url) -> Result<Url, Failure> {
        let mut url = from
            .join(text)
            .ok()
            .filter(|url| !text.is_empty() && url.has_host())
            .ok_or_else(|| self.redirect_refused("nowhere", "there is no Location"))?;
        let host = url.host_str().unwrap_or_default().to_owned();
        if !url.username().is_empty() || url.password().is_some() {
            return Err(self.redirect_refused(&host, "the address holds a password"));
        }
        if url.scheme() == "http" && home.scheme() == "https" && url.host() == home.host() {
            // A registry behind a TLS proxy that does not know of it.
            let port = home.port();
            if url.set_scheme("https").is_ok() && url.set_port(port).is_ok() {
                return Ok(url);
            }
        }
        match url.scheme() {
            "https" => Ok(url),
            "http" if from.scheme() == "http" || self.host.insecure => Ok(url),
            _ => Err(self.redirect_refused(&host, "it is not https")),
        }
    }

    fn redirect_refused(&self, to: &str, why: &str) -> Failure {
        Error::new(
            Kind::BadContent,
            format!(
                "{} redirects to {to}, which is refused: {why}",
                self.host.name
            ),
        )
        .into()
    }

    /// The host's own connections, or ones without our certificate for any other host.
    fn connection(&self, url: &Url, home: &Url) -> Result<reqwest::Client> {
        if url.host() == home.host() {
            return Ok(self.host.connection.clone());
        }
        let certificates = Certificates {
            client: None,
            ..self.host.certificates.clone()
        };
        self.shared.connection(self.host.insecure, &certificates)
    }

    /// Tells answers from refusals.
    async fn judge(
        &self,
        ask: &Ask,
        mut response: Response,
        at_home: bool,
        authorization: Option<&Authorization>,
    ) -> Result<Response, Failure> {
        let status = response.status;
        if status.is_success() || ask.understood.contains(&status) {
            return Ok(response);
        }
        let body = match ask.method {
            Method::HEAD => Vec::new(),
            // Without its text the status still says enough.
            _ => response
                .read(MAX_ERROR, &self.shared.pace)
                .await
                .unwrap_or_default(),
        };
        let who = match at_home {
            true => self.host.name.clone(),
            false => format!(
                "{}, to which {} redirects,",
                response.url.host_str().unwrap_or_default(),
                self.host.name
            ),
        };
        let why = said(&body).map_or_else(String::new, |text| format!(": {text}"));
        let message = format!("{who} answered {status}{why}");
        let registry = self.host.registry();
        let error = match status.as_u16() {
            401 | 403 if at_home => {
                let source = authorization.map(|authorization| authorization.source.as_deref());
                let whose = match source {
                    Some(Some(source)) => format!("the credentials are those from {source}"),
                    Some(None) | None => format!("no credentials for {registry} were found"),
                };
                Error::new(Kind::Denied, format!("{message} ({whose})"))
                    .hint(format!("log in with an account that may do this: `imgctl login {registry}`"))
            }
            404 => Error::not_found(message),
            429 => Error::new(Kind::Network, message).hint(format!(
                "{registry} limits how much we may ask; wait, log in (`imgctl login {registry}`) or use a mirror"
            )),
            _ => Error::new(Kind::Network, message),
        };
        Err(Failure {
            error,
            // A signed URL that was too old when we came is made anew by the next try.
            again: may_pass(status) || (!at_home && matches!(status.as_u16(), 401 | 403)),
            wish: retry_after(&response.headers),
            status: Some(status),
        })
    }
}
