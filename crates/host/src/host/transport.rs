//! A way to run commands on a host.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};

use imgctl_base::error::Result;

pub use crate::host::command::{Source, follow};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The user that runs the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    User,
    /// root: directly if the login user is root, otherwise through sudo.
    Root,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Code(u8),
    /// Terminated by the signal with this number.
    Signal(i32),
}

impl Ended {
    /// Returns whether the command ended with exit code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// Describes how the command ended: `with code 1`, `by signal 9`.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Code(code) => format!("with code {code}"),
            Self::Signal(signal) => format!("by signal {signal}"),
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A running command. Dropping `input` closes its stdin; dropping the whole channel terminates the
/// command (SIGTERM to its process group over SSH, SIGKILL on the controller).
///
/// Both outputs must be read to the end: the channels of one connection share its flow, so that an
/// unread output blocks the others.
pub struct Channel {
    pub input: Box<dyn AsyncWrite + Send + Unpin>,
    pub output: Box<dyn AsyncRead + Send + Unpin>,
    pub errors: Box<dyn AsyncRead + Send + Unpin>,
    /// Resolves when the command has ended; an error if the connection was lost before. Output may
    /// still be pending, and a process that the command left behind may keep the outputs open.
    pub ended: BoxFuture<'static, Result<Ended>>,
}

/// One connection to one host, shared by all callers.
pub trait Transport: Send + Sync {
    /// Returns the name of the host in messages.
    fn label(&self) -> &str;

    /// Returns whether this is the controller itself.
    fn is_local(&self) -> bool;

    /// Starts a line of POSIX shell, 8-bit clean and without a terminal. The line must not contain
    /// secrets, because it is visible in the host's process table. A sudo password is sent on stdin
    /// before the command reads it. A lost connection is re-established first.
    ///
    /// The future may be polled on any runtime; the reactor does the work of the channel.
    fn open<'a>(&'a self, line: &'a str, privilege: Privilege) -> BoxFuture<'a, Result<Channel>>;
}

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
