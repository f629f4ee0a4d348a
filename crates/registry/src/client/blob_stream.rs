//! Bytes of a blob from a registry. Resumes after broken connections and switches to the next place
//! after a permanent failure. Checks lengths; the reader checks the digest.
//!
//! As a `Read`, a task of the runtime reads a limited number of bytes ahead of the reading thread.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use http::{StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::client::failure::{Failure, OTHER_BYTES};
use crate::client::hosts::{Place, Shared};
use crate::client::http::Response;
use crate::client::ranges::{Ahead, PIECE, PROGRESS, Source, content_range};
use crate::client::retry::Tries;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Digest;

/// Minimum number of remaining bytes for which several connections are worthwhile.
const WORTH_RANGES: u64 = 64 << 20;
/// Number of bytes after which the speed of one connection is known.
const MEASURED: u64 = 16 << 20;
/// Bytes per second above which one connection is better than several: on loopback, one connection
/// transfers 1,050 MB/s and parallel pieces half of that.
const FAST: u64 = 200 << 20;

pub(super) struct BlobStream {
    /// `cannot read blob sha256:… of quay.io/a/b`.
    doing: String,
    digest: Digest,
    size: u64,
    /// Offset of the next byte for the reader.
    position: u64,
    /// Remaining places to read from; foreign servers last.
    sources: std::vec::IntoIter<Source>,
    current: Source,
    tries: Tries,
    /// Position of the last failure.
    failed_at: u64,
    open: Option<Open>,
    ahead: Option<Ahead>,
    meter: Meter,
}

struct Open {
    response: Response,
    /// Bytes already received that the server sends again.
    skip: u64,
    /// Position at which this connection is abandoned in favor of parallel ranges.
    until: u64,
    ranges: bool,
}

/// Received bytes and the time spent waiting for them.
#[derive(Default)]
struct Meter {
    /// Time spent waiting for the registry, not for the reader.
    waited: Duration,
    bytes: u64,
    window_waited: Duration,
    window_bytes: u64,
}

impl BlobStream {
    pub(super) fn new(
        doing: String,
        sources: Vec<Source>,
        digest: Digest,
        size: u64,
        position: u64,
    ) -> Option<Self> {
        let mut sources = sources.into_iter();
        let current = sources.next()?;
        Some(Self {
            doing,
            digest,
            size,
            position,
            tries: current.place().tries(),
            current,
            sources,
            failed_at: position,
            open: None,
            ahead: None,
            meter: Meter::default(),
        })
    }

    /// Connects to a source, so that a missing blob is detected early.
    pub(super) async fn start(&mut self) -> Result<()> {
        while self.open.is_none() && self.position < self.size {
            match self.connect().await {
                Ok(open) => self.open = Some(open),
                Err(failure) => self.recover(failure).await?,
            }
        }
        Ok(())
    }

    /// Returns the next bytes; `None` at the end of the blob.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if self.position == self.size {
                return Ok(None);
            }
            match self.step().await {
                Ok(Some(bytes)) => {
                    self.position += bytes.len() as u64;
                    return Ok(Some(bytes));
                }
                Ok(None) => {}
                Err(failure) => {
                    self.open = None;
                    self.ahead = None;
                    self.recover(failure).await?;
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Bytes>, Failure> {
        if let Some(ahead) = &mut self.ahead
            && ahead.position() == self.position
        {
            self.open = None;
            match ahead.next().await? {
                Some(bytes) => return Ok(Some(bytes)),
                None => self.ahead = None,
            }
        }
        if self.open.is_none() {
            self.open = Some(self.connect().await?);
        }
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        let silence = self.current.place().shared.pace.silence;
        let asked = Instant::now();
        let chunk = open.response.chunk(silence).await?;
        let Some(mut chunk) = chunk else {
            let (position, size) = (self.position, self.size);
            return Err(Failure::passing(Error::bad_content(format!(
                "it ended after {position} of {size} bytes"
            ))));
        };
        self.meter.count(asked.elapsed(), chunk.len() as u64, self.current.place())?;
        let skipped = open.skip.min(chunk.len() as u64);
        open.skip -= skipped;
        let chunk_start = usize::try_from(skipped).unwrap_or(chunk.len());
        chunk = chunk.slice(chunk_start..);
        if chunk.len() as u64 > self.size - self.position {
            return Err(Error::bad_content(format!("it is longer than {} bytes", self.size))
                .hint(OTHER_BYTES)
                .into());
        }
        let room = usize::try_from(open.until - self.position).unwrap_or(usize::MAX);
        chunk.truncate(room);
        if chunk.is_empty() {
            return Ok(None);
        }
        if open.ranges && self.ahead.is_none() && self.is_slow() {
            self.spread();
        }
        Ok(Some(chunk))
    }

    /// Returns whether several connections would be faster than one for the rest.
    fn is_slow(&self) -> bool {
        let meter = &self.meter;
        let milliseconds = u64::try_from(meter.waited.as_millis()).unwrap_or(u64::MAX);
        self.size - self.position > WORTH_RANGES
            && meter.bytes >= MEASURED
            && meter.bytes.saturating_mul(1000) < milliseconds.saturating_mul(FAST)
    }

    /// Ends this connection after the next piece and fetches the rest over several connections.
    fn spread(&mut self) {
        let Some(open) = &mut self.open else { return };
        let until = self.position + PIECE;
        let ahead = Ahead::start(&self.current, &self.doing, &self.digest, until, self.size);
        if let Some(ahead) = ahead {
            tracing::debug!("{}: continuing in parallel ranges", self.digest);
            open.until = until;
            self.ahead = Some(ahead);
        }
    }

    async fn connect(&self) -> Result<Open, Failure> {
        let response = self.current.get(&self.doing, &self.digest, self.position, None).await?;
        let wrong = |what: String| Failure::from(Error::bad_content(what).hint(OTHER_BYTES));
        let (skip, came) = match response.status {
            StatusCode::PARTIAL_CONTENT => {
                let (start, total) = content_range(&response)
                    .ok_or_else(|| wrong("it came without a usable Content-Range".to_owned()))?;
                if start != self.position || total.is_some_and(|total| total != self.size) {
                    return Err(wrong(format!(
                        "requested bytes from {} of {}, but received others",
                        self.position, self.size
                    )));
                }
                (0, response.length().map(|length| start.saturating_add(length)))
            }
            StatusCode::OK => (self.position, response.length()),
            status => return Err(wrong(format!("the response {status} contains no blob"))),
        };
        if let Some(came) = came
            && (came > self.size || (came < self.size && skip == self.position))
        {
            return Err(wrong(format!(
                "it has {came} bytes, not {} as the manifest says",
                self.size
            )));
        }
        let ranges = response.status == StatusCode::PARTIAL_CONTENT
            || response
                .text(header::ACCEPT_RANGES.as_str())
                .is_some_and(|unit| unit.eq_ignore_ascii_case("bytes"));
        Ok(Open { response, skip, until: self.size, ranges })
    }

    /// Waits before a retry at this place, or switches to the next place.
    async fn recover(&mut self, failure: Failure) -> Result<()> {
        if self.position >= self.failed_at + PROGRESS {
            self.tries.progressed();
        }
        self.failed_at = self.position;
        let place = self.current.place().clone();
        let Err(error) = place.pause(failure, &mut self.tries).await else {
            return Ok(());
        };
        place.host.note(Some(&error));
        let error = error.context(self.doing.clone());
        let Some(next) = self.sources.next() else {
            return Err(error);
        };
        tracing::debug!("{error}; continuing elsewhere");
        self.tries = next.place().tries();
        self.current = next;
        Ok(())
    }
}

impl Meter {
    /// Counts bytes and the time spent waiting for them. Fails if the registry is too slow.
    fn count(&mut self, waited: Duration, bytes: u64, place: &Place) -> Result<(), Failure> {
        let pace = &place.shared.pace;
        self.waited += waited;
        self.bytes += bytes;
        self.window_waited += waited;
        self.window_bytes += bytes;
        if self.window_waited < pace.silence {
            return Ok(());
        }
        let came = std::mem::take(&mut self.window_bytes);
        self.window_waited = Duration::ZERO;
        if came >= pace.least {
            return Ok(());
        }
        Err(Failure::passing(Error::new(
            Kind::Network,
            format!("{} sent only {came} bytes in {} s", place.host.name, pace.silence.as_secs()),
        )))
    }
}

/// Maximum number of bytes between the connection and the reader.
const AHEAD: u32 = 1 << 20;

pub(super) struct BlobReader {
    chunks: mpsc::UnboundedReceiver<Chunk>,
    current: Bytes,
    /// Permit of `current` in the read-ahead limit.
    held: Option<OwnedSemaphorePermit>,
    left: u64,
    ahead: tokio::task::AbortHandle,
    /// Keeps the runtime running.
    _shared: Arc<Shared>,
}

/// A chunk with its permit in the read-ahead limit, or the error that ended the stream.
type Chunk = Result<(Bytes, OwnedSemaphorePermit)>;

impl Drop for BlobReader {
    /// Aborts the task, so that a reader that stops early does not wait for a silent registry.
    fn drop(&mut self) {
        self.ahead.abort();
    }
}

impl BlobReader {
    /// Reads `left` bytes from `stream`, which must be started.
    pub(super) fn new(mut stream: BlobStream, left: u64, shared: Arc<Shared>) -> Result<Self> {
        let (sender, chunks) = mpsc::unbounded_channel();
        let places = Arc::new(Semaphore::new(AHEAD as usize));
        let ahead = shared.runtime()?.spawn(async move {
            loop {
                let next = match stream.next().await {
                    Ok(None) => return,
                    Ok(Some(bytes)) => {
                        let length = u32::try_from(bytes.len()).unwrap_or(AHEAD).min(AHEAD);
                        let Ok(place) = Arc::clone(&places).acquire_many_owned(length).await else {
                            return;
                        };
                        Ok((bytes, place))
                    }
                    Err(error) => Err(error),
                };
                let failed = next.is_err();
                // Sending fails when the reader is gone.
                if sender.send(next).is_err() || failed {
                    return;
                }
            }
        });
        Ok(Self {
            chunks,
            current: Bytes::new(),
            held: None,
            left,
            ahead: ahead.abort_handle(),
            _shared: shared,
        })
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.current.is_empty() {
            if self.left == 0 {
                return Ok(0);
            }
            self.held = None;
            match self.chunks.blocking_recv() {
                Some(next) => {
                    let (chunk, place) = next?;
                    (self.current, self.held) = (chunk, Some(place));
                }
                None => return Err(Error::failed("the download was cancelled").into()),
            }
        }
        let length = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        self.left -= length as u64;
        Ok(length)
    }
}
