//! Fetches blobs that another host offers: in parallel, with verification, resuming after
//! interruptions and trying the host's addresses in turn. Blobs that the host cannot deliver are
//! returned, not an error: another host has them.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::agent::protocol::PeerSource;
use crate::agent::wire::REPOSITORY;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_store::store::Store;

/// Number of blobs to fetch concurrently.
const WORKERS: usize = 4;
/// Timeout for establishing a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum time without data from the other host.
const SILENCE: Duration = Duration::from_secs(30);
/// Number of attempts per blob, unless the offer has more addresses. After a failed attempt, the
/// next address comes first.
const TRIES: usize = 3;

/// Fetches `blobs` into the store and returns those that the peer could not deliver. An error
/// always concerns the local machine. Blocks; asynchronous work runs on `runtime`.
pub(super) fn fetch(
    store: &Store,
    runtime: &Handle,
    from: &PeerSource,
    blobs: &[Descriptor],
    fetched: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Digest>> {
    let peer = Peer { offer: from, runtime, preferred: AtomicUsize::new(0) };
    let queue = Mutex::new(blobs.iter().collect::<VecDeque<_>>());
    let missing = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> Result<()> {
        while let Some(blob) = next() {
            if !peer.bring(store, blob, fetched)? {
                let mut missing = missing.lock().unwrap_or_else(PoisonError::into_inner);
                missing.push(blob.digest.clone());
            }
        }
        Ok(())
    };
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let count = WORKERS.min(blobs.len());
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| {
                let stopped = |_| Err(Error::failed("a thread that fetched blobs has died"));
                thread.join().unwrap_or_else(stopped)
            })
            .collect()
    });
    outcomes.into_iter().collect::<Result<()>>()?;
    Ok(missing.into_inner().unwrap_or_else(PoisonError::into_inner))
}

struct Peer<'a> {
    offer: &'a PeerSource,
    runtime: &'a Handle,
    /// Index of the peer's address that answered last.
    preferred: AtomicUsize,
}

impl Peer<'_> {
    /// Fetches one blob; returns whether it is in the store now.
    fn bring(
        &self,
        store: &Store,
        blob: &Descriptor,
        fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<bool> {
        for _ in 0..TRIES.max(self.offer.addresses.len()) {
            let (failed, gone) = (AtomicBool::new(false), AtomicBool::new(false));
            let rest = |offset: u64| -> Result<Box<dyn Read + Send + '_>> {
                let opened = self.runtime.block_on(self.get(blob, offset));
                let body = opened.inspect_err(|error| {
                    failed.store(true, Ordering::Relaxed);
                    gone.store(error.kind() == Kind::NotFound, Ordering::Relaxed);
                })?;
                Ok(Box::new(PeerDownload {
                    runtime: self.runtime,
                    body,
                    current: Bytes::new(),
                    failed: &failed,
                    fetched,
                }))
            };
            let Err(error) = store.complete_blob(&blob.digest, blob.size, &rest) else {
                return Ok(true);
            };
            let is_theirs = failed.load(Ordering::Relaxed) || error.kind() == Kind::BadContent;
            if !is_theirs {
                return Err(error);
            }
            tracing::debug!("{error}");
            if gone.load(Ordering::Relaxed) {
                break;
            }
            self.preferred.fetch_add(1, Ordering::Relaxed);
        }
        Ok(false)
    }

    /// Requests the blob from an offset, at the address that answered last.
    async fn get(&self, blob: &Descriptor, offset: u64) -> Result<Incoming> {
        let addresses = &self.offer.addresses;
        let at = self.preferred.load(Ordering::Relaxed) % addresses.len().max(1);
        let name = addresses.get(at).map_or("", String::as_str);
        let lost = |why: String| Error::new(Kind::Network, format!("blob source {name} {why}"));
        let address: IpAddr =
            name.parse().map_err(|_| lost("is not a valid address".to_owned()))?;
        let connecting = TcpStream::connect((address, self.offer.port));
        let stream = tokio::time::timeout(CONNECT, connecting)
            .await
            .map_err(|_| lost("does not respond".to_owned()))?
            .map_err(|error| lost(format!("cannot be reached: {error}")))?;
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(512 << 10)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| lost(error.to_string()))?;
        tokio::spawn(connection);
        let request = Request::get(format!("/v2/{REPOSITORY}/blobs/{}", blob.digest))
            .header(header::HOST, "peer")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.offer.token))
            .header(header::RANGE, format!("bytes={offset}-"))
            .body(Empty::<Bytes>::new())
            .map_err(|error| lost(error.to_string()))?;
        let response = tokio::time::timeout(SILENCE, sender.send_request(request))
            .await
            .map_err(|_| lost("is silent".to_owned()))?
            .map_err(|error| lost(error.to_string()))?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => Ok(response.into_body()),
            StatusCode::OK if offset == 0 => Ok(response.into_body()),
            StatusCode::NOT_FOUND => {
                Err(Error::not_found(format!("{name} does not have blob {}", blob.digest)))
            }
            status => Err(lost(format!("answered {status}"))),
        }
    }
}

/// Adapts the bytes of a body to a blocking reader.
struct PeerDownload<'a> {
    runtime: &'a Handle,
    body: Incoming,
    current: Bytes,
    failed: &'a AtomicBool,
    fetched: &'a (dyn Fn(u64) + Sync),
}

impl Read for PeerDownload<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            let frame = self
                .runtime
                .block_on(async { tokio::time::timeout(SILENCE, self.body.frame()).await });
            let frame = match frame {
                Ok(None) => return Ok(0),
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(io::Error::new(io::ErrorKind::ConnectionReset, error));
                }
                Err(_) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(io::ErrorKind::TimedOut.into());
                }
            };
            if let Ok(data) = frame.into_data() {
                self.current = data;
            }
        }
        let count = buffer.len().min(self.current.len());
        let part = self.current.split_to(count);
        if let Some(place) = buffer.get_mut(..count) {
            place.copy_from_slice(&part);
        }
        (self.fetched)(count as u64);
        Ok(count)
    }
}
