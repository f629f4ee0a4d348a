//! Sends a blob from an offset: to a registry, and to the agent of a host.
//!
//! A thread that may block reads the blob, the connection sends what it read, and the progress can
//! be watched. The receiver keeps what has arrived, and the sender asks it where to go on
//! ([`kept`]). Must not know which requests a receiver expects.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::{Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use imgctl_base::error::{Error, Result};

/// Opens the content of a blob at an offset, again after a broken connection.
pub type BlobOpener<'a> = dyn Fn(u64) -> Result<Box<dyn Read + Send + 'static>> + Sync + 'a;

/// Number of bytes read at once.
const BLOCK: u64 = 512 << 10;
/// Number of blocks between the reading thread and the connection.
const BLOCKS: usize = 4;
/// Interval between progress reports.
const TELL: Duration = Duration::from_millis(100);

/// A part of a blob as the body of a request.
#[derive(Debug)]
pub struct BlobBody {
    blocks: mpsc::Receiver<Bytes>,
    left: u64,
    sending: Arc<Sending>,
}

/// Progress of a [`BlobBody`], and the cause if its source failed.
#[derive(Debug, Default)]
pub struct Sending {
    sent: AtomicU64,
    failure: Mutex<Option<Error>>,
}

impl Sending {
    /// Returns the number of bytes that the connection has taken.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Counts bytes that the connection has taken.
    pub(super) fn add(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes the error of the source, which ended the request.
    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Reports the progress of one blob over all attempts to send it; bytes that are sent again do not
/// count.
pub struct Reached<'a> {
    report: &'a (dyn Fn(u64) + Sync),
    offset: u64,
}

impl<'a> Reached<'a> {
    /// Begins at the start of the blob. `report` receives numbers of additional bytes.
    pub fn new(report: &'a (dyn Fn(u64) + Sync)) -> Self {
        Self { report, offset: 0 }
    }

    /// Returns the highest offset reached so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reports that the receiver has everything before `offset`.
    pub fn tell(&mut self, offset: u64) {
        if offset > self.offset {
            (self.report)(offset - self.offset);
            self.offset = offset;
        }
    }

    /// Waits for the answer to a request whose body begins at `start`, and reports the progress of
    /// the body meanwhile.
    pub async fn watch<T>(
        &mut self,
        start: u64,
        sending: &Sending,
        answer: impl Future<Output = T>,
    ) -> T {
        let mut answer = std::pin::pin!(answer);
        loop {
            let answered = tokio::time::timeout(TELL, &mut answer).await;
            self.tell(start + sending.sent());
            if let Ok(answer) = answered {
                return answer;
            }
        }
    }
}

/// Returns a body of the next `length` bytes of `reader`, which a thread of `runtime` reads.
pub fn stream(
    runtime: &Handle,
    mut reader: Box<dyn Read + Send + 'static>,
    length: u64,
) -> (BlobBody, Arc<Sending>) {
    let (sender, blocks) = mpsc::channel(BLOCKS);
    let sending = Arc::new(Sending::default());
    let body = BlobBody { blocks, left: length, sending: Arc::clone(&sending) };
    let told = Arc::clone(&sending);
    runtime.spawn_blocking(move || {
        let mut left = length;
        let mut spares = Spares::default();
        while left > 0 {
            match next(&mut reader, spares.take(), left.min(BLOCK), left) {
                Ok(bytes) => {
                    left -= bytes.len() as u64;
                    spares.lend(&bytes);
                    if sender.blocking_send(bytes).is_err() {
                        return;
                    }
                }
                // The channel closes before all bytes were sent, which ends the request.
                Err(error) => {
                    *told.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return;
                }
            }
        }
    });
    (body, sending)
}

/// Reads all `length` bytes of `reader`, for a body that is sent as a whole.
pub(super) fn whole(mut reader: Box<dyn Read + Send + 'static>, length: u64) -> Result<Bytes> {
    next(&mut reader, BytesMut::new(), length, length)
}

/// Reads the next `wanted` of the `left` remaining bytes into `buffer`, whatever that holds.
fn next(reader: &mut dyn Read, mut buffer: BytesMut, wanted: u64, left: u64) -> Result<Bytes> {
    buffer.resize(usize::try_from(wanted).unwrap_or_default(), 0);
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => {
                let missing = left - filled as u64;
                return Err(Error::bad_content(format!(
                    "the data to send ended {missing} bytes too early"
                )));
            }
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("cannot read the data to send", error)),
        }
    }
    Ok(buffer.freeze())
}

/// Blocks on their way to the connection, which are used again when it has dropped them: memory that
/// is new for every block costs as much time as reading the block.
#[derive(Default)]
struct Spares(VecDeque<Bytes>);

impl Spares {
    fn take(&mut self) -> BytesMut {
        match self.0.pop_front().map(Bytes::try_into_mut) {
            Some(Ok(spare)) => spare,
            Some(Err(lent)) => {
                self.0.push_front(lent);
                BytesMut::new()
            }
            None => BytesMut::new(),
        }
    }

    /// Remembers a block that is sent.
    fn lend(&mut self, block: &Bytes) {
        // No more than the channel and the connection hold.
        if self.0.len() < 2 * BLOCKS {
            self.0.push_back(block.clone());
        }
    }
}

/// Returns the number of bytes that the receiver has, from `Range: 0-<last>`. docker-registry
/// reports `0-0` for none.
pub fn kept(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::RANGE)?.to_str().ok()?;
    let range = range.strip_prefix("bytes=").unwrap_or(range);
    let last: u64 = range.strip_prefix("0-")?.parse().ok()?;
    Some(if last == 0 { 0 } else { last.checked_add(1)? })
}

impl http_body::Body for BlobBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match ready!(self.blocks.poll_recv(context)) {
            Some(bytes) => {
                let length = bytes.len() as u64;
                self.left -= length;
                self.sending.add(length);
                Ok(Frame::data(bytes))
            }
            None => Err(ErrorKind::UnexpectedEof.into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
