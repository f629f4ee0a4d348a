//! Passes content from another host on to containerd. When a host breaks off or falls silent, the next one
//! continues at the same byte. The last bytes are passed on only if the digest is right, so that containerd
//! never gets a complete blob with wrong bytes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, RANGE,
};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::mpsc::{self, Sender};

use crate::agent::peers::reply::{Reply, text};
use crate::agent::peers::search::{Opened, Search};
use imgctl_base::image::{Digest, Hasher};

/// Time without a byte after which a host counts as lost.
const SILENCE: Duration = Duration::from_secs(10);

/// Maximum number of hosts that are tried for one request.
const TRIES: usize = 3;
/// Parts that wait for containerd to read them.
const PARTS: usize = 4;
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// Fetches what a request of containerd asks for from one of `holders`; `None` if none of them has it.
pub(super) async fn fetch(
    search: &Search,
    request: &Request<Incoming>,
    digest: &Digest,
    holders: Vec<String>,
    fetched: &Arc<AtomicU64>,
) -> Option<Response<Reply>> {
    if holders.is_empty() {
        return None;
    }
    let place = search.admit(digest)?;
    let start = match request.headers().get(RANGE) {
        Some(range) => offset(range)?,
        None => 0,
    };
    let mut holders: VecDeque<String> = holders.into_iter().take(TRIES).collect();
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let opened = search.open(&mut holders, &method, &path, start).await?;
    let mut response = head(&opened, digest, start)?;
    if method == Method::HEAD {
        return Some(response);
    }
    let (parts, received) = mpsc::channel(PARTS);
    *response.body_mut() = Reply::Stream(received);
    let transfer = Transfer {
        search: search.clone(),
        path,
        digest: digest.clone(),
        at: start,
        holders,
        fetched: Arc::clone(fetched),
    };
    tokio::spawn(async move {
        transfer.carry(opened, parts).await;
        drop(place);
    });
    Some(response)
}

/// Returns the offset of `bytes=OFFSET-`, which is what containerd sends.
fn offset(range: &HeaderValue) -> Option<u64> {
    range.to_str().ok()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}

/// Returns the beginning of the answer to containerd.
fn head(opened: &Opened, digest: &Digest, start: u64) -> Option<Response<Reply>> {
    let status = if start == 0 { StatusCode::OK } else { StatusCode::PARTIAL_CONTENT };
    let mut response = text(status, "");
    let headers = response.headers_mut();
    if let Some(kind) = opened.answer.headers().get(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, kind.clone());
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(opened.size.checked_sub(start)?));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(DIGEST, HeaderValue::from_str(&digest.to_string()).ok()?);
    if start > 0 {
        let range = format!("bytes {start}-{}/{}", opened.size.saturating_sub(1), opened.size);
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).ok()?);
    }
    Some(response)
}

/// A transfer on its way.
struct Transfer {
    search: Search,
    path: String,
    digest: Digest,
    /// Offset of the next byte.
    at: u64,
    /// Hosts that may continue.
    holders: VecDeque<String>,
    fetched: Arc<AtomicU64>,
}

impl Transfer {
    /// Passes everything from `opened` on. An error ends the connection to containerd, which continues at a
    /// registry host.
    async fn carry(mut self, mut opened: Opened, to: Sender<io::Result<Bytes>>) {
        let size = opened.size;
        // Only content that is streamed from its beginning can be verified.
        let mut hasher = (self.at == 0).then(|| Hasher::with(self.digest.algorithm()));
        while self.at < size {
            let part = tokio::time::timeout(SILENCE, opened.answer.chunk()).await;
            let Ok(Ok(Some(part))) = part else {
                self.search.lost(&opened.from);
                match self.search.open(&mut self.holders, &Method::GET, &self.path, self.at).await {
                    Some(next) if next.size == size => opened = next,
                    _ => {
                        let _ = to.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
                        return;
                    }
                }
                continue;
            };
            self.at += part.len() as u64;
            self.fetched.fetch_add(part.len() as u64, Ordering::Relaxed);
            if let Some(hasher) = &mut hasher {
                hasher.update(&part);
            }
            let is_wrong = self.at > size
                || (self.at == size
                    && hasher.take().is_some_and(|hasher| hasher.finish() != self.digest));
            if is_wrong {
                self.search.refuse(&self.digest, &opened.from);
                let _ = to.send(Err(io::ErrorKind::InvalidData.into())).await;
                return;
            }
            if to.send(Ok(part)).await.is_err() {
                return;
            }
        }
    }
}
