//! One repository at one host: sends requests, follows redirects, authenticates, evaluates
//! responses, and retries.
//!
//! Credentials and our client certificate go only to the origin of the endpoint (scheme, host and
//! port). After a request has left the origin, a redirect back to it is followed without
//! credentials.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use reqwest::{Body, Url};

use crate::client::auth::no_credentials;
use crate::client::challenge::{self, Authorization, Scopes};
use crate::client::failure::{CANNOT_CONNECT, Failure, said_without};
use crate::client::hosts::{Place, Pool};
use crate::client::http::{Response, Stream, carry};
use crate::client::retry::{DEFAULT_TRIES, Tries, may_pass, retry_after};
use crate::registries::Certificates;
use crate::tls;
use imgctl_base::error::{Error, Kind, Result};

/// Maximum number of 401 responses that are answered with a login: the first because the host does
/// not know the client, the second because a cached token has expired or has too few permissions.
const MAX_LOGINS: usize = 2;
/// Maximum number of bytes read from the body of an error response.
const MAX_ERROR: u64 = 64 << 10;

/// A request without a streamed body, which can be repeated.
#[derive(Debug)]
pub(super) struct Ask {
    /// `cannot read manifest v1 of quay.io/a/b`.
    pub(super) doing: String,
    pub(super) method: Method,
    pub(super) address: Address,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) scopes: Scopes,
    /// Statuses besides 2xx that the caller handles.
    pub(super) understood: &'static [StatusCode],
}

/// Destination of a request.
#[derive(Clone, Debug)]
pub(super) enum Address {
    /// Path below `/v2/<repository>/`, and the query.
    Path(String, Vec<(&'static str, String)>),
    /// URL that the registry returned.
    Url(Url),
}

impl From<String> for Address {
    fn from(path: String) -> Self {
        Self::Path(path, Vec::new())
    }
}

impl From<Url> for Address {
    fn from(url: Url) -> Self {
        Self::Url(url)
    }
}

impl Ask {
    /// Creates a request without headers and body.
    pub(super) fn new(
        doing: String,
        method: Method,
        address: impl Into<Address>,
        scopes: Scopes,
    ) -> Self {
        Self {
            doing,
            method,
            address: address.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            scopes,
            understood: &[],
        }
    }
}

impl Place {
    pub(super) async fn url(&self, address: &Address) -> Result<Url, Failure> {
        let (path, query) = match address {
            Address::Url(url) => return Ok(url.clone()),
            Address::Path(path, query) => (path, query),
        };
        let path = match self.repository.as_str() {
            "" => format!("{}/{path}", self.path),
            repository => format!("{}/{repository}/{path}", self.path),
        };
        let mut url = self
            .base()
            .await?
            .join(&path)
            .map_err(|_| Error::bad_content(format!("`{path}` cannot be part of a URL")))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    /// Returns the counter for attempts at this place.
    pub(super) fn tries(&self) -> Tries {
        let limit = if self.mirror {
            self.shared.pace.mirror_tries
        } else {
            self.shared.options.attempts.unwrap_or(DEFAULT_TRIES)
        };
        Tries::new(limit, self.shared.pace.first_pause)
    }

    /// Sends a request until the response is 2xx or a status that the caller handles, or until no
    /// retry is left.
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

    /// Sends a request like [`Place::ask`] and reads the whole body of at most `limit` bytes.
    /// Repeats the request if the body breaks off.
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

    /// Names the proxy in a hint: the error of a connection that goes through it names the registry alone.
    fn with_proxy(&self, error: Error) -> Error {
        let proxies = tls::proxy_hosts(&self.shared.options.proxies);
        match proxies.first() {
            Some(proxy) if error.message().starts_with(CANNOT_CONNECT) => error.hint(format!(
                "connections go through the proxy {proxy}: check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or add \
                 the registry to NO_PROXY"
            )),
            _ => error,
        }
    }

    /// Waits before the next attempt. Returns the error if no attempt is left.
    pub(super) async fn pause(&self, failure: Failure, tries: &mut Tries) -> Result<()> {
        if !failure.again {
            return Err(failure.error);
        }
        match tries.failed(failure.retry_after) {
            None if tries.made() > 1 => {
                let message = format!("{} (tried {} times)", failure.error.message(), tries.made());
                Err(self.with_proxy(failure.error.retold(message)))
            }
            None => Err(self.with_proxy(failure.error)),
            Some(pause) => {
                if failure.retry_after.is_some() {
                    tracing::warn!("{}: waiting {} s", failure.error.message(), pause.as_secs());
                } else {
                    tracing::debug!("{}: retrying in {pause:?}", failure.error);
                }
                tokio::time::sleep(pause).await;
                Ok(())
            }
        }
    }

    /// Returns `scheme://host/` of this place.
    pub(super) async fn base(&self) -> Result<&Url, Failure> {
        self.host.base(&self.shared.pace).await
    }

    /// Makes one attempt with the authorization that the host is known to require, and repeats it
    /// if the host requires another.
    pub(super) async fn attempt(
        &self,
        ask: &Ask,
        mut stream: Option<Stream>,
    ) -> Result<Response, Failure> {
        let url = self.url(&ask.address).await?;
        let mut authorization = self.known_authorization(&ask.scopes).await?;
        let streamed = stream.is_some();
        for login in 0..=MAX_LOGINS {
            let (response, at_home) =
                self.follow(ask, url.clone(), authorization.as_ref(), stream.take()).await?;
            if response.status != StatusCode::UNAUTHORIZED || !at_home {
                return self.judge(ask, response, at_home, authorization.as_ref()).await;
            }
            let challenge = challenge::of_headers(&response.headers);
            let refused = authorization.as_ref();
            let Some(challenge) = challenge.filter(|_| login < MAX_LOGINS) else {
                return self.judge(ask, response, at_home, refused).await;
            };
            let renewed = self.renewed_authorization(&challenge, &ask.scopes, refused).await?;
            if refused.is_some_and(|refused| refused.value == renewed.value) {
                return self.judge(ask, response, at_home, refused).await;
            }
            if streamed {
                return Err(Failure::passing(Error::new(
                    Kind::Denied,
                    format!("{} requires us to log in again", self.host.registry()),
                )));
            }
            authorization = Some(renewed);
        }
        Err(no_credentials(self).into())
    }

    /// Returns the response, or a failure if the host refused the request.
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
            // The status is sufficient if the body cannot be read.
            _ => response.read(MAX_ERROR, &self.shared.pace).await.unwrap_or_default(),
        };
        Err(Failure {
            error: self.refusal(&response, &body, at_home, authorization),
            // The next attempt obtains a new signed URL if this one has expired.
            again: may_pass(status) || (!at_home && matches!(status.as_u16(), 401 | 403)),
            retry_after: retry_after(&response.headers),
            status: Some(status),
        })
    }

    /// Returns the error for a refused request.
    fn refusal(
        &self,
        response: &Response,
        body: &[u8],
        at_home: bool,
        authorization: Option<&Authorization>,
    ) -> Error {
        let who = if at_home {
            self.host.name.clone()
        } else {
            format!(
                "{}, to which {} redirects,",
                response.url.host_str().unwrap_or_default(),
                self.host.name
            )
        };
        let secrets = authorization.map_or_else(Vec::new, Authorization::secrets);
        let why = said_without(body, &secrets);
        let why = why.map_or_else(String::new, |text| format!(": {text}"));
        let message = format!("{who} answered {}{why}", response.status);
        let registry = self.host.registry();
        match response.status.as_u16() {
            401 | 403 if at_home => {
                let source = authorization.map(|authorization| authorization.source.as_deref());
                let whose = match source {
                    Some(Some(source)) => format!("the credentials are those from {source}"),
                    Some(None) => format!("no credentials for {registry} were found"),
                    None => "it asked for no credentials".to_owned(),
                };
                Error::new(Kind::Denied, format!("{message} ({whose})")).hint(format!(
                    "log in with an account that may do this: `imgctl login {registry}`"
                ))
            }
            404 => Error::not_found(message),
            429 => Error::new(Kind::Network, message).hint(format!(
                "{registry} limits the rate of requests; wait, log in (`imgctl login \
                 {registry}`) or use a mirror"
            )),
            _ => Error::new(Kind::Network, message),
        }
    }

    /// Makes one attempt at a foreign server: over https, without credentials.
    pub(super) async fn attempt_abroad(&self, ask: &Ask) -> Result<Response, Failure> {
        let url = self.url(&ask.address).await?;
        if url.scheme() != "https" || !url.username().is_empty() {
            let host = url.host_str().unwrap_or_default();
            return Err(self.redirect_refused(host, "it is not https"));
        }
        let (response, _) = self.follow(ask, url, None, None).await?;
        self.judge(ask, response, false, None).await
    }

    /// Sends a request and follows redirects. Returns whether the endpoint itself answered.
    pub(super) async fn follow(
        &self,
        ask: &Ask,
        mut url: Url,
        authorization: Option<&Authorization>,
        mut stream: Option<Stream>,
    ) -> Result<(Response, bool), Failure> {
        let home = self.base().await?;
        let mut seen = Vec::new();
        // After a redirect to another origin, even a redirect back is followed without credentials.
        let mut at_home = true;
        loop {
            at_home &= url.origin() == home.origin();
            let (body, sending) = match stream.take() {
                Some(stream) => (stream.body, Some(stream.sending)),
                None => (ask.body.clone().into(), None),
            };
            let streamed = sending.is_some();
            let headers = if at_home { &self.headers[..] } else { &[] };
            let request = built(ask, &url, headers, authorization.filter(|_| at_home), body)?;
            let connection = self.connection(&url, home)?;
            let response =
                carry(&connection, request, &url, &self.shared.pace, sending.as_deref()).await?;
            if !is_redirect(response.status) {
                return Ok((response, at_home));
            }
            let next = self.redirected(&response, home)?;
            if streamed || !(ask.method.is_safe() || next.origin() == home.origin()) {
                return Err(self.redirected_upload(&next));
            }
            seen.push(url);
            if seen.contains(&next) {
                return Err(self.redirect_refused("itself", "it is a redirect loop"));
            }
            if seen.len() > MAX_REDIRECTS {
                let host = next.host_str().unwrap_or_default();
                return Err(self.redirect_refused(host, "there were too many redirects"));
            }
            url = next;
        }
    }

    /// Returns the failure for an upload that is redirected to `next`.
    fn redirected_upload(&self, next: &Url) -> Failure {
        let host = next.host_str().unwrap_or_default();
        self.redirect_refused(host, "uploads do not follow redirects")
    }

    /// Returns the failure for the response to an upload, if it is a redirect.
    pub(super) async fn refuse_redirect(&self, response: &Response) -> Result<(), Failure> {
        if !is_redirect(response.status) {
            return Ok(());
        }
        let next = self.redirected(response, self.base().await?)?;
        Err(self.redirected_upload(&next))
    }

    /// Returns the target of a redirect, if it is allowed.
    fn redirected(&self, response: &Response, home: &Url) -> Result<Url, Failure> {
        let location = response.text(header::LOCATION.as_str()).unwrap_or_default();
        self.location(&response.url, location, home)
    }

    /// Resolves a `Location` relative to `from`: an http(s) URL without a password that does not
    /// leave TLS.
    pub(super) fn location(&self, from: &Url, text: &str, home: &Url) -> Result<Url, Failure> {
        let mut url = from
            .join(text)
            .ok()
            .filter(|url| !text.is_empty() && url.has_host())
            .ok_or_else(|| self.redirect_refused("nowhere", "there is no Location header"))?;
        let host = url.host_str().unwrap_or_default().to_owned();
        if !url.username().is_empty() || url.password().is_some() {
            return Err(self.redirect_refused(&host, "the address contains a password"));
        }
        if url.scheme() == "http" && home.scheme() == "https" && url.host() == home.host() {
            // The registry is behind a TLS proxy and does not know its public scheme.
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

    /// Returns the host's own connections, or for any other host connections without our
    /// certificate.
    fn connection(&self, url: &Url, home: &Url) -> Result<reqwest::Client> {
        if url.origin() == home.origin() {
            return Ok(self.host.connection.clone());
        }
        let certificates = Certificates { client: None, ..self.host.certificates.clone() };
        self.shared.connection(Pool { insecure: self.host.insecure, public: false, certificates })
    }

    pub(super) fn redirect_refused(&self, to: &str, why: &str) -> Failure {
        Error::new(
            Kind::BadContent,
            format!("{} redirects to {to}, which is refused: {why}", self.host.name),
        )
        .into()
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 5;

fn built(
    ask: &Ask,
    url: &Url,
    configured: &[(HeaderName, HeaderValue)],
    authorization: Option<&Authorization>,
    body: Body,
) -> Result<http::Request<Body>> {
    let mut request = http::Request::builder().method(&ask.method).uri(url.as_str());
    if let Some(headers) = request.headers_mut() {
        headers.clone_from(&ask.headers);
        let added = configured.iter().filter(|(name, _)| !ask.headers.contains_key(name));
        for (name, value) in added {
            headers.append(name, value.clone());
        }
        if let Some(authorization) = authorization {
            headers.insert(header::AUTHORIZATION, authorization.value.clone());
        }
    }
    request.body(body).map_err(|_| Error::bad_content("the request's address cannot be used"))
}
