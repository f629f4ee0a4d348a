//! Parsing of a request's path and query (distribution-spec 1.1, "Endpoints").

use std::borrow::Cow;

use crate::client::Target;
use crate::layout::names;
use crate::server::reply::Refusal;
use imgctl_base::image::Digest;

/// Endpoint that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Base,
    Catalog,
    Tags { repository: String },
    Manifest { repository: String, target: Target },
    Blob { repository: String, digest: Digest },
    Uploads { repository: String },
    Upload { repository: String, id: String },
    Referrers { repository: String, subject: Digest },
}

impl Route {
    /// Parses a path. Repository names can contain `blobs`, `manifests` and so on, so the last
    /// components decide.
    pub(super) fn parse(path: &str) -> Result<Self, Refusal> {
        let path = decode(path).ok_or_else(nowhere)?;
        let rest = match path.strip_prefix("/v2") {
            Some("" | "/") => return Ok(Self::Base),
            Some(rest) => rest.strip_prefix('/').ok_or_else(nowhere)?,
            None => return Err(nowhere()),
        };
        if matches!(rest, "_catalog" | "_catalog/") {
            return Ok(Self::Catalog);
        }
        let (head, last) = rest.rsplit_once('/').ok_or_else(nowhere)?;
        if let Some(name) = head.strip_suffix("/manifests") {
            let repository = repository(name)?;
            let target = target(last)?;
            return Ok(Self::Manifest { repository, target });
        }
        if let Some(name) = head.strip_suffix("/referrers") {
            let repository = repository(name)?;
            let subject = digest(last)?;
            return Ok(Self::Referrers { repository, subject });
        }
        if let Some(name) = head.strip_suffix("/blobs/uploads") {
            let repository = repository(name)?;
            return match last {
                "" => Ok(Self::Uploads { repository }),
                id => Ok(Self::Upload { repository, id: id.to_owned() }),
            };
        }
        if let Some(name) = head.strip_suffix("/blobs") {
            let repository = repository(name)?;
            return match last {
                "uploads" => Ok(Self::Uploads { repository }),
                last => Ok(Self::Blob { repository, digest: digest(last)? }),
            };
        }
        match (head.strip_suffix("/tags"), last) {
            (Some(name), "list") => Ok(Self::Tags { repository: repository(name)? }),
            _ => Err(nowhere()),
        }
    }

    /// Returns the repository that the path names, if it names one.
    pub(super) fn repository_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Base | Self::Catalog => None,
            Self::Tags { repository }
            | Self::Manifest { repository, .. }
            | Self::Blob { repository, .. }
            | Self::Uploads { repository }
            | Self::Upload { repository, .. }
            | Self::Referrers { repository, .. } => Some(repository),
        }
    }
}

pub(super) type Query = [(String, String)];

/// Returns the first value of a parameter.
pub(super) fn parameter<'a>(query: &'a Query, name: &str) -> Option<&'a str> {
    query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Parses and decodes the query parameters in order. Skips parameters that cannot be decoded.
pub(super) fn query(text: Option<&str>) -> Vec<(String, String)> {
    let text = text.unwrap_or_default();
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            Some((decode(name)?.into_owned(), decode(&value)?.into_owned()))
        })
        .collect()
}

/// Parses a digest that a client sent.
pub(super) fn digest(text: &str) -> Result<Digest, Refusal> {
    Digest::parse(text)
        .map_err(|_| Refusal::bad("DIGEST_INVALID", "the digest is malformed or not supported"))
}

fn repository(name: &str) -> Result<String, Refusal> {
    if names::is_repository(name) {
        Ok(name.to_owned())
    } else {
        Err(Refusal::bad("NAME_INVALID", "the repository name is malformed"))
    }
}

fn target(text: &str) -> Result<Target, Refusal> {
    if text.contains(':') {
        return digest(text).map(Target::Digest);
    }
    if names::is_tag(text) {
        Ok(Target::Tag(text.to_owned()))
    } else {
        Err(Refusal::bad("TAG_INVALID", "the tag is malformed"))
    }
}

fn nowhere() -> Refusal {
    Refusal::missing("NOT_FOUND", "the registry has no such address")
}

/// Decodes percent-encoding; returns `None` if the result is not UTF-8.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        rest = tail;
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Percent-encodes the characters that are not allowed in a query value.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    #[test]
    fn the_last_components_decide() {
        let digest = Digest::of(b"");
        let name = || "a/manifests/blobs".to_owned();
        for (path, expected) in [
            ("/v2".to_owned(), Route::Base),
            ("/v2/".to_owned(), Route::Base),
            ("/v2/_catalog".to_owned(), Route::Catalog),
            ("/v2/a/manifests/blobs/tags/list".to_owned(), Route::Tags { repository: name() }),
            (
                "/v2/a/manifests/blobs/manifests/v1".to_owned(),
                Route::Manifest { repository: name(), target: Target::Tag("v1".to_owned()) },
            ),
            (
                format!("/v2/a/manifests/{}", digest.to_string().replace(':', "%3A")),
                Route::Manifest {
                    repository: "a".to_owned(),
                    target: Target::Digest(digest.clone()),
                },
            ),
            (
                "/v2/a/manifests/blobs/blobs/uploads/".to_owned(),
                Route::Uploads { repository: name() },
            ),
            (
                "/v2/a/blobs/uploads/x".to_owned(),
                Route::Upload { repository: "a".to_owned(), id: "x".to_owned() },
            ),
            (
                format!("/v2/a/blobs/{digest}"),
                Route::Blob { repository: "a".to_owned(), digest: digest.clone() },
            ),
            (
                format!("/v2/a/referrers/{digest}"),
                Route::Referrers { repository: "a".to_owned(), subject: digest.clone() },
            ),
        ] {
            assert_eq!(Route::parse(&path).unwrap(), expected, "{path}");
        }
        for (path, status) in [
            ("/", 404),
            ("/v1/", 404),
            ("/v2x", 404),
            ("/v2/a", 404),
            ("/v2/a/tags/other", 404),
            ("/v2/../x/tags/list", 400),
            ("/v2/%2e%2e/x/tags/list", 400),
            ("/v2/A/tags/list", 400),
            ("/v2/a/manifests/.x", 400),
            ("/v2/a/manifests/sha256:00", 400),
            ("/v2/a/blobs/x", 400),
            ("/v2/a%zz/tags/list", 404),
        ] {
            assert_eq!(Route::parse(path).unwrap_err().status.as_u16(), status, "{path}");
        }
    }

    #[test]
    fn queries_are_decoded_and_encoded() {
        assert_eq!(
            query(Some("a=1%2B2&b&digest=sha256%3Aab&c=%zz&d=x+y")),
            [
                ("a".to_owned(), "1+2".to_owned()),
                ("b".to_owned(), String::new()),
                ("digest".to_owned(), "sha256:ab".to_owned()),
                ("d".to_owned(), "x y".to_owned()),
            ]
        );
        assert_eq!(encode("a b&c"), "a%20b%26c");
    }

    #[test]
    fn any_address_is_a_route_or_refused() {
        let valid = format!("/v2/a/b-c/blobs/{}", Digest::of(b"")).replace(':', "%3A");
        bolero::check!().for_each(|input: &[u8]| {
            for path in
                [input.to_vec(), damaged(valid.as_bytes(), input), [b"/v2/", input].concat()]
            {
                let path = String::from_utf8_lossy(&path);
                if let Ok(mut route) = Route::parse(&path) {
                    if let Some(repository) = route.repository_mut() {
                        assert!(names::is_repository(repository), "{repository}");
                        assert!(repository.split('/').all(|part| !matches!(part, "" | "." | "..")));
                    }
                    if let Route::Upload { id, .. } = &route {
                        assert!(!id.contains('/'), "{id}");
                    }
                }
                assert_eq!(decode(&encode(&path)).as_deref(), Some(&*path));
                let _ = query(Some(&path));
            }
        });
    }
}
