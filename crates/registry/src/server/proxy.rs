//! A pull-through cache: a tree on disk, filled from upstream registries on request.
//!
//! Each manifest and blob is fetched once, even for concurrent requests. Blobs are passed on while
//! they arrive. Tags are resolved again after a time. If the upstream is unreachable, cached
//! content is served. With several upstreams, the repository `x` of each is `NAME/x` here, whether
//! clients write it so or name the upstream in containerd's parameter `ns`. A limit on the disk removes
//! the blobs that were not asked for longest.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Client, Repository, Target};
use crate::layout::{Facts, Layout, Upload, UploadSession};
use crate::server::LayoutBackend;
use crate::server::backend::{Backend, BlobFile, Growing, Served};
use crate::server::upload::RESERVE;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Reference};

/// Maximum number of concurrent blob downloads; further requests are told to retry.
const DOWNLOADS: usize = 64;
/// Maximum number of tags whose age is remembered.
const TAGS: usize = 100_000;
/// Pause after a failure before the upstream is asked again for a cached tag.
const PAUSE: Duration = Duration::from_secs(10);
const BUFFER: usize = 256 << 10;
/// Maximum number of blobs whose last use is remembered.
const BLOBS: usize = 1_000_000;

/// A cached registry and its options.
#[derive(Clone)]
pub struct Upstream {
    /// Name of the registry, `docker.io`; `None` if it is the only one and clients do not name it.
    pub name: Option<String>,
    pub client: Client,
    /// `host[:port][/prefix]`: the local repository `x` is `PLACE/x` upstream.
    pub place: String,
    /// Time for which a tag is valid without asking the upstream.
    pub ttl: Duration,
}

/// A [`Layout`] that fetches missing content.
pub struct ProxyBackend {
    cache: LayoutBackend,
    upstreams: Vec<Upstream>,
    room: Option<Arc<Room>>,
    /// Time until which a tag is valid without asking the upstream.
    fresh: Mutex<HashMap<(String, String), Instant>>,
    /// Locks by hash, so that only one request at a time fetches a manifest.
    turns: Vec<Mutex<()>>,
    arriving: Arc<Mutex<HashMap<Digest, BlobFile>>>,
}

/// Returns the first components of the repositories of a registry.
fn directory(name: &str) -> String {
    name.replace(':', "_")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limit on the disk.
struct Room {
    layout: Layout,
    /// Maximum total size of blobs, in bytes.
    limit: u64,
    /// Last time each blob was asked for in this process, in seconds since 1970.
    asked: Mutex<HashMap<Digest, i64>>,
    /// Bytes that arrived since blobs were counted.
    arrived: AtomicU64,
}

impl Room {
    fn note(&self, digest: &Digest) {
        let mut asked = lock(&self.asked);
        if asked.len() >= BLOBS {
            asked.clear();
        }
        asked.insert(digest.clone(), jiff::Timestamp::now().as_second());
    }

    /// Counts the blobs again when a tenth of the limit has arrived.
    fn arrived(&self, size: u64) {
        if self.arrived.fetch_add(size, Ordering::Relaxed) + size < self.limit / 10 {
            return;
        }
        if let Err(error) = self.make() {
            tracing::warn!("cannot remove blobs from the cache: {error}");
        }
    }

    fn make(&self) -> Result<()> {
        self.arrived.store(0, Ordering::Relaxed);
        let asked = lock(&self.asked).clone();
        let evicted = self.layout.evict(self.limit, &asked)?;
        if evicted > 0 {
            tracing::info!("removed {evicted} bytes of blobs that were not asked for longest");
        }
        Ok(())
    }
}

/// Maps a missing object to `None`.
fn found<T>(outcome: Result<Option<T>>) -> Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        // To our clients, every other error is a failure of the upstream.
        Err(error) => {
            Err(Error::new(Kind::Network, "the upstream registry failed").caused_by(error))
        }
        outcome => outcome,
    }
}

impl ProxyBackend {
    /// Creates a cache of `upstream` in `layout`.
    pub fn new(layout: Layout, upstream: Upstream) -> Self {
        Self::of_several(layout, vec![upstream], None)
    }

    /// Creates a cache of `upstreams`, which have names, in `layout`. Blobs take up to `limit` bytes,
    /// for a short time also more.
    pub fn of_several(layout: Layout, upstreams: Vec<Upstream>, limit: Option<u64>) -> Self {
        Self {
            room: limit.map(|limit| {
                let layout = layout.clone();
                Arc::new(Room {
                    layout,
                    limit,
                    asked: Mutex::default(),
                    arrived: AtomicU64::new(0),
                })
            }),
            cache: LayoutBackend::new(layout),
            upstreams,
            fresh: Mutex::default(),
            turns: std::iter::repeat_with(Mutex::default).take(64).collect(),
            arriving: Arc::default(),
        }
    }

    /// Returns the upstream of a repository of the cache, and the repository's name there.
    fn upstream<'n>(&self, name: &'n str) -> Result<(&Upstream, &'n str)> {
        let of = |upstream: &Upstream| match &upstream.name {
            None => Some(name),
            Some(own) => name.strip_prefix(&*directory(own))?.strip_prefix('/'),
        };
        let found = self.upstreams.iter().find_map(|one| Some((one, of(one)?)));
        found.ok_or_else(|| Error::not_found(format!("no cached registry has {name}")))
    }

    fn at_upstream(&self, name: &str) -> Result<Repository> {
        let (upstream, name) = self.upstream(name)?;
        upstream.client.repository(&Reference::parse(&format!("{}/{name}", upstream.place))?)
    }

    fn ttl(&self, repository: &str) -> Duration {
        self.upstream(repository).map_or(PAUSE, |(upstream, _)| upstream.ttl)
    }

    fn turn(&self, repository: &str, what: &str) -> Option<MutexGuard<'_, ()>> {
        let mut hasher = DefaultHasher::new();
        (repository, what).hash(&mut hasher);
        let slot = usize::try_from(hasher.finish() % 64).unwrap_or(0);
        self.turns.get(slot).map(lock)
    }

    fn is_fresh(&self, repository: &str, tag: &str) -> bool {
        let key = (repository.to_owned(), tag.to_owned());
        lock(&self.fresh).get(&key).is_some_and(|until| Instant::now() < *until)
    }

    fn believe(&self, repository: &str, tag: &str, time: Duration) {
        let mut fresh = lock(&self.fresh);
        if fresh.len() >= TAGS {
            fresh.clear();
        }
        let key = (repository.to_owned(), tag.to_owned());
        fresh.insert(key, Instant::now() + time);
    }

    fn tagged(&self, repository: &str, tag: &str) -> Result<Option<Served>> {
        let target = Target::Tag(tag.to_owned());
        if self.is_fresh(repository, tag)
            && let Some(served) = self.cache.manifest(repository, &target)?
        {
            return Ok(Some(served));
        }
        let _turn = self.turn(repository, tag);
        if self.is_fresh(repository, tag)
            && let Some(served) = self.cache.manifest(repository, &target)?
        {
            return Ok(Some(served));
        }
        match found(self.ask_for_tag(repository, tag)) {
            Ok(served) => {
                // A tag that is missing upstream is not marked as valid, even if the cache has it.
                if served.is_some() {
                    self.believe(repository, tag, self.ttl(repository));
                }
                Ok(served)
            }
            Err(error) => match self.cache.manifest(repository, &target)? {
                Some(served) => {
                    tracing::warn!("{repository}:{tag} is served from the cache: {error}");
                    self.believe(repository, tag, PAUSE.min(self.ttl(repository)));
                    Ok(Some(served))
                }
                None => Err(error),
            },
        }
    }

    fn ask_for_tag(&self, repository: &str, tag: &str) -> Result<Option<Served>> {
        let target = Target::Tag(tag.to_owned());
        let there = self.at_upstream(repository)?;
        let Some(head) = there.head(&target)? else {
            return Ok(None);
        };
        let by_digest = Target::Digest(head.digest.clone());
        if let Some(served) = self.cache.manifest(repository, &by_digest)? {
            self.cache.layout().set_tag(repository, tag, &head.digest)?;
            return Ok(Some(served));
        }
        self.fetch(&there, repository, &target)
    }

    /// Fetches a manifest and stores it.
    fn fetch(
        &self,
        there: &Repository,
        repository: &str,
        target: &Target,
    ) -> Result<Option<Served>> {
        let document = there.document(target)?;
        let digest = document.descriptor.digest;
        let facts = Facts::parse(&document.bytes)?;
        let tags: Vec<&str> = match target {
            Target::Tag(tag) => vec![tag],
            Target::Digest(_) => Vec::new(),
        };
        self.cache.layout().put_manifest(repository, &tags, &digest, &document.bytes, &facts)?;
        self.cache.manifest(repository, &Target::Digest(digest))
    }

    /// Starts downloading a blob, or joins a download in progress.
    fn arrive(
        &self,
        there: Repository,
        repository: &str,
        digest: &Digest,
        size: u64,
    ) -> Result<BlobFile> {
        let mut arriving = lock(&self.arriving);
        if let Some(blob) = arriving.get(digest) {
            return Ok(blob.clone());
        }
        if arriving.len() >= DOWNLOADS {
            return Err(Error::new(Kind::Busy, "too many blobs are being fetched"));
        }
        let layout = self.cache.layout();
        if layout.free_space().is_some_and(|free| size > free.saturating_sub(RESERVE)) {
            return Err(Error::new(
                Kind::NoSpace,
                format!("the cache has no room for the {size} bytes of the blob {digest}"),
            ));
        }
        let upload = layout.start_upload(repository, Some(digest.algorithm()))?;
        let growing = Arc::new(Growing::default());
        let blob = BlobFile {
            file: Arc::new(upload.reader()?),
            size,
            growing: Some(Arc::clone(&growing)),
        };
        arriving.insert(digest.clone(), blob.clone());
        drop(arriving);
        let (all, digest) = (Arc::clone(&self.arriving), digest.clone());
        let room = self.room.clone();
        std::thread::spawn(move || {
            if let Err(error) = download(&there, upload, &digest, size, &growing) {
                tracing::warn!("cannot fetch blob {digest} of {}: {error}", there.name());
                growing.fail();
            } else {
                growing.finish();
            }
            lock(&all).remove(&digest);
            if let Some(room) = room {
                room.arrived(size);
            }
        });
        Ok(blob)
    }
}

fn download(
    there: &Repository,
    mut upload: Upload,
    digest: &Digest,
    size: u64,
    growing: &Growing,
) -> Result<()> {
    let mut copy = || {
        let descriptor = Descriptor::new("application/octet-stream", digest.clone(), size);
        let mut reader = there.blob(&descriptor, 0)?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io("the download ended", error)),
            };
            upload.append(buffer.get(..count).unwrap_or_default())?;
            growing.grow(upload.offset());
        }
        upload.commit(digest)
    };
    let outcome = copy();
    if outcome.is_err() {
        let _ = upload.cancel();
    }
    outcome
}

impl Backend for ProxyBackend {
    fn may_wait(&self) -> bool {
        true
    }

    fn repository(&self, name: &str, namespace: Option<&str>) -> Option<String> {
        if self.upstreams.iter().any(|upstream| upstream.name.is_none()) {
            return Some(name.to_owned());
        }
        match namespace {
            Some(namespace) => {
                let is_it = |upstream: &&Upstream| upstream.name.as_deref() == Some(namespace);
                self.upstreams.iter().find(is_it)?;
                Some(format!("{}/{name}", directory(namespace)))
            }
            None => self.upstream(name).ok().map(|_| name.to_owned()),
        }
    }

    fn manifest(&self, repository: &str, target: &Target) -> Result<Option<Served>> {
        let digest = match target {
            Target::Tag(tag) => return self.tagged(repository, tag),
            Target::Digest(digest) => digest.to_string(),
        };
        if let Some(served) = self.cache.manifest(repository, target)? {
            return Ok(Some(served));
        }
        let _turn = self.turn(repository, &digest);
        if let Some(served) = self.cache.manifest(repository, target)? {
            return Ok(Some(served));
        }
        let there = self.at_upstream(repository);
        found(there.and_then(|there| self.fetch(&there, repository, target)))
    }

    fn blob(&self, repository: &str, digest: &Digest) -> Result<Option<BlobFile>> {
        if let Some(room) = &self.room {
            room.note(digest);
        }
        if let Some(blob) = self.cache.blob(repository, digest)? {
            return Ok(Some(blob));
        }
        let there = found(self.at_upstream(repository).map(Some))?;
        let Some(there) = there else { return Ok(None) };
        let Some(size) = found(there.blob_size(digest))? else {
            return Ok(None);
        };
        // Another repository or another request has fetched the blob in the meantime.
        if self.cache.layout().blob_size(digest)? == Some(size) {
            self.cache.layout().link_layer(repository, digest)?;
            return self.cache.blob(repository, digest);
        }
        self.arrive(there, repository, digest, size).map(Some)
    }

    fn blob_size(&self, repository: &str, digest: &Digest) -> Result<Option<u64>> {
        if let Some(size) = self.cache.blob_size(repository, digest)? {
            return Ok(Some(size));
        }
        let there = self.at_upstream(repository);
        found(there.and_then(|there| there.blob_size(digest)))
    }

    fn tags(
        &self,
        repository: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Vec<String>>> {
        let there = self.at_upstream(repository);
        match found(there.and_then(|there| there.tags().map(Some))) {
            Ok(None) => Ok(None),
            Ok(Some(mut tags)) => {
                tags.sort_unstable();
                tags.retain(|tag| after.is_none_or(|after| tag.as_str() > after));
                tags.truncate(limit);
                Ok(Some(tags))
            }
            Err(error) => match self.cache.tags(repository, after, limit)? {
                Some(tags) => Ok(Some(tags)),
                None => Err(error),
            },
        }
    }

    /// Returns the repositories requested so far: many registries do not list theirs.
    fn repositories(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        self.cache.repositories(after, limit)
    }

    fn referrers(&self, repository: &str, subject: &Digest) -> Result<Vec<Value>> {
        let there = self.at_upstream(repository);
        let asked = there.and_then(|there| there.referrers(subject, None));
        match found(asked.map(Some)) {
            Ok(descriptors) => {
                let mut descriptors = descriptors.unwrap_or_default();
                descriptors.sort_by(|a, b| a.digest.cmp(&b.digest));
                let values = descriptors.iter().map(serde_json::to_value);
                Ok(values.filter_map(std::result::Result::ok).collect())
            }
            Err(_) => self.cache.referrers(repository, subject),
        }
    }

    fn tidy(&self) -> Result<()> {
        self.cache.tidy()?;
        self.room.as_ref().map_or(Ok(()), |room| room.make())
    }
}
