//! Asks other hosts who has a digest, and for the content itself. Everything here is bounded and gives up
//! quickly, because registry hosts have everything.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderName, RANGE};
use http::{Method, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::agent::peers::Settings;
use crate::agent::peers::wire::{HOLDERS, LONGEST, TOLD, Told};
use imgctl_base::address::join_port;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;
use imgctl_base::secret::Secret;
use imgctl_base::workers::lock;
use imgctl_registry::tls;

/// Timeouts of a connection and of the beginning of an answer. Hosts of a cluster are near each other.
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(3);
/// Timeout of an exchange of records.
const TELL: Duration = Duration::from_secs(30);
/// Time during which a host that failed is not asked.
const AWAY: Duration = Duration::from_secs(60);
/// Time during which content is not fetched from other hosts after one of them sent wrong bytes.
const REFUSED: Duration = Duration::from_secs(600);
/// Maximum number of transfers at the same time; for others, containerd uses a registry host.
const TRANSFERS: usize = 32;
/// Maximum number of hosts or digests that are remembered.
const REMEMBERED: usize = 4096;

/// A client of the other hosts. Cheap to clone.
#[derive(Clone)]
pub(super) struct Search(Arc<Inner>);

struct Inner {
    client: reqwest::Client,
    port: u16,
    token: Option<Secret>,
    away: Mutex<HashMap<String, Instant>>,
    refused: Mutex<HashMap<Digest, Instant>>,
    transfers: Arc<Semaphore>,
}

/// What a host sends: the rest of the content from an offset on.
pub(super) struct Opened {
    pub(super) from: String,
    pub(super) answer: reqwest::Response,
    /// Size of the whole content, in bytes.
    pub(super) size: u64,
}

impl Search {
    pub(super) fn new(settings: &Settings) -> Result<Self> {
        Self::over(settings, None)
    }

    /// Uses the address `from` of this host.
    pub(super) fn over(settings: &Settings, from: Option<IpAddr>) -> Result<Self> {
        let client = tls::builder()?
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .pool_idle_timeout(Duration::from_secs(15))
            .pool_max_idle_per_host(2)
            .local_address(from)
            .build()
            .map_err(|error| Error::failed("cannot make an HTTP client").caused_by(error))?;
        Ok(Self(Arc::new(Inner {
            client,
            port: settings.port,
            token: settings.token.clone().map(Secret::new),
            away: Mutex::default(),
            refused: Mutex::default(),
            transfers: Arc::new(Semaphore::new(TRANSFERS)),
        })))
    }

    fn request(&self, method: Method, host: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", join_port(host, self.0.port));
        let request = self.0.client.request(method, url);
        match &self.0.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        }
    }

    /// Returns hosts that have `digest` according to `keeper`.
    pub(super) async fn ask(&self, keeper: &str, digest: &Digest) -> Vec<String> {
        if remembers(&self.0.away, keeper) {
            return Vec::new();
        }
        let path = format!("{HOLDERS}{digest}");
        let asked = async {
            let answer = self.request(Method::GET, keeper, &path).send().await.ok()?;
            limited(answer, 64 << 10).await
        };
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(Some(answer)) => serde_json::from_slice(&answer).unwrap_or_default(),
            _ => {
                self.lost(keeper);
                Vec::new()
            }
        }
    }

    /// Tells `host` what this one has; returns its answer.
    pub(super) async fn tell(&self, host: &str, told: &Told) -> Option<Told> {
        let body = serde_json::to_vec(told).ok()?;
        let asked = async {
            let answer = self.request(Method::POST, host, TOLD).body(body).send().await.ok()?;
            serde_json::from_slice(&limited(answer, LONGEST).await?).ok()
        };
        let answer = tokio::time::timeout(TELL, asked).await.ok().flatten();
        if answer.is_some() {
            lock(&self.0.away).remove(host);
        }
        answer
    }

    /// Reserves a place for a transfer of `digest`; `None` if it should come from elsewhere.
    pub(super) fn admit(&self, digest: &Digest) -> Option<OwnedSemaphorePermit> {
        if remembers(&self.0.refused, digest) {
            return None;
        }
        Arc::clone(&self.0.transfers).try_acquire_owned().ok()
    }

    /// Opens the content at the first of `holders` that has it; removes those that were tried.
    pub(super) async fn open(
        &self,
        holders: &mut VecDeque<String>,
        method: &Method,
        path: &str,
        start: u64,
    ) -> Option<Opened> {
        while let Some(from) = holders.pop_front() {
            if remembers(&self.0.away, &from) {
                continue;
            }
            let mut request = self.request(method.clone(), &from, path);
            if start > 0 {
                request = request.header(RANGE, format!("bytes={start}-"));
            }
            match tokio::time::timeout(ANSWER, request.send()).await {
                Ok(Ok(answer)) => {
                    if let Some(size) = size(&answer, start) {
                        return Some(Opened { from, answer, size });
                    }
                    tracing::debug!("{from} answers {} to {path}", answer.status());
                }
                Ok(Err(error)) => {
                    tracing::debug!("{from} does not answer: {}", error.without_url());
                    self.lost(&from);
                }
                Err(_) => self.lost(&from),
            }
        }
        None
    }

    /// Does not ask `host` for a while.
    pub(super) fn lost(&self, host: &str) {
        remember(&self.0.away, host.to_owned(), AWAY);
    }

    /// Does not fetch `digest` for a while: `host` has sent other bytes.
    pub(super) fn refuse(&self, digest: &Digest, host: &str) {
        tracing::warn!("{host} sent other bytes than those of {digest}");
        remember(&self.0.refused, digest.clone(), REFUSED);
        remember(&self.0.away, host.to_owned(), REFUSED);
    }
}

fn remember<K: Eq + Hash>(all: &Mutex<HashMap<K, Instant>>, one: K, time: Duration) {
    let mut all = lock(all);
    if all.len() >= REMEMBERED {
        all.clear();
    }
    all.insert(one, Instant::now() + time);
}

fn remembers<K, Q>(all: &Mutex<HashMap<K, Instant>>, one: &Q) -> bool
where
    K: Eq + Hash + std::borrow::Borrow<Q>,
    Q: Eq + Hash + ?Sized,
{
    let mut all = lock(all);
    match all.get(one) {
        Some(until) if *until > Instant::now() => true,
        Some(_) => {
            all.remove(one);
            false
        }
        None => false,
    }
}

/// Reads a successful answer of at most `limit` bytes.
async fn limited(mut answer: reqwest::Response, limit: usize) -> Option<Vec<u8>> {
    if answer.status() != StatusCode::OK {
        return None;
    }
    let mut bytes = Vec::new();
    while let Some(part) = answer.chunk().await.ok()? {
        if bytes.len() + part.len() > limit {
            return None;
        }
        bytes.extend_from_slice(&part);
    }
    Some(bytes)
}

/// Returns the size of the whole content, if the answer has it from `start` on.
fn size(answer: &reqwest::Response, start: u64) -> Option<u64> {
    let header = |name: HeaderName| answer.headers().get(name)?.to_str().ok();
    let length: u64 = header(CONTENT_LENGTH)?.parse().ok()?;
    if start == 0 {
        return (answer.status() == StatusCode::OK).then_some(length);
    }
    let range = header(CONTENT_RANGE)?.strip_prefix(&format!("bytes {start}-"))?;
    let size: u64 = range.split_once('/')?.1.parse().ok()?;
    let is_rest =
        answer.status() == StatusCode::PARTIAL_CONTENT && start.checked_add(length) == Some(size);
    is_rest.then_some(size)
}
