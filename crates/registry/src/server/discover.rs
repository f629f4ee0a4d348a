//! Listing: tags, repositories and referrers (distribution-spec 1.1, "Content Discovery").

use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderName, LINK};
use serde_json::{Value, json};

use crate::server::Shared;
use crate::server::reply::{Refusal, Reply, document, set};
use crate::server::routes::{Query, encode, parameter};
use imgctl_base::image::{Digest, media_type};

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

fn link_next(reply: &mut Reply, address: &str, count: usize, last: &str) {
    let link = format!("<{address}?n={count}&last={}>; rel=\"next\"", encode(last));
    set(reply, LINK, &link);
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
    let mut tags = shared
        .read(move |backend| backend.tags(&name, after.as_deref(), count + 1))
        .await?
        .ok_or_else(|| Refusal::missing("NAME_UNKNOWN", "the registry has no such repository"))?;
    let more = tags.len() > count;
    tags.truncate(count);
    let mut reply = document(StatusCode::OK, &json!({"name": repository, "tags": tags}));
    if let (true, Some(last)) = (more, tags.last()) {
        let address = format!("/v2/{repository}/tags/list");
        link_next(&mut reply, &address, count, last);
    }
    Ok(reply)
}

/// `GET /v2/_catalog`: not in the specification, but in use by tools.
pub(super) async fn catalog(shared: &Shared, query: &Query) -> Result<Reply, Refusal> {
    let count = page(query, PAGE)?;
    let after = parameter(query, "last").map(str::to_owned);
    let mut names =
        shared.read(move |backend| backend.repositories(after.as_deref(), count + 1)).await?;
    let more = names.len() > count;
    names.truncate(count);
    let mut reply = document(StatusCode::OK, &json!({"repositories": names}));
    if let (true, Some(last)) = (more, names.last()) {
        link_next(&mut reply, "/v2/_catalog", count, last);
    }
    Ok(reply)
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
