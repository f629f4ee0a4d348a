//! Bodies of requests: a call, a part of a blob that a thread reads while it is being sent, or one
//! direction of a tunnel.

use std::io::{self, Read};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, DuplexStream, ReadBuf, ReadHalf};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::agent::tunnel::WAITING;
use imgctl_base::error::{Error, Result};

/// Number of bytes to read at once.
const BLOCK: u64 = 512 << 10;
/// Maximum number of blocks queued between the reading thread and the connection.
const BLOCKS: usize = 4;

/// Body of a request.
pub(super) enum Body {
    Whole(Option<Bytes>),
    Stream(Stream),
    /// Continues until the other end signals the end of the data.
    Pipe(ReadHalf<DuplexStream>),
}

/// A part of a blob that is being sent.
pub(super) struct Stream {
    blocks: mpsc::Receiver<Bytes>,
    left: u64,
    progress: Arc<Progress>,
}

/// Progress of a stream, and the cause if reading the source failed.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) sent: AtomicU64,
    failure: Mutex<Option<Error>>,
}

impl Progress {
    /// Takes the error of the source, if any.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Body {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes: &Bytes| !bytes.is_empty()))
    }

    /// A body with everything read from `source`.
    pub(super) fn pipe(source: ReadHalf<DuplexStream>) -> Self {
        Self::Pipe(source)
    }

    /// A body with the next `length` bytes of `reader`.
    pub(super) fn stream(
        runtime: &Handle,
        mut reader: Box<dyn Read + Send + 'static>,
        length: u64,
    ) -> (Self, Arc<Progress>) {
        let (sender, blocks) = mpsc::channel(BLOCKS);
        let progress = Arc::new(Progress::default());
        let told = Arc::clone(&progress);
        runtime.spawn_blocking(move || {
            let mut left = length;
            while left > 0 {
                match read_block(&mut *reader, left) {
                    Ok(block) => {
                        left -= block.len() as u64;
                        if sender.blocking_send(block).is_err() {
                            return;
                        }
                    }
                    // The channel closes before all bytes are sent, which aborts the request.
                    Err(error) => {
                        *told.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        return;
                    }
                }
            }
        });
        let stream = Stream { blocks, left: length, progress: Arc::clone(&progress) };
        (Self::Stream(stream), progress)
    }
}

fn read_block(reader: &mut dyn Read, left: u64) -> Result<Bytes> {
    let wanted = usize::try_from(left.min(BLOCK)).unwrap_or_default();
    let mut bytes = vec![0; wanted];
    match reader.read_exact(&mut bytes) {
        Ok(()) => Ok(Bytes::from(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Error::bad_content(
            format!("the data to send ended less than {left} bytes before its end"),
        )),
        Err(error) => Err(Error::io("cannot read the data to send", error)),
    }
}

fn poll_pipe(
    source: &mut ReadHalf<DuplexStream>,
    context: &mut Context<'_>,
) -> Poll<Option<io::Result<Frame<Bytes>>>> {
    let mut block = BytesMut::zeroed(WAITING);
    let mut buffer = ReadBuf::new(&mut block);
    ready!(Pin::new(source).poll_read(context, &mut buffer))?;
    let length = buffer.filled().len();
    block.truncate(length);
    Poll::Ready((length > 0).then(|| Ok(Frame::data(block.freeze()))))
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pipe(source) => poll_pipe(source, context),
            Self::Stream(stream) if stream.left == 0 => Poll::Ready(None),
            Self::Stream(stream) => {
                Poll::Ready(Some(match ready!(stream.blocks.poll_recv(context)) {
                    Some(block) => {
                        let length = block.len() as u64;
                        stream.left -= length;
                        stream.progress.sent.fetch_add(length, Ordering::Relaxed);
                        Ok(Frame::data(block))
                    }
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                }))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(stream) => stream.left == 0,
            Self::Pipe(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(stream) => SizeHint::with_exact(stream.left),
            Self::Pipe(_) => SizeHint::default(),
        }
    }
}
