//! Paginated lists: tags, repositories, referrers.
//!
//! Follows `Link` (RFC 8288) with `rel=next`, only on the same host.

use http::{HeaderMap, Method, StatusCode, header};
use reqwest::Url;

use crate::client::challenge::Scopes;
use crate::client::failure::quoted;
use crate::client::hosts::Place;
use crate::client::place::{Address, Ask};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::Reference;

/// Maximum size of a page, in bytes.
const MAX_PAGE: u64 = 16 << 20;
/// Maximum size of a list over all its pages, in bytes.
const MAX_LIST: usize = 256 << 20;
/// Maximum number of pages in a list.
const MAX_PAGES: usize = 10_000;
/// Maximum number of names in a list.
const MAX_NAMES: usize = 1_000_000;
/// Number of names requested per page.
const PAGE: &str = "1000";

#[derive(serde::Deserialize)]
struct Names {
    #[serde(default)]
    tags: Option<Vec<String>>,
    #[serde(default)]
    repositories: Option<Vec<String>>,
}

impl Place {
    /// Returns all tags.
    pub(super) async fn tags(&self) -> Result<Vec<String>> {
        let doing = format!("cannot list the tags of {}", self.name());
        let scopes = Scopes::repository(&self.repository, "pull");
        let is_tag = |name: &str| Reference::parse(&format!("x:{name}")).is_ok();
        self.names(doing, "tags/list", scopes, |page| page.tags, is_tag).await
    }

    /// Returns all repositories.
    pub(super) async fn catalog(&self) -> Result<Vec<String>> {
        let doing = format!("cannot list the repositories of {}", self.host.registry());
        let scopes = Scopes::parse("registry:catalog:*");
        let is_name = |name: &str| {
            Reference::parse(&format!("x.invalid/{name}"))
                .is_ok_and(|found| found.tag().is_none() && found.digest().is_none())
        };
        self.names(doing, "_catalog", scopes, |page| page.repositories, is_name).await
    }

    async fn names(
        &self,
        doing: String,
        path: &str,
        scopes: Scopes,
        members: impl Fn(Names) -> Option<Vec<String>>,
        is_name: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut wrong = 0;
        let first = Address::Path(path.to_owned(), vec![("n", PAGE.to_owned())]);
        self.pages(&doing, first, &scopes, |body| {
            let page: Names = serde_json::from_slice(body)
                .map_err(|error| Error::bad_content("the list is malformed").caused_by(error))?;
            for name in members(page).unwrap_or_default() {
                if !is_name(&name) {
                    wrong += 1;
                } else if names.len() < MAX_NAMES {
                    names.push(name);
                } else {
                    return Err(Error::bad_content(format!("there are more than {MAX_NAMES}")));
                }
            }
            Ok(())
        })
        .await?;
        if wrong > 0 {
            let name = self.name();
            tracing::warn!("{name} lists {wrong} invalid names; skipping them");
        }
        Ok(names)
    }

    /// Passes each page, starting at `first`, to `take`. If a registry does not accept the
    /// requested page length (400), asks without it.
    pub(super) async fn pages(
        &self,
        doing: &str,
        first: Address,
        scopes: &Scopes,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<HeaderMap> {
        let mut next = Some(first);
        let mut headers = HeaderMap::new();
        let (mut pages, mut length) = (0, 0);
        while let Some(address) = next {
            pages += 1;
            if pages > MAX_PAGES {
                return Err(Error::bad_content(format!("there are more than {MAX_PAGES} pages"))
                    .context(doing));
            }
            let mut ask = Ask::new(doing.to_owned(), Method::GET, address, scopes.clone());
            let sized = match &ask.address {
                Address::Path(path, query) if query.iter().any(|(name, _)| *name == "n") => {
                    ask.understood = &[StatusCode::BAD_REQUEST];
                    Some(path.clone())
                }
                _ => None,
            };
            let (body, response) = self.ask_whole(&ask, MAX_PAGE).await?;
            if let Some(path) = sized
                && response.status == StatusCode::BAD_REQUEST
            {
                next = Some(Address::from(path));
                continue;
            }
            length += body.len();
            if length > MAX_LIST {
                return Err(Error::bad_content(format!("it is longer than {MAX_LIST} bytes"))
                    .context(doing));
            }
            take(&body).context(|| doing.to_owned())?;
            let following = following(&response.headers, &response.url);
            let following = following.context(|| doing.to_owned())?;
            if following.as_ref() == Some(&response.url) {
                return Err(Error::bad_content("a page links to itself").context(doing));
            }
            next = following.map(Address::from);
            headers = response.headers;
        }
        Ok(headers)
    }
}

/// Returns the URL of `rel=next`, if there is one.
fn following(headers: &HeaderMap, from: &Url) -> Result<Option<Url>> {
    for value in headers.get_all(header::LINK) {
        let text = value.to_str().unwrap_or_default();
        let Some((target, parameters)) =
            text.trim_start().strip_prefix('<').and_then(|text| text.split_once('>'))
        else {
            continue;
        };
        let is_next = parameters.split(';').any(|parameter| {
            parameter.split_once('=').is_some_and(|(name, value)| {
                name.trim().eq_ignore_ascii_case("rel")
                    && value.trim().trim_matches('"').eq_ignore_ascii_case("next")
            })
        });
        if !is_next {
            continue;
        }
        let refuse =
            |why: &str| Error::bad_content(format!("the next page, {}, {why}", quoted(target)));
        let mut url = from.join(target).map_err(|_| refuse("has no address"))?;
        if url.host() == from.host() && url.scheme() == "http" && from.scheme() == "https" {
            // The registry is behind a TLS proxy and does not know its public scheme.
            let _ =
                url.set_scheme("https").and_then(|()| url.set_port(from.port()).map_err(|_| ()));
        }
        if url.origin() != from.origin() || !url.username().is_empty() {
            return Err(refuse("is at another host"));
        }
        return Ok(Some(url));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(link: &str) -> Result<Option<String>> {
        let mut headers = HeaderMap::new();
        headers.insert(header::LINK, link.parse().unwrap());
        let from = Url::parse("https://r.example:5000/v2/a/tags/list?n=2").unwrap();
        following(&headers, &from).map(|url| url.map(String::from))
    }

    #[test]
    fn links_are_followed_on_the_same_host_only() {
        let expected = Some("https://r.example:5000/v2/a/tags/list?last=b&n=2".to_owned());
        for link in [
            "</v2/a/tags/list?last=b&n=2>; rel=\"next\"",
            "</v2/a/tags/list?last=b&n=2>;rel=next",
            "<https://r.example:5000/v2/a/tags/list?last=b&n=2>; title=x; REL=\"next\"",
            "<http://r.example/v2/a/tags/list?last=b&n=2>; rel=next",
        ] {
            assert_eq!(next(link).unwrap(), expected, "{link}");
        }
        for link in ["</v2/a>; rel=prev", "/v2/a; rel=next", "", "<>"] {
            assert_eq!(next(link).unwrap(), None, "{link}");
        }
        for link in [
            "<https://evil.example/v2/a>; rel=next",
            "<https://r.example/v2/a>; rel=next",
            "<//evil.example/v2/a>; rel=next",
            "<https://u:p@r.example:5000/v2/a>; rel=next",
        ] {
            assert!(next(link).is_err(), "{link}");
        }
    }
}
