//! The client: requests to one repository of one registry.
//!
//! Every call blocks and may be made from any thread. Each retries temporary failures, logs in if
//! required, reads through mirrors, and reports errors that name the registry, the repository and
//! the source of the credentials. Does not know about the meaning of manifests.

pub mod access;
mod auth;
mod blob_stream;
mod challenge;
mod documents;
mod failure;
mod hosts;
mod http;
mod pages;
mod place;
mod plain;
mod range_reader;
mod ranges;
pub(crate) mod resolver;
pub mod retry;
pub mod sending;
pub mod service;
#[cfg(test)]
mod tests;
mod upload;

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use ::http::Method;
use reqwest::Url;

use crate::client::blob_stream::{BlobReader, BlobStream};
use crate::client::challenge::Scopes;
use crate::client::hosts::{Place, Shared};
use crate::client::http::Pace;
use crate::client::place::Ask;
pub use crate::client::plain::BlobFile;
use crate::client::range_reader::{Blob, RangeReader};
use crate::client::ranges::Source;
use crate::client::sending::BlobOpener;
use crate::client::upload::Upload;
use crate::credentials::Credentials;
use crate::registries::{Endpoint, Registries, Route};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::reference::DEFAULT_TAG;
use imgctl_base::image::{Descriptor, Digest, Origin, Reference, Verdict, media_type};

/// Options of a client.
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// Mirrors, insecure registries, certificates.
    pub registries: Registries,
    /// Credentials by registry.
    pub credentials: Credentials,
    /// `--tls-verify`: `None` = as configured.
    pub tls_verify: Option<bool>,
    /// Proxy variables (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY` and their lowercase forms), as set.
    pub proxies: Vec<(String, String)>,
    /// Maximum number of attempts for a request that fails for a temporary reason.
    pub attempts: Option<u32>,
    /// Decides which images may be used; `None` allows all.
    pub gate: Option<Arc<dyn Gate>>,
}

/// Omits the proxies' addresses, which may contain passwords.
impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientOptions")
            .field("registries", &self.registries)
            .field("credentials", &self.credentials)
            .field("tls_verify", &self.tls_verify)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

/// Decides about images before any part of them is used. Called through [`Client::admit`] and
/// [`Client::judge`].
pub trait Gate: std::fmt::Debug + Send + Sync {
    /// Fails (kind Denied) unless the image may be used.
    fn admit(&self, client: &Client, image: &Candidate<'_>) -> Result<()>;

    /// Copies the signatures of `digest` in the registry of `reference` to `shelf`, if signatures decide
    /// about images with this name. Returns whether there are any.
    fn keep(
        &self,
        client: &Client,
        reference: &Reference,
        digest: &Digest,
        shelf: &dyn Shelf,
    ) -> Result<bool>;
}

/// An image that a [`Gate`] decides about.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    /// Its name; `None` for an image on this machine that has none.
    pub reference: Option<&'a Reference>,
    /// Where it came from: a name proves nothing about an image that no registry gave under it.
    pub origin: &'a Origin,
    /// The digest of the name: in its registry, or on this machine.
    pub digest: &'a Digest,
    /// The selected manifests, which are that one or listed below it.
    pub manifests: &'a [Digest],
    /// What is kept about it on this machine; `None` for an image that comes from its registry.
    pub kept: Option<&'a dyn Shelf>,
}

/// A place where documents about images (signatures, attestations) are: artifacts that refer to
/// them.
pub trait Shelf {
    /// Returns its name, for messages.
    fn name(&self) -> String;

    /// Returns a manifest or an index, with its digest verified.
    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>>;

    /// Lists the artifacts of a type that refer to `subject`.
    fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>>;

    /// Opens a blob of an artifact. The caller verifies its size and digest.
    fn open(&self, blob: &Descriptor) -> Result<Box<dyn Read + Send + 'static>>;

    /// Adds the artifact `manifest`, which refers to `subject`, after its blobs. Returns its digest.
    fn attach(
        &self,
        subject: &Descriptor,
        blobs: &[(Descriptor, &[u8])],
        manifest: &[u8],
    ) -> Result<Digest>;
}

impl Shelf for Repository {
    fn name(&self) -> String {
        Self::name(self)
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        Ok(self.document(&Target::Digest(digest.clone()))?.bytes)
    }

    fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>> {
        Self::referrers(self, subject, Some(artifact_type))
    }

    fn open(&self, blob: &Descriptor) -> Result<Box<dyn Read + Send + 'static>> {
        self.blob(blob, 0)
    }

    fn attach(
        &self,
        subject: &Descriptor,
        blobs: &[(Descriptor, &[u8])],
        manifest: &[u8],
    ) -> Result<Digest> {
        for (blob, bytes) in blobs {
            let open = |offset: u64| -> Result<Box<dyn Read + Send + 'static>> {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let rest = bytes.get(start..).unwrap_or_default().to_vec();
                Ok(Box::new(std::io::Cursor::new(rest)))
            };
            self.push_blob(blob, &[], &open, &|_| {})?;
        }
        self.push_referrer(&subject.digest, media_type::OCI_MANIFEST, manifest)
    }
}

/// Connections to any number of registries. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

/// One repository. Cheap to clone.
#[derive(Clone)]
pub struct Repository {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    /// User-visible name, `registry/repository`.
    name: String,
    /// Mirrors in order, the origin last.
    read: Vec<Place>,
    write: Place,
}

/// Object requested from a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Tag(String),
    Digest(Digest),
}

impl Target {
    /// Returns the target of a reference: its digest, which is more exact, otherwise its tag,
    /// otherwise `latest`.
    pub fn of(reference: &Reference) -> Self {
        match (reference.digest(), reference.tag()) {
            (Some(digest), _) => Self::Digest(digest.clone()),
            (None, tag) => Self::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        }
    }
}

/// A manifest or index exactly as the registry stores it.
#[derive(Clone, Debug)]
pub struct RemoteDocument {
    pub bytes: Vec<u8>,
    /// Media type (from the document itself, otherwise from the Content-Type header), digest
    /// computed over `bytes`, and size.
    pub descriptor: Descriptor,
}

/// How a blob got into a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The repository already had it.
    Existed,
    /// The registry mounted it from another repository.
    Mounted,
    Uploaded,
}

impl Client {
    /// Creates a client without connecting.
    pub fn new(options: ClientOptions) -> Result<Self> {
        Ok(Self::with_pace(options, Pace::default()))
    }

    fn with_pace(options: ClientOptions, pace: Pace) -> Self {
        Self { shared: Arc::new(Shared::new(options, pace)) }
    }

    /// Returns the full names that a full or short name may refer to: see
    /// [`Registries::candidates`].
    pub fn candidates(&self, reference: &Reference) -> Result<Vec<Reference>> {
        self.shared.options.registries.candidates(reference)
    }

    /// Returns the repository of `reference` (which has a registry). Fails if the configuration
    /// blocks the registry.
    pub fn repository(&self, reference: &Reference) -> Result<Repository> {
        let route = self.shared.options.registries.route(reference)?;
        self.routed(reference.name(), &route)
    }

    fn routed(&self, name: String, route: &Route) -> Result<Repository> {
        let asked = &route.write.host;
        let write = self.place(&route.write, asked, false)?;
        let last = route.read.len().saturating_sub(1);
        let places = route.read.iter().enumerate();
        let read: Result<Vec<Place>> =
            places.map(|(at, endpoint)| self.place(endpoint, asked, at < last)).collect();
        let mut read = read?;
        if read.is_empty() {
            read.push(write.clone());
        }
        Ok(Repository {
            inner: Arc::new(Inner { shared: Arc::clone(&self.shared), name, read, write }),
        })
    }

    /// Returns a place for an endpoint of the `asked` host.
    fn place(&self, endpoint: &Endpoint, asked: &str, mirror: bool) -> Result<Place> {
        Ok(Place {
            shared: Arc::clone(&self.shared),
            host: self.shared.host(endpoint, endpoint.host == asked)?,
            repository: endpoint.repository.clone(),
            path: endpoint.path.clone(),
            headers: challenge::headers(&endpoint.headers)?,
            by_digest: endpoint.by_digest,
            by_tag: endpoint.by_tag,
            mirror,
        })
    }

    /// Returns a place for requests about `registry` as a whole.
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

    /// Fails unless the image may be used. `digest` is the digest of `reference`; `manifests` are
    /// the selected manifests, which are that one or listed below it.
    pub fn admit(
        &self,
        reference: &Reference,
        digest: &Digest,
        manifests: &[Digest],
    ) -> Result<Verdict> {
        let origin = &Origin::Registry(reference.clone());
        let reference = Some(reference);
        self.judge(&Candidate { reference, origin, digest, manifests, kept: None })
    }

    /// Copies the signatures of `digest` to `shelf` if they decide about images with this name. Returns
    /// whether there are any.
    pub fn keep_signatures(
        &self,
        reference: &Reference,
        digest: &Digest,
        shelf: &dyn Shelf,
    ) -> Result<bool> {
        match &self.shared.options.gate {
            Some(gate) => gate.keep(self, reference, digest, shelf),
            None => Ok(false),
        }
    }

    /// Decides about an image; see [`Self::admit`]. Without a gate, every image is admitted.
    pub fn judge(&self, image: &Candidate<'_>) -> Result<Verdict> {
        if let Some(gate) = &self.shared.options.gate {
            gate.admit(self, image)?;
        }
        Ok(Verdict::by_policy(image.origin.clone()))
    }

    /// Checks that `registry` accepts our credentials (`GET /v2/`).
    pub fn check_login(&self, registry: &str) -> Result<()> {
        check_login(&self.whole(registry)?)
    }

    /// Returns all repositories of `registry`, from all pages (`GET /v2/_catalog`).
    pub fn catalog(&self, registry: &str) -> Result<Vec<String>> {
        self.shared.run(self.whole(registry)?.catalog())
    }
}

fn check_login(place: &Place) -> Result<()> {
    let doing = format!("cannot log in to {}", place.name());
    place.shared.run(async {
        place.ask(&Ask::new(doing, Method::GET, String::new(), Scopes::default())).await
    })?;
    Ok(())
}

impl Repository {
    /// Returns `registry/repository`, for messages.
    pub fn name(&self) -> String {
        self.inner.name.clone()
    }

    /// Returns the places to read from. Places that were unreachable recently come last.
    fn places(&self, serves: impl Fn(&Place) -> bool) -> Vec<Place> {
        let mut places: Vec<Place> =
            self.inner.read.iter().filter(|place| serves(place)).cloned().collect();
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

    /// Tries one place after another. Returns the error of the origin, which is the most accurate.
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
            if by_digest { place.by_digest } else { place.by_tag }
        };
        self.read(serves, ask)
    }

    /// Reads a manifest or index of at most [`imgctl_base::image::manifest::MAX_DOCUMENT`] bytes.
    /// Verifies the digest if `target` is a digest. Refuses Docker schema 1 by name.
    pub fn document(&self, target: &Target) -> Result<RemoteDocument> {
        self.read_target(target, &async |place| place.document(target).await)
    }

    /// Returns the descriptor of `target` without its content (HEAD); `None` if it does not exist.
    pub fn head(&self, target: &Target) -> Result<Option<Descriptor>> {
        self.read_target(target, &async |place| place.head(target).await).found()
    }

    /// Reads the bytes of a blob from `offset` on. Resumes after broken connections, switches
    /// between mirrors, and reads large blobs in parallel ranges. Fails unless exactly
    /// `descriptor.size` bytes arrive. The caller must verify the digest.
    pub fn blob(
        &self,
        descriptor: &Descriptor,
        offset: u64,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        let blob = self.source_of(descriptor);
        let left = descriptor.size.checked_sub(offset).ok_or_else(|| {
            Error::failed("it does not have so many bytes").context(blob.doing.clone())
        })?;
        let Blob { doing, sources, digest, size } = blob;
        let stream = BlobStream::new(doing.clone(), sources, digest, size, offset);
        let mut stream = stream.ok_or_else(|| Error::failed(doing))?;
        self.inner.shared.run(stream.start())?;
        let reader = BlobReader::new(stream, left, Arc::clone(&self.inner.shared))?;
        Ok(Box::new(reader))
    }

    /// Reads the bytes of `ranges` of a blob one after another; several requests are on their way at
    /// once. Resumes after broken connections and switches between mirrors. Fails with
    /// [`Kind::BadContent`](imgctl_base::error::Kind::BadContent) if a place ignores ranges or sends
    /// other ones. The caller must verify what it makes of the bytes.
    pub fn blob_ranges(
        &self,
        descriptor: &Descriptor,
        ranges: Vec<Range<u64>>,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        let blob = self.source_of(descriptor);
        if ranges.iter().any(|range| range.end > descriptor.size) {
            return Err(Error::failed("it does not have so many bytes").context(blob.doing));
        }
        let reader = RangeReader::start(blob, ranges, Arc::clone(&self.inner.shared))?;
        Ok(Box::new(reader))
    }

    /// Returns a blob with the places to read it from.
    fn source_of(&self, descriptor: &Descriptor) -> Blob {
        let places = self.places(|_| true);
        // Foreign servers receive no credentials and are used only over https (CVE-2020-15157).
        let foreign = descriptor.urls.iter().filter_map(|url| {
            let url = Url::parse(url).ok().filter(|url| url.scheme() == "https")?;
            Some(Source::Foreign(self.inner.write.clone(), url))
        });
        Blob {
            doing: format!("cannot read blob {} of {}", descriptor.digest, self.inner.name),
            sources: places.into_iter().map(Source::Registry).chain(foreign).collect(),
            digest: descriptor.digest.clone(),
            size: descriptor.size,
        }
    }

    /// Returns the size of an existing blob (HEAD).
    pub fn blob_size(&self, digest: &Digest) -> Result<Option<u64>> {
        self.read(|_| true, &async |place| {
            let scopes = Scopes::repository(&place.repository, "pull");
            let size = place.blob_size(digest, &scopes).await?;
            size.ok_or_else(|| Error::not_found(format!("{} has no blob {digest}", place.name())))
        })
        .found()
    }

    /// Pushes a blob: checks whether it exists, then tries to mount it from the repositories
    /// `mount_from` of the same registry, then uploads it, resuming after broken connections.
    pub fn push_blob(
        &self,
        descriptor: &Descriptor,
        mount_from: &[String],
        open: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Pushed> {
        Upload::run(&self.inner.write, descriptor, mount_from, open, None, sent)
    }

    /// Like [`Repository::push_blob`], for a blob that is a file: over plain HTTP the kernel sends it.
    /// `open` opens the same bytes, for all other ways.
    pub fn push_file(
        &self,
        descriptor: &Descriptor,
        mount_from: &[String],
        open: &BlobOpener<'_>,
        file: BlobFile,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Pushed> {
        let file = Some(Arc::new(file));
        Upload::run(&self.inner.write, descriptor, mount_from, open, file, sent)
    }

    /// Pushes a manifest or index under a tag or its digest. Returns whether the registry indexed
    /// its subject (`OCI-Subject`).
    pub fn push_document(&self, target: &Target, media_type: &str, bytes: &[u8]) -> Result<bool> {
        let put = self.inner.write.put_document(target, media_type, bytes);
        self.inner.shared.run(put)
    }

    /// Returns all tags, from all pages, in the registry's order.
    pub fn tags(&self) -> Result<Vec<String>> {
        self.read(|place| place.by_tag, &async |place| place.tags().await)
    }

    /// Returns the referrers of `subject`, from the referrers API or its fallback tag.
    pub fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Vec<Descriptor>> {
        // A mirror may not have all referrers, so only the origin is asked.
        let found = self.inner.write.referrers(subject, artifact_type);
        self.inner.shared.run(found)
    }

    /// Pushes a manifest that has a subject. If the registry has no referrers API, adds the
    /// manifest to the fallback tag.
    pub fn push_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest> {
        let put = self.inner.write.put_referrer(subject, media_type, bytes);
        self.inner.shared.run(put)
    }

    /// Deletes a tag, or a manifest by its digest.
    pub fn delete(&self, target: &Target) -> Result<()> {
        self.inner.shared.run(self.inner.write.delete(target))
    }
}
