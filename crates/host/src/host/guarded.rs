//! Detects when the last part of a running command has been dropped. Must not depend on the
//! transport.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};

/// Held by each part of a channel; dropping the last one notifies the other end of the oneshot.
pub(super) struct Held {
    _release: oneshot::Sender<()>,
}

/// Returns the token for the parts, and a receiver that resolves when all of them have been
/// dropped.
pub(super) fn held() -> (Arc<Held>, oneshot::Receiver<()>) {
    let (release, released) = oneshot::channel();
    (Arc::new(Held { _release: release }), released)
}

/// A stream that keeps the command running.
pub(super) struct Guarded<T> {
    pub(super) inner: T,
    pub(super) _held: Arc<Held>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Guarded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Guarded<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Reads pieces from a queue; the end of the queue is the end of the file, unless the queue
/// delivers an error.
pub(super) struct Pieces {
    queue: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Pieces {
    pub(super) fn new(queue: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self { queue, current: Bytes::new() }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.current.is_empty() {
            match self.queue.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(Some(Ok(piece))) => self.current = piece,
            }
        }
        let count = self.current.len().min(buffer.remaining());
        buffer.put_slice(&self.current.split_to(count));
        Poll::Ready(Ok(()))
    }
}
