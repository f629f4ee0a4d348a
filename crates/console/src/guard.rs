//! Who may ask, judged by the head of a request alone.
//!
//! Other users of this machine can reach the port, and so can every page that a browser on it shows. Against
//! the first there is a token of 256 random bits, which nobody guesses; against the second, checks of what
//! browsers say: the host that they asked for (a foreign name that was made to lead here, "DNS rebinding",
//! is not ours), the origin of a request, and whether another site sent it. The token comes once in the
//! address that was printed; from then on a cookie takes its place, which no script can read. Cookies are
//! sent to every port of a host, so this one is bound to a path that only this console's pages have: a
//! server of somebody else on another port never gets it.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use std::net::SocketAddr;

use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;
use imgctl_registry::browser;

/// Name of the cookie.
const NAME: &str = "imgctl-console";

/// The secrets of one console, and the names under which it is asked.
pub(crate) struct Guard {
    /// In the address that is printed.
    token: Secret,
    /// In the cookie.
    session: Secret,
    /// Path before all addresses but the entrance.
    base: String,
    /// Values of the header `Host`.
    hosts: Vec<String>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: &'static str,
    pub(crate) hint: Option<&'static str>,
}

/// What an admitted request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It has the token: it gets the cookie, and goes on to the first page.
    Enter,
    /// It has the cookie, and asks for this path below the base.
    Page,
}

impl Guard {
    /// Makes new secrets for a console at `address`.
    pub(crate) fn new(address: SocketAddr) -> Result<Self> {
        Ok(Self {
            token: random(32)?,
            session: random(32)?,
            base: format!("/{}", random(9)?.expose()),
            hosts: vec![address.to_string(), format!("localhost:{}", address.port())],
        })
    }

    /// Returns the path before all addresses.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Returns the address that admits whoever has it.
    pub(crate) fn url(&self, address: SocketAddr) -> String {
        format!("http://{address}/?token={}", self.token.expose())
    }

    /// Returns the value of the header `Set-Cookie`.
    pub(crate) fn cookie(&self) -> String {
        let session = self.session.expose();
        format!("{NAME}={session}; Path={}; HttpOnly; SameSite=Strict", self.base)
    }

    /// Judges a request.
    pub(crate) fn admit(&self, head: &Parts) -> std::result::Result<Admission, Refusal> {
        let host = self.host(head).ok_or(Refusal {
            status: StatusCode::MISDIRECTED_REQUEST,
            message: "this console does not have the name that was asked for",
            hint: Some("open the address that imgctl ui has printed"),
        })?;
        if !browser::is_own(&head.headers, &["http"], host) {
            return Err(Refusal {
                status: StatusCode::FORBIDDEN,
                message: "another site has sent this request",
                hint: Some("paste the address that imgctl ui has printed into the address bar"),
            });
        }
        if head.method != Method::GET && head.method != Method::HEAD {
            return Err(Refusal {
                status: StatusCode::METHOD_NOT_ALLOWED,
                message: "the console shows, and changes nothing: it answers GET and HEAD",
                hint: None,
            });
        }
        let given = (head.uri.path() == "/").then(|| head.uri.query()).flatten();
        let given = given.and_then(|query| query.strip_prefix("token="));
        if given.is_some_and(|given| is_equal(given.as_bytes(), &self.token)) {
            return Ok(Admission::Enter);
        }
        if self.has_cookie(&head.headers) {
            return Ok(Admission::Page);
        }
        Err(Refusal {
            status: StatusCode::UNAUTHORIZED,
            message: "the console needs its token",
            hint: Some(
                "open the address that imgctl ui has printed; each start of it has a new token",
            ),
        })
    }

    /// Returns the name under which the console was asked, if it is one of its own.
    fn host<'a>(&self, head: &'a Parts) -> Option<&'a str> {
        let is_known = |name: &&str| self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name));
        browser::host(head).filter(is_known)
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let values = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = values.flat_map(|value| value.split(';'));
        pairs.any(|pair| {
            pair.trim().split_once('=').is_some_and(|(name, value)| {
                name == NAME && is_equal(value.as_bytes(), &self.session)
            })
        })
    }
}

/// Compares in a time that does not depend on where the texts differ.
fn is_equal(given: &[u8], secret: &Secret) -> bool {
    verify_slices_are_equal(given, secret.expose().as_bytes()).is_ok()
}

fn random(length: usize) -> Result<Secret> {
    let mut bytes = vec![0; length];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::failed("cannot read random numbers from the system"))?;
    Ok(Secret::new(URL_SAFE_NO_PAD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn guard() -> Guard {
        Guard::new("127.0.0.1:7000".parse().unwrap()).unwrap()
    }

    fn status(guard: &Guard, method: &str, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        match guard.admit(&head) {
            Ok(Admission::Page) => 200,
            Ok(Admission::Enter) => 303,
            Err(refusal) => refusal.status.as_u16(),
        }
    }

    #[test]
    fn only_a_page_of_the_console_or_its_operator_is_admitted() {
        let guard = guard();
        let cookie = guard.cookie();
        let cookie = cookie.split(';').next().unwrap();
        let host = ("host", "127.0.0.1:7000");
        let with = ("cookie", cookie);
        assert_eq!(status(&guard, "GET", "/x", &[host, with]), 200);
        assert_eq!(status(&guard, "HEAD", "/x", &[host, with]), 200);
        assert_eq!(status(&guard, "GET", "/x", &[("host", "LOCALHOST:7000"), with]), 200);
        let several = format!("a=b; {cookie}; c=d");
        assert_eq!(status(&guard, "GET", "/x", &[host, ("cookie", &several)]), 200);
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
            assert_eq!(status(&guard, method, "/x", &[host, with]), 405, "{method}");
        }
        // Names that lead here and are not ours, no name, and several names.
        for other in
            ["evil.example:7000", "127.0.0.1", "127.0.0.1:7001", "localhost", "127.0.0.1:7000.evil"]
        {
            assert_eq!(status(&guard, "GET", "/x", &[("host", other), with]), 421, "{other}");
        }
        assert_eq!(status(&guard, "GET", "/x", &[with]), 421);
        assert_eq!(status(&guard, "GET", "/x", &[host, ("host", "evil.example"), with]), 421);
        assert_eq!(status(&guard, "GET", "http://evil.example/x", &[host, with]), 421);
        assert_eq!(status(&guard, "GET", "http://127.0.0.1:7000/x", &[with]), 200);
        // Other origins.
        for origin in
            ["http://evil.example", "null", "https://127.0.0.1:7000", "http://localhost:7000"]
        {
            assert_eq!(
                status(&guard, "GET", "/x", &[host, with, ("origin", origin)]),
                403,
                "{origin}"
            );
        }
        let own = ("origin", "http://127.0.0.1:7000");
        assert_eq!(status(&guard, "GET", "/x", &[host, with, own]), 200);
        for (site, expected) in
            [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)]
        {
            assert_eq!(
                status(&guard, "GET", "/x", &[host, with, ("sec-fetch-site", site)]),
                expected
            );
        }
        // Without the cookie, or with another one.
        for other in ["", "imgctl-console=", "imgctl-console=x", &cookie[..cookie.len() - 1]] {
            assert_eq!(status(&guard, "GET", "/x", &[host, ("cookie", other)]), 401, "{other}");
        }
    }

    #[test]
    fn the_token_opens_the_entrance_and_nothing_else() {
        let guard = guard();
        let host = ("host", "127.0.0.1:7000");
        let url = guard.url("127.0.0.1:7000".parse().unwrap());
        let path = url.strip_prefix("http://127.0.0.1:7000").unwrap();
        assert_eq!(status(&guard, "GET", path, &[host]), 303);
        assert_eq!(status(&guard, "GET", &path.replace("/?", "/x?"), &[host]), 401);
        assert_eq!(status(&guard, "GET", &path[..path.len() - 1], &[host]), 401);
        assert_eq!(status(&guard, "GET", "/?token=", &[host]), 401);
        assert_eq!(status(&guard, "GET", "/", &[host]), 401);
        assert_eq!(status(&guard, "GET", path, &[host, ("sec-fetch-site", "cross-site")]), 403);
        // Neither secret is the other one.
        let token = path.strip_prefix("/?token=").unwrap();
        let as_cookie = format!("{NAME}={token}");
        assert_eq!(status(&guard, "GET", "/x", &[host, ("cookie", &as_cookie)]), 401);
        assert!(token.len() >= 43 && !guard.cookie().contains(token));
        let cookie = guard.cookie();
        assert!(cookie.contains("; HttpOnly; SameSite=Strict") && cookie.contains(guard.base()));
    }
}
