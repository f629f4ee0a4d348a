//! Push endpoints for manifests, and deletion (distribution-spec 1.1, "Pushing Manifests" and
//! "Content Management").

use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, LOCATION};
use hyper::body::Incoming;

use crate::client::Target;
use crate::layout::{Facts, MAX_MANIFEST, names};
use crate::server::Shared;
use crate::server::backend::{Backend, Deletion};
use crate::server::pull::CONTENT_DIGEST;
use crate::server::reply::{Refusal, Reply, empty, set};
use crate::server::routes::{Query, digest, parameter};
use crate::server::upload::{content_length, next, not_writable};
use imgctl_base::error::{Error, Kind};
use imgctl_base::image::manifest::check_members;
use imgctl_base::image::{Digest, Hasher};

/// Maximum number of tags that one PUT can set.
const MAX_TAGS: usize = 64;
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
const TAG: HeaderName = HeaderName::from_static("oci-tag");

/// Handles `PUT /v2/<name>/manifests/<tag or digest>`.
pub(super) async fn manifest(
    shared: &Shared,
    (repository, target): (String, Target),
    query: &Query,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Reply, Refusal> {
    let bytes = small_body(shared, headers, body).await?;
    let facts = Facts::parse(&bytes)
        .and_then(|facts| check_members(&bytes).map(|()| facts))
        .map_err(|error| Refusal::bad("MANIFEST_INVALID", error.to_string()))?;
    is_announced_so(headers, &facts)?;
    let by_query = tags_of(query)?;
    let found = digest_of(&bytes, &target, query)?;
    let mut tags = by_query.clone();
    if let Target::Tag(tag) = target {
        tags.push(tag);
    }
    let subject = facts.subject.as_ref().map(|part| part.digest.to_string());
    let (name, digest) = (repository.clone(), found.clone());
    let sparse = shared.sparse;
    shared
        .write(move |backend| {
            let intake = backend.intake().ok_or_else(not_writable)?;
            if !sparse {
                has_all_blobs(backend, &name, &facts)?;
            }
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            intake.put_manifest(&name, &tags, &digest, &bytes, &facts).map_err(not_taken)
        })
        .await?;
    let mut reply = empty(StatusCode::CREATED);
    let location = format!("/v2/{repository}/manifests/{found}");
    set(&mut reply, LOCATION, &location);
    set(&mut reply, CONTENT_DIGEST, &found.to_string());
    if let Some(subject) = subject {
        set(&mut reply, SUBJECT, &subject);
    }
    for tag in by_query {
        if let Ok(value) = http::HeaderValue::from_str(&tag) {
            reply.headers_mut().append(TAG, value);
        }
    }
    Ok(reply)
}

/// Converts a backend's error on a manifest: a backend can require more of a manifest than the API
/// does.
fn not_taken(error: Error) -> Refusal {
    let mut refusal = match error.kind() {
        Kind::BadContent => Refusal::bad("MANIFEST_INVALID", "the registry cannot use that image"),
        Kind::Denied => Refusal::new(
            StatusCode::FORBIDDEN,
            "DENIED",
            "the signature policy of the registry rejects that image",
        ),
        Kind::NotFound => Refusal::missing(
            "MANIFEST_BLOB_UNKNOWN",
            "the repository lacks something that the manifest names",
        ),
        _ => return error.into(),
    };
    refusal.cause = Some(error);
    refusal
}

/// Returns the additional tags to set (`?tag=`).
fn tags_of(query: &Query) -> Result<Vec<String>, Refusal> {
    let tags: Vec<String> =
        query.iter().filter(|(key, _)| key == "tag").map(|(_, tag)| tag.clone()).collect();
    if tags.len() <= MAX_TAGS && tags.iter().all(|tag| names::is_tag(tag)) {
        Ok(tags)
    } else {
        Err(Refusal::bad("TAG_INVALID", "the tags are malformed or too many"))
    }
}

/// Returns the digest of `bytes`. Uses the algorithm of the announced digest and fails if the two
/// differ.
fn digest_of(bytes: &[u8], target: &Target, query: &Query) -> Result<Digest, Refusal> {
    let announced = match target {
        Target::Digest(digest) => Some(digest.clone()),
        Target::Tag(_) => parameter(query, "digest").map(digest).transpose()?,
    };
    let mut hasher = match &announced {
        Some(announced) => Hasher::with(announced.algorithm()),
        None => Hasher::new(),
    };
    hasher.update(bytes);
    let found = hasher.finish();
    if announced.is_some_and(|announced| announced != found) {
        Err(Refusal::bad("DIGEST_INVALID", format!("the manifest has the digest {found}")))
    } else {
        Ok(found)
    }
}

async fn small_body(
    shared: &Shared,
    headers: &HeaderMap,
    mut body: Incoming,
) -> Result<Vec<u8>, Refusal> {
    let too_large = || {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "SIZE_INVALID",
            format!("a manifest has at most {MAX_MANIFEST} bytes"),
        )
    };
    if content_length(headers).is_some_and(|length| length > MAX_MANIFEST) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(data) = next(&mut body, shared.limits.silence).await? {
        if (bytes.len() + data.len()) as u64 > MAX_MANIFEST {
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Checks that the `Content-Type` header matches the document's media type, so that no client
/// interprets the manifest in two ways.
fn is_announced_so(headers: &HeaderMap, facts: &Facts) -> Result<(), Refusal> {
    let announced = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(|value| value.split(';').next().unwrap_or_default().trim());
    match announced {
        None | Some("" | "application/json" | "application/octet-stream") => Ok(()),
        Some(announced) if announced == facts.media_type => Ok(()),
        Some(announced) => Err(Refusal::bad(
            "MANIFEST_INVALID",
            format!("the manifest is {} but was announced as {announced}", facts.media_type),
        )),
    }
}

/// Checks that every blob that a manifest references is in the repository, with its size. The children of an index
/// can be missing: an index can be copied for some platforms only.
fn has_all_blobs(backend: &dyn Backend, repository: &str, facts: &Facts) -> Result<(), Refusal> {
    for part in facts.blobs.iter().filter(|part| !part.may_be_absent()) {
        let Some(size) = backend.blob_size(repository, &part.digest)? else {
            return Err(Refusal::missing(
                "MANIFEST_BLOB_UNKNOWN",
                format!("the repository does not have the blob {}", part.digest),
            ));
        };
        if size != part.size {
            return Err(Refusal::bad(
                "MANIFEST_INVALID",
                format!("the blob {} has {size} bytes instead of {}", part.digest, part.size),
            ));
        }
    }
    Ok(())
}

/// Handles DELETE of a tag, a manifest or a blob.
pub(super) async fn delete(
    shared: &Shared,
    repository: String,
    what: Deleted,
) -> Result<Reply, Refusal> {
    let unknown = match &what {
        Deleted::Manifest(_) => ("MANIFEST_UNKNOWN", "the repository has no such manifest"),
        Deleted::Blob(_) => ("BLOB_UNKNOWN", "the repository has no such blob"),
    };
    let outcome = shared
        .change(move |intake| match &what {
            Deleted::Manifest(Target::Tag(tag)) => intake.delete_tag(&repository, tag),
            Deleted::Manifest(Target::Digest(digest)) => {
                intake.delete_manifest(&repository, digest)
            }
            Deleted::Blob(digest) => intake.delete_blob(&repository, digest),
        })
        .await?;
    match outcome {
        Deletion::Gone => Ok(empty(StatusCode::ACCEPTED)),
        Deletion::Missing => Err(Refusal::missing(unknown.0, unknown.1)),
        Deletion::Needed(why) => Err(Refusal::unsupported(why)),
    }
}

/// Object to delete.
pub(super) enum Deleted {
    Manifest(Target),
    Blob(Digest),
}
