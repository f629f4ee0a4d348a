//! Reads, looks up, pushes and deletes manifests and indexes.

use http::{HeaderValue, Method, StatusCode, header};

use crate::client::challenge::Scopes;
use crate::client::failure::{OTHER_BYTES, quoted};
use crate::client::hosts::Place;
use crate::client::http::Response;
use crate::client::place::Ask;
use crate::client::{RemoteDocument, Target};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Hasher, Reference, media_type};

/// Accepted media types. Schema 1 is included so that it can be refused by name: otherwise a
/// registry would report a missing manifest or convert it.
const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json, \
     application/vnd.docker.distribution.manifest.v1+prettyjws;q=0.1, \
     application/vnd.docker.distribution.manifest.v1+json;q=0.1";
const DIGEST_HEADER: &str = "docker-content-digest";
const SUBJECT_HEADER: &str = "oci-subject";

impl Target {
    /// Returns the target as written in a URL.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Tag(tag) => tag.clone(),
            Self::Digest(digest) => digest.to_string(),
        }
    }
}

impl Place {
    /// Returns a request for a manifest; `verb` is `read`, `push` or `delete`.
    fn about(&self, method: Method, verb: &str, target: &Target) -> Result<Ask> {
        if let Target::Tag(tag) = target
            && Reference::parse(&format!("x:{tag}")).is_err()
        {
            return Err(Error::usage(format!("`{}` is not a tag", quoted(tag))));
        }
        let actions = match verb {
            "read" => "pull",
            "delete" => "delete",
            _ => "pull,push",
        };
        let target = target.text();
        let doing = format!("cannot {verb} manifest {target} of {}", self.name());
        let scopes = Scopes::repository(&self.repository, actions);
        Ok(Ask::new(doing, method, format!("manifests/{target}"), scopes))
    }

    /// Reads a document and verifies everything that can be verified.
    pub(super) async fn document(&self, target: &Target) -> Result<RemoteDocument> {
        let mut ask = self.about(Method::GET, "read", target)?;
        ask.headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
        let (bytes, response) = self.ask_whole(&ask, MAX_DOCUMENT).await?;
        checked(bytes, &response, target).context(|| ask.doing)
    }

    pub(super) async fn head(&self, target: &Target) -> Result<Descriptor> {
        let mut ask = self.about(Method::HEAD, "read", target)?;
        ask.headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
        ask.understood = &[StatusCode::METHOD_NOT_ALLOWED];
        let response = self.ask(&ask).await?;
        let told = told_digest(&response).context(|| ask.doing.clone())?;
        let digest = match (target, told) {
            (Target::Digest(digest), None) => Some(digest.clone()),
            (Target::Digest(digest), Some(told)) if *digest != told => {
                return Err(other_digest(digest, &told).context(ask.doing));
            }
            (_, told) => told,
        };
        match (digest, response.length(), content_type(&response)) {
            (Some(digest), Some(size), Some(media)) if response.status.is_success() => {
                Ok(Descriptor::new(&media, digest, size))
            }
            // The spec does not require these headers. Without them, only the document itself
            // provides the values.
            _ => Ok(self.document(target).await?.descriptor),
        }
    }

    /// Pushes a document. Returns whether the registry reports that it indexed the subject.
    pub(super) async fn put_document(
        &self,
        target: &Target,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<bool> {
        let mut ask = self.about(Method::PUT, "push", target)?;
        let media = HeaderValue::from_str(media_type).map_err(|_| {
            Error::bad_content(format!("`{}` is not a media type", quoted(media_type)))
        })?;
        ask.headers.insert(header::CONTENT_TYPE, media);
        ask.body = bytes::Bytes::copy_from_slice(bytes);
        let response = self.ask(&ask).await?;
        if let Some(told) = told_digest(&response).context(|| ask.doing.clone())? {
            let mut hasher = Hasher::with(told.algorithm());
            hasher.update(bytes);
            let ours = hasher.finish();
            if told != ours {
                return Err(other_digest(&ours, &told).context(ask.doing));
            }
        }
        Ok(response.headers.contains_key(SUBJECT_HEADER))
    }

    pub(super) async fn delete(&self, target: &Target) -> Result<()> {
        let mut ask = self.about(Method::DELETE, "delete", target)?;
        ask.understood = &[StatusCode::METHOD_NOT_ALLOWED, StatusCode::BAD_REQUEST];
        let response = self.ask(&ask).await?;
        if response.status.is_success() {
            return Ok(());
        }
        let registry = self.host.registry();
        let what = match target {
            Target::Tag(_) => "does not let tags be deleted",
            Target::Digest(_) => "does not let manifests be deleted",
        };
        Err(Error::new(
            Kind::Denied,
            format!("{registry} {what} (it answered {})", response.status),
        )
        .hint("enable deletion in the configuration of the registry")
        .context(ask.doing))
    }
}

/// Returns `Docker-Content-Digest`. A value that is not a digest is an error.
fn told_digest(response: &Response) -> Result<Option<Digest>> {
    match response.headers.get(DIGEST_HEADER) {
        None => Ok(None),
        Some(value) => Digest::parse(value.to_str().unwrap_or_default())
            .map(Some)
            .context(|| "the registry's Docker-Content-Digest cannot be used".to_owned()),
    }
}

fn other_digest(expected: &Digest, found: &Digest) -> Error {
    Error::bad_content(format!("its digest is {found}, not {expected}")).hint(OTHER_BYTES)
}

/// Returns the media type, unless it is a generic one.
fn content_type(response: &Response) -> Option<String> {
    let text = response.text(header::CONTENT_TYPE.as_str())?;
    let media = text.split(';').next().unwrap_or_default().trim();
    let vague = matches!(
        media,
        "" | "application/json" | "application/octet-stream" | "text/plain" | "text/html"
    );
    (!vague).then(|| quoted(media))
}

fn checked(bytes: Vec<u8>, response: &Response, target: &Target) -> Result<RemoteDocument> {
    let declared = content_type(response);
    if let Some(media) = &declared
        && media.starts_with("application/vnd.docker.distribution.manifest.v1+")
    {
        return Err(Error::bad_content("it is Docker schema 1, which is no longer supported")
            .hint("push the image again with a newer tool"));
    }
    let told = told_digest(response)?;
    let algorithm = match target {
        Target::Digest(digest) => digest.algorithm(),
        Target::Tag(_) => {
            told.as_ref().map_or(imgctl_base::image::Algorithm::Sha256, Digest::algorithm)
        }
    };
    let mut hasher = Hasher::with(algorithm);
    hasher.update(&bytes);
    let digest = hasher.finish();
    if let Target::Digest(expected) = target
        && digest != *expected
    {
        return Err(other_digest(expected, &digest));
    }
    if let Some(told) = told
        && told.algorithm() == algorithm
        && told != digest
    {
        return Err(Error::bad_content(format!(
            "the registry reports {told}, but its digest is {digest}"
        ))
        .hint(OTHER_BYTES));
    }
    let document = Document::parse(&bytes, declared.as_deref())?;
    let (written, default) = match &document {
        Document::Index(index) => (index.media_type.clone(), media_type::OCI_INDEX),
        Document::Manifest(manifest) => (
            manifest.media_type.clone(),
            match manifest.config.media_type.as_str() {
                media_type::DOCKER_CONFIG => media_type::DOCKER_MANIFEST,
                _ => media_type::OCI_MANIFEST,
            },
        ),
    };
    let media = written.or(declared).unwrap_or_else(|| default.to_owned());
    let descriptor = Descriptor::new(&media, digest, bytes.len() as u64);
    Ok(RemoteDocument { bytes, descriptor })
}
