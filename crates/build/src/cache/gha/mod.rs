//! A cache in GitHub's cache service. Its entries never change: each blob is an entry under its digest,
//! and each state of the cache an entry with the next number, of which the newest counts. Two
//! writers cannot take the same number, so that the later one merges with the earlier one.
//!
//! A job reads the entries of its own branch and those of the branches below it; each branch
//! has a cache of its own.

mod service;

use std::fmt;
use std::io::{Cursor, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cache::gha::service::{CacheService, Claims};
use crate::cache::place::{CachePlace, Named, Opener, small_blob};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::fs::lock::Lock;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, media_type};
use imgctl_base::secret::Secret;
use imgctl_registry::Client;

/// How long the writer of a number may take before another one concludes that it has died.
const ABANDONED: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(250);
/// Maximum number of abandoned numbers in a row.
const MAX_ABANDONED: u64 = 20;

/// A cache in GitHub's cache service (`type=gha`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GhaCache {
    /// URL of the service (`ACTIONS_RESULTS_URL`).
    pub url: String,
    /// Token of the job (`ACTIONS_RUNTIME_TOKEN`).
    pub token: Secret,
    /// Name of the cache (`scope=`).
    pub scope: String,
    /// How long a request that fails for a temporary reason is repeated.
    pub timeout: Duration,
    /// Its branch or tag; empty until the token is read.
    branch: String,
}

impl fmt::Display for GhaCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gha:{}", self.scope)?;
        if self.branch.is_empty() { Ok(()) } else { write!(f, "@{}", self.branch) }
    }
}

impl GhaCache {
    /// Returns the cache of all that `token` may use.
    pub fn new(url: &str, token: Secret, scope: &str, timeout: Duration) -> Self {
        let (url, scope) = (url.to_owned(), scope.to_owned());
        Self { url, token, scope, timeout, branch: String::new() }
    }

    /// Returns the caches that the token may read, that of its own branch first.
    pub(crate) fn readable(&self) -> Vec<Self> {
        match Claims::of(&self.token) {
            Some(claims) if self.branch.is_empty() => {
                claims.readable.into_iter().map(|branch| self.of_branch(branch)).collect()
            }
            // A service that is compatible may have tokens of its own.
            _ => vec![self.clone()],
        }
    }

    /// Returns the cache that the token may write.
    pub(crate) fn writable(&self) -> Result<Self> {
        match Claims::of(&self.token) {
            Some(claims) if self.branch.is_empty() => {
                claims.writable.map(|branch| self.of_branch(branch)).ok_or_else(|| {
                    Error::denied("the token of GitHub's cache service may only read")
                        .hint("jobs for pull requests from forks cannot write caches")
                })
            }
            _ => Ok(self.clone()),
        }
    }

    fn of_branch(&self, branch: String) -> Self {
        Self { branch, ..self.clone() }
    }

    /// Returns the beginning of the keys of all states. Keys have no commas, and the scope must
    /// not look like a number.
    fn index_key(&self) -> String {
        let mut scope = String::new();
        for byte in self.scope.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                    scope.push(char::from(byte));
                }
                _ => scope.push_str(&format!("%{byte:02x}")),
            }
        }
        // A search that finds nothing in the own branch goes on in others, which are asked
        // separately.
        let branch = Digest::of(self.branch.as_bytes());
        format!("imgctl-index-1-{scope}-{}#", branch.short())
    }
}

fn blob_key(digest: &Digest) -> String {
    format!("imgctl-blob-1-{digest}")
}

/// A state of the cache, as it was read or written last.
#[derive(Clone)]
struct State {
    number: u64,
    descriptor: Descriptor,
    bytes: Vec<u8>,
}

/// The cache of one branch.
pub(crate) struct GhaPlace {
    service: Arc<CacheService>,
    index_key: String,
    state: Mutex<Option<State>>,
}

impl GhaPlace {
    /// Connects to nothing yet.
    pub(crate) fn new(client: &Client, cache: &GhaCache) -> Result<Self> {
        let service = CacheService::new(client, &cache.url, &cache.token, cache.timeout)?;
        Ok(Self {
            service: Arc::new(service),
            index_key: cache.index_key(),
            state: Mutex::new(None),
        })
    }

    /// Returns the number of the newest state.
    fn newest(&self) -> Result<Option<(u64, service::Entry)>> {
        let Some(entry) = self.service.find(&self.index_key)? else { return Ok(None) };
        let number = entry.key.strip_prefix(&self.index_key).and_then(|text| text.parse().ok());
        let number = number.ok_or_else(|| {
            Error::bad_content("GitHub's cache service has an entry that imgctl did not write")
        })?;
        Ok(Some((number, entry)))
    }

    fn look(&self) -> Result<Option<State>> {
        let newest = self.newest()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match (newest, state.take()) {
            (Some((number, _)), Some(known)) if known.number == number => Some(known),
            (Some((number, entry)), _) => {
                let bytes = self.service.read(&entry, MAX_DOCUMENT)?;
                Some(State { number, descriptor: describe(&bytes)?, bytes })
            }
            (None, _) => None,
        };
        Ok(state.clone())
    }

    fn put(&self, key: &str, size: u64, open: &Opener<'_>) -> Result<u64> {
        if self.service.get(key)?.is_some() {
            return Ok(0);
        }
        // An entry that exists now is being written by another build.
        let Some(reserved) = self.service.reserve(key)? else { return Ok(0) };
        self.service.write(key, &reserved, size, open)?;
        Ok(size)
    }

    /// Waits for the state `number` or a later one; returns whether there is one.
    fn wait_for(&self, number: u64) -> Result<bool> {
        let begun = Instant::now();
        loop {
            if self.newest()?.is_some_and(|(newest, _)| newest >= number) {
                return Ok(true);
            }
            if begun.elapsed() > ABANDONED {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Describes a manifest or index that has no descriptor: its entry is found by its key.
fn describe(bytes: &[u8]) -> Result<Descriptor> {
    #[derive(serde::Deserialize)]
    struct Typed {
        #[serde(rename = "mediaType", default)]
        media_type: String,
    }
    let typed: Typed = serde_json::from_slice(bytes)
        .map_err(|error| Error::bad_content("the build cache is malformed").caused_by(error))?;
    if !media_type::is_manifest(&typed.media_type) && !media_type::is_index(&typed.media_type) {
        return Err(Error::bad_content("the build cache is neither a manifest nor an index"));
    }
    Ok(Descriptor::new(&typed.media_type, Digest::of(bytes), bytes.len() as u64))
}

fn in_memory(bytes: &[u8]) -> impl Fn(u64) -> Result<Box<dyn Read + Send>> {
    move |offset| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Ok(Box::new(Cursor::new(bytes[start..].to_vec())))
    }
}

impl CachePlace for GhaPlace {
    fn digest(&self) -> Result<Option<Digest>> {
        Ok(self.look()?.map(|state| state.descriptor.digest))
    }

    fn root(&self) -> Result<Option<(Descriptor, Vec<u8>)>> {
        Ok(self.look()?.map(|state| (state.descriptor, state.bytes)))
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        small_blob(self, descriptor, MAX_DOCUMENT)
    }

    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        self.service.open(&blob_key(&blob.digest), offset, blob.size)
    }

    fn put_blob(&self, blob: &Descriptor, open: &Opener<'_>) -> Result<u64> {
        self.put(&blob_key(&blob.digest), blob.size, open)
    }

    fn has_blob(&self, blob: &Descriptor) -> Result<bool> {
        Ok(self.service.get(&blob_key(&blob.digest))?.is_some())
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.put(&blob_key(&descriptor.digest), descriptor.size, &in_memory(bytes)).map(drop)
    }

    /// The root is only in the entry with its number.
    fn prepare_root(&self, _descriptor: &Descriptor, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn put_root(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<Named> {
        let last = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.as_ref().map_or(0, |state| state.number)
        };
        for number in last + 1..=last + MAX_ABANDONED {
            let key = format!("{}{number}", self.index_key);
            if let Some(reserved) = self.service.reserve(&key)? {
                self.service.write(&key, &reserved, descriptor.size, &in_memory(bytes))?;
                let written =
                    State { number, descriptor: descriptor.clone(), bytes: bytes.to_vec() };
                *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
                return Ok(Named::Surely);
            }
            if self.wait_for(number)? {
                return Ok(Named::Beaten);
            }
            tracing::debug!("state {number} of the build cache was never finished");
        }
        Err(Error::new(Kind::Busy, "no state of the build cache was ever finished"))
    }

    fn lock(&self) -> Result<Option<Lock>> {
        Ok(None)
    }

    fn remember(&self, _blobs: &[&Digest]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: &str) -> String {
        GhaCache::new("https://x", Secret::new("t"), scope, Duration::ZERO).index_key()
    }

    #[test]
    fn no_key_is_the_beginning_of_that_of_another_scope() {
        let scopes = ["a", "a#1", "a,b", "a b", "a-b", "ä", "feature/x"];
        for (at, one) in scopes.iter().enumerate() {
            for (other_at, other) in scopes.iter().enumerate() {
                assert!(at == other_at || !key(one).starts_with(&key(other)), "{one} {other}");
            }
            assert!(!key(one).contains(','));
        }
    }
}
