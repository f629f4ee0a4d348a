//! The client: what one repository of one registry is asked and told.
//!
//! Every call blocks and may be made from any thread. Each retries what is worth retrying, logs in
//! when it is asked to, goes through mirrors for reading, and reports errors that name registry,
//! repository and the source of the credentials. Must not know what manifests mean.

mod auth;
mod blob_reader;
mod blob_stream;
mod challenge;
mod documents;
mod failure;
mod hosts;
mod http;
mod pages;
mod place;
mod plain;
mod ranges;
mod redirects;
mod referrers;
mod resolver;
mod retry;
mod tokens;
mod upload;
mod upload_body;

use std::io::Read;
use std::sync::Arc;

use ::http::Method;
use reqwest::Url;

use crate::error::{Error, Kind, Result};
use crate::image::reference::DEFAULT_TAG;
use crate::image::{Descriptor, Digest, Reference};
use crate::registry::client::blob_reader::BlobReader;
use crate::registry::client::blob_stream::{BlobStream, Source};
use crate::registry::client::challenge::Scopes;
use crate::registry::client::hosts::{Pace, Shared};
use crate::registry::client::place::{Ask, Place};
use crate::registry::client::upload::Upload;
use crate::registry::credentials::Credentials;
use crate::registry::gate::Gate;
use crate::registry::registries::{Endpoint, Registries, Route};

/// What a client is made of.
#[derive(Clone, Default)]
pub(crate) struct ClientOptions {
    /// Mirrors, insecure registries, certificates.
    pub(crate) registries: Registries,
    /// Who we are, by registry.
    pub(crate) credentials: Credentials,
    /// `--tls-verify`: `None` = as the configuration says.
    pub(crate) tls_verify: Option<bool>,
    /// Proxy variables (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY` and their small forms), as set.
    pub(crate) proxies: Vec<(String, String)>,
    /// How often a request is repeated that failed for a reason which may pass.
    pub(crate) retries: Option<u32>,
    /// Who decides which images may be used; `None` = all may.
    pub(crate) gate: Option<Arc<dyn Gate>>,
}

/// Without the proxies' addresses, which may hold passwords.
impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientOptions")
            .field("registries", &self.registries)
            .field("credentials", &self.credentials)
            .field("tls_verify", &self.tls_verify)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

/// Connections to any number of registries. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    shared: Arc<Shared>,
}

/// One repository. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Repository {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    /// `registry/repository` as people say it.
    name: String,
    /// Mirrors in order, the origin last.
    read: Vec<Place>,
    write: Place,
}

/// What is asked for in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Tag(String),
    Digest(Digest),
}

impl Target {
    /// What a name asks its repository for: its digest, which is more exact, before its tag;
    /// `latest` where it has neither.
    pub(crate) fn of(reference: &Reference) -> Self {
        match (reference.digest(), reference.tag()) {
            (Some(digest), _) => Self::Digest(digest.clone()),
            (None, tag) => Self::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        }
    }
}

/// A manifest or index exactly as the registry keeps it.
#[derive(Clone, Debug)]
pub(crate) struct RemoteDocument {
    pub(crate) bytes: Vec<u8>,
    /// Media type (of the document itself, else of the Content-Type header), digest computed over
    /// `bytes`, size.
    pub(crate) descriptor: Descriptor,
}

/// How a blob came to be in a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It was there.
    Existed,
    /// The registry took it from another of its repositories.
    Mounted,
    Uploaded,
}

/// Where the bytes of a push come from: opened at an offset, again after a cut.
pub(crate) type BlobOpener<'a> = dyn Fn(u64) -> Result<Box<dyn Read + Send + 'static>> + Sync + 'a;

impl Client {
    /// Makes a client. Connects to nothing.
    pub(crate) fn new(options: ClientOptions) -> Result<Self> {
        Ok(Self::with_pace(options, Pace::default()))
    }

    fn with_pace(options: ClientOptions, pace: Pace) -> Self {
        Self {
            shared: Arc::new(Shared::new(options, pace)),
        }
    }

    /// The full names that a name, full or short, may mean: see [`Registries::candidates`].
    pub(crate) fn candidates(&self, reference: &Reference) -> Result<Vec<Reference>> {
        self.shared.options.registries.candidates(reference)
    }

    /// The repository of `reference` (which has a registry). A registry that the configuration
    /// blocks is an error.
    pub(crate) fn repository(&self, reference: &Reference) -> Result<Repository> {
        let route = self.shared.options.registries.route(reference)?;
        self.routed(reference.name(), &route)
    }

    fn routed(&self, name: String, route: &Route) -> Result<Repository> {
        let asked = &route.write.host;
        let write = self.place(&route.write, asked, false)?;
        let last = route.read.len().saturating_sub(1);
        let places = route.read.iter().enumerate();
        let read: Result<Vec<Place>> = places
            .map(|(at, endpoint)| self.place(endpoint, asked, at < last))
            .collect();
        let mut read = read?;
        if read.is_empty() {
            read.push(write.clone());
        }
        Ok(Repository {
            inner: Arc::new(Inner {
                shared: Arc::clone(&self.shared),
                name,
                read,
                write,
            }),
        })
    }

    /// A place for what was `asked` of that host.
    fn place(&self, endpoint: &Endpoint, asked: &str, mirror: bool) -> Result<Place> {
        Ok(Place {
            shared: Arc::clone(&self.shared),
            host: self.shared.host(endpoint, endpoint.host == asked)?,
            repository: endpoint.repository.clone(),
            by_digest: endpoint.by_digest,
            by_tag: endpoint.by_tag,
            mirror,
        })
    }

    /// A place for what is asked of `registry` as a whole.
    fn whole(&self, registry: &str) -> Result<Place> {
        let any = Reference::parse(&format!("{registry}/any"))
            .ok()
            .filter(|reference| reference.registry() == Some(registry))
            .ok_or_else(|| {
                Error::usage(format!("`{registry}` is not a registry's name"))
                    .hint("a registry is HOST or HOST:PORT")
            })?;
        let route = self.shared.options.registries.route(&any)?;
        let mut endpoint = route.write;
        endpoint.repository = String::new();
        let asked = endpoint.host.clone();
        self.place(&endpoint, &asked, false)
    }

    /// Fails unless the image may be used: `digest` is what `reference` means, `manifests` are
    /// those of it, or listed below it, that are wanted.
    pub(crate) fn admit(
        &self,
        reference: &Reference,
        digest: &Digest,
        manifests: &[Digest],
    ) -> Result<()> {
        match &self.shared.options.gate {
            Some(gate) => gate.admit(self, reference, digest, manifests),
            None => Ok(()),
        }
    }

    /// Asks `registry` whether it takes our credentials (`GET /v2/`).
    pub(crate) fn check_login(&self, registry: &str) -> Result<()> {
        check_login(&self.whole(registry)?)
    }

    /// All repositories of `registry`, through every page (`GET /v2/_catalog`).
    pub(crate) fn catalog(&self, registry: &str) -> Result<Vec<String>> {
        self.shared.run(self.whole(registry)?.catalog())
    }
}

fn check_login(place: &Place) -> Result<()> {
    let doing = format!("cannot log in to {}", place.name());
    place.shared.run(async {
        place
            .ask(&Ask::new(
                doing,
                Method::GET,
                String::new(),
                Scopes::default(),
            ))
            .await
    })?;
    Ok(())
}

impl Repository {
    /// `registry/repository`, for messages.
    pub(crate) fn name(&self) -> String {
        self.inner.name.clone()
    }

    /// The places to read from: those that could not be reached lately go last.
    fn places(&self, serves: impl Fn(&Place) -> bool) -> Vec<Place> {
        let mut places: Vec<Place> = self
            .inner
            .read
            .iter()
            .filter(|place| serves(place))
            .cloned()
            .collect();
        if places.is_empty() {
            places.push(self.inner.write.clone());
        }
        places.sort_by_key(|place| place.host.is_down());
        if let Some((last, others)) = places.split_last_mut() {
            last.mirror = false;
            for other in others {
                other.mirror = true;
            }
        }
        places
    }

    /// Asks one place after another; the error is the origin's, which knows best.
    fn read<T>(
        &self,
        serves: impl Fn(&Place) -> bool,
        ask: &impl AsyncFn(&Place) -> Result<T>,
    ) -> Result<T> {
        self.inner.shared.run(async {
            let mut told: Option<Error> = None;
            for place in self.places(serves) {
                let answer = ask(&place).await;
                place.host.note(answer.as_ref().err());
                match answer {
                    Ok(answer) => return Ok(answer),
                    Err(error) => {
                        tracing::debug!("{error}");
                        let origin = Arc::ptr_eq(&place.host, &self.inner.write.host);
                        if origin || told.is_none() {
                            told = Some(error);
                        }
                    }
                }
            }
            Err(told.unwrap_or_else(|| Error::failed("there is no place to read from")))
        })
    }

    fn read_target<T>(
        &self,
        target: &Target,
        ask: &impl AsyncFn(&Place) -> Result<T>,
    ) -> Result<T> {
        let by_digest = matches!(target, Target::Digest(_));
        let serves = |place: &Place| {
            if by_digest {
                place.by_digest
            } else {
                place.by_tag
            }
        };
        self.read(serves, ask)
    }

    /// Reads a manifest or index, at most [`crate::image::manifest::MAX_DOCUMENT`] bytes; asked for
    /// by digest, its digest is checked. Docker schema 1 is refused by name.
    pub(crate) fn document(&self, target: &Target) -> Result<RemoteDocument> {
        self.read_target(target, &async |place| place.document(target).await)
    }

    /// The descriptor behind `target` without its content (HEAD); `None` when it is not there.
    pub(crate) fn head(&self, target: &Target) -> Result<Option<Descriptor>> {
        match self.read_target(target, &async |place| place.head(target).await) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The bytes of a blob from `offset` on. Goes on by itself after cuts and through mirrors, reads
    /// large blobs in parallel ranges, ends with an error unless exactly `descriptor.size` bytes
    /// came. Does not hash: the caller has to.
    pub(crate) fn blob(
        &self,
        descriptor: &Descriptor,
        offset: u64,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        let doing = format!(
            "cannot read blob {} of {}",
            descriptor.digest, self.inner.name
        );
        let left = descriptor.size.checked_sub(offset).ok_or_else(|| {
            Error::failed("there are not so many bytes in it").context(doing.clone())
        })?;
        let places = self.places(|_| true);
        // Foreign servers are told nothing and asked by https only (CVE-2020-15157).
        let foreign = descriptor.urls.iter().filter_map(|url| {
            let url = Url::parse(url).ok().filter(|url| url.scheme() == "https")?;
            Some(Source::Foreign(self.inner.write.clone(), url))
        });
        let sources = places.iter().cloned().map(Source::Registry).chain(foreign);
        let digest = descriptor.digest.clone();
        let stream = BlobStream::new(
            doing.clone(),
            sources.collect(),
            digest,
            descriptor.size,
            offset,
        );
        let mut stream = stream.ok_or_else(|| Error::failed(doing))?;
        self.inner.shared.run(stream.start())?;
        let reader = BlobReader::new(stream, left, Arc::clone(&self.inner.shared))?;
        Ok(Box::new(reader))
    }

    /// The size of a blob that is there (HEAD).
    pub(crate) fn blob_size(&self, digest: &Digest) -> Result<Option<u64>> {
        let found = self.read(|_| true, &async |place| {
            let scopes = Scopes::repository(&place.repository, "pull");
            let size = place.blob_size(digest, &scopes).await?;
            size.ok_or_else(|| Error::not_found(format!("{} has no blob {digest}", place.name())))
        });
        match found {
            Ok(size) => Ok(Some(size)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings a blob in: asks whether it is there, then tries to mount it from the repositories
    /// `mount_from` of the same registry, then uploads it, going on after cuts.
    pub(crate) fn push_blob(
        &self,
        descriptor: &Descriptor,
        mount_from: &[String],
        open: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Pushed> {
        Upload::run(&self.inner.write, descriptor, mount_from, open, sent)
    }

    /// Puts a manifest or index under a tag or its digest. Returns whether the registry indexed its
    /// subject (`OCI-Subject`).
    pub(crate) fn push_document(
        &self,
        target: &Target,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<bool> {
        let put = self.inner.write.put_document(target, media_type, bytes);
        self.inner.shared.run(put)
    }

    /// All tags, through every page, as the registry orders them.
    pub(crate) fn tags(&self) -> Result<Vec<String>> {
        self.read(|place| place.by_tag, &async |place| place.tags().await)
    }

    /// What refers to `subject`, by the referrers API or the tag that stands for it.
    pub(crate) fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Vec<Descriptor>> {
        // A mirror may not have all of them: the origin is asked.
        let found = self.inner.write.referrers(subject, artifact_type);
        self.inner.shared.run(found)
    }

    /// Puts a manifest that has a subject, and adds it to the tag that stands for the referrers API
    /// where the registry has none.
    pub(crate) fn push_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest> {
        let put = self.inner.write.put_referrer(subject, media_type, bytes);
        self.inner.shared.run(put)
    }

    /// Removes a tag, or a manifest by its digest.
    pub(crate) fn delete(&self, target: &Target) -> Result<()> {
        self.inner.shared.run(self.inner.write.delete(target))
    }
}

#[cfg(test)]
mod tests;
