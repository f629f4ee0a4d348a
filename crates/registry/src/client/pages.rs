//! Lists: tags, repositories, and the referrers of a manifest, by the API of distribution-spec 1.1
//! or the fallback tag of registries without it.

use http::{HeaderMap, Method, StatusCode, header};
use reqwest::Url;

use crate::client::Target;
use crate::client::challenge::Scopes;
use crate::client::failure::quoted;
use crate::client::hosts::Place;
use crate::client::place::{Address, Ask};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Index, Manifest, Reference, media_type};

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
    pub(super) async fn tags(&self) -> Result<Vec<String>> {
        let doing = format!("cannot list the tags of {}", self.name());
        let scopes = Scopes::repository(&self.repository, "pull");
        let is_tag = |name: &str| Reference::parse(&format!("x:{name}")).is_ok();
        self.names(doing, "tags/list", scopes, |page| page.tags, is_tag).await
    }

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
        self.pages(&doing, first, &scopes, &[], |body| {
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
    /// requested page length (400), asks without it. A registry whose answer is one of `absent` has
    /// no such list: the error is of kind NotFound.
    pub(super) async fn pages(
        &self,
        doing: &str,
        first: Address,
        scopes: &Scopes,
        absent: &'static [StatusCode],
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
            ask.understood = absent;
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
            if !response.status.is_success() {
                let message = format!("{} answered {}", self.host.name, response.status);
                return Err(Error::not_found(message).context(doing));
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

    /// Returns the referrers of `subject`, filtered by `artifact_type` if given.
    pub(super) async fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        if let Err(error) = self.referrers_by_api(subject, artifact_type, &mut found).await {
            match error.kind() {
                // The registry has the API: the tag is no better.
                _ if !found.is_empty() => return Err(error),
                // A registry without it may answer with an error or a page for people.
                Kind::NotFound | Kind::BadContent => {
                    tracing::debug!("{error}: using the fallback tag");
                    found = self.referrers_by_tag(subject).await?.unwrap_or_default();
                }
                // What is refused may be the API alone, so what the tag lists counts.
                Kind::Denied => match self.referrers_by_tag(subject).await {
                    Ok(Some(tagged)) => found = tagged,
                    _ => return Err(error),
                },
                _ => return Err(error),
            }
        }
        // Registries are not required to filter.
        found.retain(|entry| {
            artifact_type.is_none_or(|wanted| entry.artifact_type.as_deref() == Some(wanted))
        });
        Ok(found)
    }

    async fn referrers_by_api(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
        found: &mut Vec<Descriptor>,
    ) -> Result<()> {
        let doing = format!("cannot list what refers to {subject} in {}", self.name());
        let query = artifact_type.map(|wanted| ("artifactType", wanted.to_owned()));
        let first = Address::Path(format!("referrers/{subject}"), query.into_iter().collect());
        let scopes = Scopes::repository(&self.repository, "pull");
        self.pages(&doing, first, &scopes, &WITHOUT_API, |body| {
            found.extend(index(body)?.manifests);
            if found.len() > MAX_REFERRERS {
                return Err(Error::bad_content(format!("there are more than {MAX_REFERRERS}")));
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Returns what the fallback tag lists; `None` if there is no such tag.
    async fn referrers_by_tag(&self, subject: &Digest) -> Result<Option<Vec<Descriptor>>> {
        match self.document(&fallback_tag(subject)).await {
            Ok(document) => Ok(Some(index(&document.bytes)?.manifests)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pushes a manifest that refers to `subject`.
    pub(super) async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest> {
        let digest = Digest::of(bytes);
        let indexed = self.put_document(&Target::Digest(digest.clone()), media_type, bytes).await?;
        if !indexed {
            let entry = entry(media_type, &digest, bytes)?;
            self.add_to_tag(subject, entry).await.context(|| {
                format!("cannot add {digest} to what refers to {subject} in {}", self.name())
            })?;
        }
        Ok(digest)
    }

    /// Adds an entry to the tag's index and verifies that it is still there afterwards, because the
    /// tag cannot be locked.
    async fn add_to_tag(&self, subject: &Digest, entry: Descriptor) -> Result<()> {
        for round in 0.. {
            let mut manifests = self.referrers_by_tag(subject).await?.unwrap_or_default();
            if manifests.iter().any(|known| known.digest == entry.digest) {
                return Ok(());
            }
            if round == ROUNDS {
                break;
            }
            manifests.push(entry.clone());
            let bytes = serde_json::to_vec(&Index::new(manifests))
                .map_err(|error| Error::failed("cannot write an index").caused_by(error))?;
            self.put_document(&fallback_tag(subject), media_type::OCI_INDEX, &bytes).await?;
        }
        Err(Error::new(
            Kind::Busy,
            format!(
                "other clients changed the list of referrers of {subject} each time it was \
                     written"
            ),
        )
        .hint("try again"))
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
                // One attribute may hold several relations (RFC 8288, section 3.3).
                let mut relations = value.trim().trim_matches('"').split_ascii_whitespace();
                name.trim().eq_ignore_ascii_case("rel")
                    && relations.any(|relation| relation.eq_ignore_ascii_case("next"))
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

/// Answers, besides 404, of registries without the referrers API. Artifactory gives 406, others
/// take the path for a request that they do not understand.
const WITHOUT_API: [StatusCode; 7] = [
    StatusCode::BAD_REQUEST,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::NOT_ACCEPTABLE,
    StatusCode::GONE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
    StatusCode::NOT_IMPLEMENTED,
];
/// Maximum number of referrers of one manifest.
const MAX_REFERRERS: usize = 100_000;
/// Number of times the tag is written again after a concurrent change.
const ROUNDS: usize = 4;

/// Returns the fallback tag for the referrers API (distribution-spec, "Referrers Tag Schema").
fn fallback_tag(subject: &Digest) -> Target {
    let hex: String = subject.hex().chars().take(64).collect();
    Target::Tag(format!("{}-{hex}", subject.algorithm().as_str()))
}

fn index(bytes: &[u8]) -> Result<Index> {
    match Document::parse(bytes, None)? {
        Document::Index(index) => Ok(index),
        Document::Manifest(_) => Err(Error::bad_content("the list of referrers is not an index")),
    }
}

/// Returns the entry for a manifest in the list of its subject (distribution-spec, "Listing
/// Referrers").
fn entry(media_type: &str, digest: &Digest, bytes: &[u8]) -> Result<Descriptor> {
    let mut entry = Descriptor::new(media_type, digest.clone(), bytes.len() as u64);
    match Document::parse(bytes, Some(media_type))? {
        Document::Manifest(Manifest { artifact_type, config, annotations, .. }) => {
            entry.artifact_type = Some(artifact_type.unwrap_or(config.media_type));
            entry.annotations = annotations;
        }
        Document::Index(Index { artifact_type, annotations, .. }) => {
            entry.artifact_type = artifact_type;
            entry.annotations = annotations;
        }
    }
    Ok(entry)
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
            "</v2/a/tags/list?last=b&n=2>; rel=\"prev next\"",
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

    #[test]
    fn no_link_leads_to_another_host() {
        let from = Url::parse("https://r.example:5000/v2/a/tags/list?n=2").unwrap();
        bolero::check!().for_each(|input: &[u8]| {
            let link = [b"<", input, b">; rel=next"].concat();
            for value in [input, &link] {
                let Ok(value) = http::HeaderValue::from_bytes(value) else { continue };
                let mut headers = HeaderMap::new();
                headers.insert(header::LINK, value);
                if let Ok(Some(url)) = following(&headers, &from) {
                    assert_eq!(url.origin(), from.origin());
                }
            }
            let _ = index(input);
            let _ = entry(media_type::OCI_MANIFEST, &Digest::of(input), input);
        });
    }
}
