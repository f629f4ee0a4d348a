//! Follows redirects.
//!
//! Credentials and our client certificate go only to the origin of the endpoint (scheme, host and
//! port). After a request has left the origin, a redirect back to it is followed without
//! credentials.

use http::header;
use reqwest::{Body, Url};

use crate::client::challenge::Authorization;
use crate::client::failure::Failure;
use crate::client::hosts::{Place, Pool};
use crate::client::http::{Response, Stream, carry};
use crate::client::place::Ask;
use crate::registries::Certificates;
use imgctl_base::error::{Error, Kind, Result};

/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 5;

impl Place {
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
            let request = request(ask, &url, authorization.filter(|_| at_home), body)?;
            let connection = self.connection(&url, home)?;
            let response =
                carry(&connection, request, &url, &self.shared.pace, sending.as_deref()).await?;
            if !matches!(response.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, at_home));
            }
            let next = self.redirected(&response, home)?;
            if streamed || !(ask.method.is_safe() || next.origin() == home.origin()) {
                let host = next.host_str().unwrap_or_default();
                return Err(self.redirect_refused(host, "uploads do not follow redirects"));
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

fn request(
    ask: &Ask,
    url: &Url,
    authorization: Option<&Authorization>,
    body: Body,
) -> Result<http::Request<Body>> {
    let mut request = http::Request::builder().method(&ask.method).uri(url.as_str());
    if let Some(headers) = request.headers_mut() {
        headers.clone_from(&ask.headers);
        if let Some(authorization) = authorization {
            headers.insert(header::AUTHORIZATION, authorization.value.clone());
        }
    }
    request.body(body).map_err(|_| Error::bad_content("the request's address cannot be used"))
}
