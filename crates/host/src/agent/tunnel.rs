//! A byte stream from the controller to a TCP port as a host sees it, through the host's agent.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// Number of bytes buffered in each direction on the controller's side.
pub(super) const WAITING: usize = 64 << 10;

/// The controller's end, usable on any tokio runtime. [`AsyncWrite::poll_shutdown`] signals the end
/// of the data to the other end; dropping the tunnel ends the connection on the host.
pub struct Tunnel {
    stream: DuplexStream,
    failure: Failure,
}

/// Why the stream ended prematurely.
#[derive(Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<String>>>);

impl Failure {
    pub(super) fn tell(&self, why: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    fn told(&self) -> Option<io::Error> {
        let why = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let why = why.as_ref()?;
        Some(io::Error::new(io::ErrorKind::ConnectionReset, why.clone()))
    }
}

/// Polls `source` for the next block of a body; the end of the source ends the body.
pub(super) fn poll_block(
    source: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
) -> Poll<Option<io::Result<Frame<Bytes>>>> {
    let mut block = BytesMut::zeroed(WAITING);
    let mut buffer = ReadBuf::new(&mut block);
    ready!(Pin::new(source).poll_read(context, &mut buffer))?;
    let length = buffer.filled().len();
    block.truncate(length);
    Poll::Ready((length > 0).then(|| Ok(Frame::data(block.freeze()))))
}

impl Tunnel {
    /// `failure` must be set before the other end of `stream` is dropped.
    pub(super) fn new(stream: DuplexStream, failure: Failure) -> Self {
        Self { stream, failure }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        Poll::Ready(match self.failure.told().filter(|_| is_end) {
            Some(error) => Err(error),
            None => Ok(()),
        })
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.failure.told().unwrap_or(error)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
