//! What the head of a request says about the page that may have sent it. Any page that a browser on this
//! machine shows can reach a local server: with a request to another site, or through a foreign name that
//! resolves to this machine ("DNS rebinding"). Browsers report the host that they asked and the page that did.
//!
//! Must not know what is served, or what follows from it.

use http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use http::request::Parts;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Returns the one host and port that a request asks; `None` if it names none, or several.
pub fn host(head: &Parts) -> Option<&str> {
    let mut values = head.headers.get_all(HOST).iter();
    let named = match values.next() {
        Some(value) => Some(value.to_str().ok()?),
        None => None,
    };
    // HTTP/2 has it in the address; HTTP/1.1 may have it there as well.
    let authority = head.uri.authority().map(http::uri::Authority::as_str);
    let host = named.or(authority)?;
    let is_one = values.next().is_none() && authority.is_none_or(|name| name == host);
    (is_one && !host.is_empty()).then_some(host)
}

/// Returns whether a request comes from a page of this host under one of these schemes, from the person at
/// the browser, or from a program that is not a browser.
pub fn is_own(headers: &HeaderMap, schemes: &[&str], host: &str) -> bool {
    let is_origin = |value: &[u8]| {
        schemes.iter().any(|scheme| value == format!("{scheme}://{host}").as_bytes())
    };
    headers.get_all(ORIGIN).iter().all(|value| is_origin(value.as_bytes()))
        && headers
            .get_all(SITE)
            .iter()
            .all(|value| [&b"same-origin"[..], b"none"].contains(&value.as_bytes()))
}
