//! Pull endpoints: manifests and blobs, with range and conditional requests (distribution-spec 1.1,
//! "Pull"; RFC 9110, sections 13 and 14), and lists of tags, repositories and referrers ("Content
//! Discovery").

use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderName, HeaderValue, IF_NONE_MATCH, IF_RANGE, LINK, RANGE,
};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::client::Target;
use crate::server::Shared;
use crate::server::reply::{Content, FileContent, Refusal, Reply, document, empty, respond, set};
use crate::server::routes::{Query, encode, parameter};
use imgctl_base::image::{Digest, media_type};

/// Header that carries the digest of the content.
pub(super) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// Cache policy of blobs. A blob never changes; the manifest behind a tag can.
const FOR_EVER: &str = "max-age=31536000, immutable";

/// Handles GET and HEAD of a manifest.
pub(super) async fn manifest(
    shared: &Shared,
    method: &Method,
    headers: &HeaderMap,
    repository: String,
    target: Target,
) -> Result<Reply, Refusal> {
    let by_digest = matches!(target, Target::Digest(_));
    let served =
        shared.read(move |backend| backend.manifest(&repository, &target)).await?.ok_or_else(
            || Refusal::missing("MANIFEST_UNKNOWN", "the repository has no such manifest or tag"),
        )?;
    let mut reply = match (is_known(headers, &served.digest), method) {
        (true, _) => empty(StatusCode::NOT_MODIFIED),
        (false, &Method::HEAD) => headed(StatusCode::OK, served.bytes.len() as u64),
        (false, _) => respond(StatusCode::OK, Content::Bytes(served.bytes.clone())),
    };
    describe(&mut reply, &served.digest);
    set(&mut reply, CONTENT_TYPE, &served.media_type);
    if by_digest {
        set(&mut reply, CACHE_CONTROL, FOR_EVER);
    }
    Ok(reply)
}

/// Handles GET and HEAD of a blob.
pub(super) async fn blob(
    shared: &Shared,
    method: &Method,
    headers: &HeaderMap,
    repository: String,
    digest: Digest,
) -> Result<Reply, Refusal> {
    let unknown = || Refusal::missing("BLOB_UNKNOWN", "the repository has no such blob");
    if method == Method::HEAD || is_known(headers, &digest) {
        let asked = digest.clone();
        let size = shared
            .read(move |backend| backend.blob_size(&repository, &asked))
            .await?
            .ok_or_else(unknown)?;
        let mut reply = if is_known(headers, &digest) {
            empty(StatusCode::NOT_MODIFIED)
        } else {
            headed(StatusCode::OK, size)
        };
        describe_blob(&mut reply, &digest);
        return Ok(reply);
    }
    let asked = digest.clone();
    let blob =
        shared.read(move |backend| backend.blob(&repository, &asked)).await?.ok_or_else(unknown)?;
    let size = blob.size;
    let (status, at, length) = match wanted_range(headers, &digest, size) {
        Wanted::All => (StatusCode::OK, 0, size),
        Wanted::Part { from, to } => (StatusCode::PARTIAL_CONTENT, from, to - from),
        Wanted::Nothing => {
            return Err(Refusal::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "RANGE_INVALID",
                "the blob is shorter than the range asked for",
            )
            .with(CONTENT_RANGE, format!("bytes */{size}")));
        }
    };
    let content = FileContent::new(blob, at, length, &shared.buffers);
    let mut reply = respond(status, Content::File(content));
    describe_blob(&mut reply, &digest);
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {at}-{}/{size}", (at + length).saturating_sub(1));
        set(&mut reply, CONTENT_RANGE, &range);
    }
    Ok(reply)
}

/// Builds a response to HEAD with the content length that GET would send.
fn headed(status: StatusCode, length: u64) -> Reply {
    let mut reply = empty(status);
    reply.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    reply
}

fn describe(reply: &mut Reply, digest: &Digest) {
    set(reply, CONTENT_DIGEST, &digest.to_string());
    set(reply, ETAG, &format!("\"{digest}\""));
}

fn describe_blob(reply: &mut Reply, digest: &Digest) {
    describe(reply, digest);
    set(reply, CONTENT_TYPE, "application/octet-stream");
    set(reply, ACCEPT_RANGES, "bytes");
    set(reply, CACHE_CONTROL, FOR_EVER);
}

/// Reports whether the client already has this content (`If-None-Match`).
fn is_known(headers: &HeaderMap, digest: &Digest) -> bool {
    let digest = digest.to_string();
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/").trim_matches('"'))
        .any(|tag| tag == "*" || tag == digest)
}

#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    /// Bytes from `from` (inclusive) to `to` (exclusive).
    Part {
        from: u64,
        to: u64,
    },
    /// A range that starts past the end of the content.
    Nothing,
}

/// Parses the `Range` header. Multiple ranges and headers that are not a byte range select the
/// whole content.
fn wanted_range(headers: &HeaderMap, digest: &Digest, size: u64) -> Wanted {
    let Some(range) = headers.get(RANGE).and_then(|range| range.to_str().ok()) else {
        return Wanted::All;
    };
    if let Some(condition) = headers.get(IF_RANGE)
        && condition.as_bytes() != format!("\"{digest}\"").as_bytes()
    {
        return Wanted::All;
    }
    parse_range(range, size)
}

fn parse_range(range: &str, size: u64) -> Wanted {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return Wanted::All;
    };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    let (from, to) = match (number(first), number(last)) {
        (Some(from), None) if last.is_empty() => (from, size),
        (Some(from), Some(to)) if from <= to => (from, to.saturating_add(1).min(size)),
        (None, Some(count)) if first.is_empty() => (size.saturating_sub(count), size),
        _ => return Wanted::All,
    };
    if from < to { Wanted::Part { from, to } } else { Wanted::Nothing }
}

/// Default number of repositories per page of the catalog.
const PAGE: usize = 1000;
/// Maximum number of names on one page.
const MAX_PAGE: usize = 10_000;
/// Maximum size of a page of referrers, in bytes: an index must not exceed the limit of clients.
const REFERRERS_PAGE: usize = 3 << 20;
const FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");

fn page(query: &Query, usual: usize) -> Result<usize, Refusal> {
    let Some(text) = parameter(query, "n") else {
        return Ok(usual);
    };
    text.parse::<usize>()
        .map(|count| count.min(MAX_PAGE))
        .map_err(|_| Refusal::bad("PAGINATION_NUMBER_INVALID", "`n` is not a number"))
}

/// Builds a page of `count` names at `address`. One name more says that there is another page.
fn listed(
    address: &str,
    mut names: Vec<String>,
    count: usize,
    shown: impl FnOnce(&[String]) -> Value,
) -> Reply {
    let more = names.len() > count;
    names.truncate(count);
    let mut reply = document(StatusCode::OK, &shown(&names));
    if let (true, Some(last)) = (more, names.last()) {
        let link = format!("<{address}?n={count}&last={}>; rel=\"next\"", encode(last));
        set(&mut reply, LINK, &link);
    }
    reply
}

/// `GET /v2/<name>/tags/list`.
pub(super) async fn tags(
    shared: &Shared,
    repository: String,
    query: &Query,
) -> Result<Reply, Refusal> {
    let count = page(query, MAX_PAGE)?;
    let after = parameter(query, "last").map(str::to_owned);
    let name = repository.clone();
    let tags = shared
        .read(move |backend| backend.tags(&name, after.as_deref(), count + 1))
        .await?
        .ok_or_else(|| Refusal::missing("NAME_UNKNOWN", "the registry has no such repository"))?;
    let address = format!("/v2/{repository}/tags/list");
    Ok(listed(&address, tags, count, |tags| json!({"name": repository, "tags": tags})))
}

/// `GET /v2/_catalog`: not in the specification, but in use by tools.
pub(super) async fn catalog(shared: &Shared, query: &Query) -> Result<Reply, Refusal> {
    let count = page(query, PAGE)?;
    let after = parameter(query, "last").map(str::to_owned);
    let names =
        shared.read(move |backend| backend.repositories(after.as_deref(), count + 1)).await?;
    Ok(listed("/v2/_catalog", names, count, |names| json!({"repositories": names})))
}

/// `GET /v2/<name>/referrers/<digest>`: an index, empty if there are no referrers.
pub(super) async fn referrers(
    shared: &Shared,
    repository: String,
    subject: Digest,
    query: &Query,
) -> Result<Reply, Refusal> {
    let wanted = parameter(query, "artifactType");
    let after = parameter(query, "last").unwrap_or_default();
    let (name, asked) = (repository.clone(), subject.clone());
    let all = shared.read(move |backend| backend.referrers(&name, &asked)).await?;
    let digest = |entry: &Value| {
        let digest = entry.get("digest").and_then(Value::as_str);
        digest.unwrap_or_default().to_owned()
    };
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut more = false;
    for entry in all {
        let kind = entry.get("artifactType").and_then(Value::as_str);
        if wanted.is_some_and(|wanted| kind != Some(wanted)) || *digest(&entry) <= *after {
            continue;
        }
        bytes += entry.to_string().len();
        if bytes > REFERRERS_PAGE && !entries.is_empty() {
            more = true;
            break;
        }
        entries.push(entry);
    }
    let last = entries.last().map(digest).unwrap_or_default();
    let index = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": entries,
    });
    let mut reply = document(StatusCode::OK, &index);
    set(&mut reply, CONTENT_TYPE, media_type::OCI_INDEX);
    if wanted.is_some() {
        set(&mut reply, FILTERS_APPLIED, "artifactType");
    }
    if more {
        let filter = wanted.map(|wanted| format!("&artifactType={}", encode(wanted)));
        let link = format!(
            "</v2/{repository}/referrers/{subject}?last={}{}>; rel=\"next\"",
            encode(&last),
            filter.unwrap_or_default()
        );
        set(&mut reply, LINK, &link);
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_rfc_9110() {
        let part = |from, to| Wanted::Part { from, to };
        for (range, expected) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=2-4", part(2, 5)),
            ("bytes=2-", part(2, 10)),
            ("bytes=-3", part(7, 10)),
            ("bytes=-30", part(0, 10)),
            ("bytes=9-99999999999999999999999", part(9, 10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=10-12", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=4-2", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("bytes=a-b", Wanted::All),
            ("bytes=-", Wanted::All),
            ("items=0-1", Wanted::All),
        ] {
            assert_eq!(parse_range(range, 10), expected, "{range}");
        }
        assert_eq!(parse_range("bytes=0-", 0), Wanted::Nothing);
    }

    #[test]
    fn any_range_lies_within_the_content() {
        bolero::check!().with_type::<(String, u64)>().for_each(|(text, size)| {
            for range in [text.clone(), format!("bytes={text}"), format!("bytes={size}-{text}")] {
                if let Wanted::Part { from, to } = parse_range(&range, *size) {
                    assert!(from < to && to <= *size, "{range} of {size}");
                }
            }
        });
    }
}
