//! Who may use a registry that needs no login: programs, and its own pages. Requests of other sites' pages
//! are recognized by the host that they name and by the headers that browsers add.

use std::net::IpAddr;

use http::header::{HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{StatusCode, Version};

use crate::browser;
use crate::server::reply::Refusal;

/// The names by which a registry is known. Any IP address counts, because no other site can have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(Vec<String>);

impl Names {
    /// Returns these names, and those of the loopback interface.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().collect())
    }

    fn has(&self, host: &str) -> bool {
        let name = without_port(host);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        bare.parse::<IpAddr>().is_ok()
            || name == "localhost"
            // Browsers take these for the loopback interface, whoever answers for them (RFC 6761, 6.3).
            || name.ends_with(".localhost")
            || self.0.iter().any(|own| own.eq_ignore_ascii_case(&name))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit())
                && (name.ends_with(']') || !name.contains(':')) =>
        {
            name
        }
        _ => host,
    }
}

/// Judges a request by its head. `names` are those of a registry that needs no login.
pub(super) fn check(head: &Parts, names: Option<&Names>) -> Result<(), Refusal> {
    let codings = || head.headers.get_all(TRANSFER_ENCODING).iter();
    if !codings().all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err(Refusal::new(
            StatusCode::NOT_IMPLEMENTED,
            "UNSUPPORTED",
            "the registry knows no transfer encoding but chunked",
        ));
    }
    // HTTP/1.0 has no such header, and no browser sends it.
    if head.version == Version::HTTP_10 && !head.headers.contains_key(HOST) {
        return Ok(());
    }
    let Some(host) = browser::host(head) else {
        return Err(Refusal::bad("UNSUPPORTED", "the request does not name exactly one host"));
    };
    let Some(names) = names else { return Ok(()) };
    let denied = |status, why: String| Err(Refusal::new(status, "DENIED", why));
    if !names.has(host) {
        let why = format!(
            "this registry needs no login and is not known as {host}: whoever runs it adds \
             --allow-host {}",
            without_port(host)
        );
        return denied(StatusCode::MISDIRECTED_REQUEST, why);
    }
    if !browser::is_own(&head.headers, &["http", "https"], host) {
        let why = "this registry needs no login, and answers no page of another site".to_owned();
        return denied(StatusCode::FORBIDDEN, why);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(names: Option<&Names>, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = http::Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        check(&head, names).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn names_are_those_of_this_machine_and_those_given() {
        let names = Names::new(["Registry.corp".to_owned()]);
        let asked = |host: &str| status(Some(&names), "/v2/", &[("host", host)]);
        for own in [
            "127.0.0.1:5000",
            "127.0.0.1",
            "[::1]:5000",
            "[::1]",
            "10.1.2.3:80",
            "localhost",
            "LOCALHOST:5000",
            "localhost.:5000",
            "a.localhost",
            "registry.corp",
            "registry.CORP:5000",
        ] {
            assert_eq!(asked(own), 200, "{own}");
        }
        for other in [
            "evil.example",
            "evil.example:5000",
            "localhost.evil.example",
            "registry.corp.evil",
            "xlocalhost",
            "127.0.0.1.evil.example",
            "127.0.0.1:x",
            "x@127.0.0.1",
            "::1.evil",
        ] {
            assert_eq!(asked(other), 421, "{other}");
            assert_eq!(status(None, "/v2/", &[("host", other)]), 200, "{other}");
        }
    }

    #[test]
    fn a_request_names_one_host() {
        let host = ("host", "localhost:5000");
        for names in [None, Some(&Names::default())] {
            assert_eq!(status(names, "/v2/", &[]), 400);
            assert_eq!(status(names, "/v2/", &[("host", "")]), 400);
            assert_eq!(status(names, "/v2/", &[host, host]), 400);
            assert_eq!(status(names, "http://evil.example/v2/", &[host]), 400);
            assert_eq!(status(names, "http://localhost:5000/v2/", &[host]), 200);
            // HTTP/2 has no header of that name.
            assert_eq!(status(names, "http://localhost:5000/v2/", &[]), 200);
            let coding = |value| status(names, "/v2/", &[host, ("transfer-encoding", value)]);
            assert_eq!(coding("Chunked"), 200);
            assert_eq!(coding("gzip, chunked"), 501);
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let names = Names::default();
        let asked = |name, value| {
            status(Some(&names), "/v2/", &[("host", "localhost:5000"), (name, value)])
        };
        for origin in ["http://evil.example", "null", "http://localhost", "http://localhost:5001"] {
            assert_eq!(asked("origin", origin), 403, "{origin}");
        }
        assert_eq!(asked("origin", "http://localhost:5000"), 200);
        for (site, expected) in
            [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)]
        {
            assert_eq!(asked("sec-fetch-site", site), expected, "{site}");
        }
    }
}
