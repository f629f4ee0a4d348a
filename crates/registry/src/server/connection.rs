//! One connection: serves requests until it ends, is idle for too long, or the server stops.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::server::{Limits, Shared, service};

/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 128;
/// Maximum size of the head of an HTTP/2 request, in bytes.
const HEAD: usize = 64 << 10;

/// Serves one connection to its end.
pub(super) async fn serve<S>(
    stream: S,
    peer: Option<SocketAddr>,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = shared.limits;
    let activity = Arc::new(Activity::new());
    let service = service_fn({
        let activity = Arc::clone(&activity);
        move |request| {
            let shared = Arc::clone(&shared);
            let busy = activity.begin();
            async move {
                let reply = service::answer(&shared, peer, request).await;
                Ok::<_, std::convert::Infallible>(reply.map(|body| body.holding(busy)))
            }
        }
    });
    let builder = builder(&limits);
    let io = TokioIo::new(Timed::new(stream, limits.silence));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let mut look = tokio::time::interval(limits.idle.min(Duration::from_secs(5)));
    let mut is_stopping = *stop.borrow();
    if is_stopping {
        connection.as_mut().graceful_shutdown();
    }
    loop {
        tokio::select! {
            outcome = connection.as_mut() => {
                if let Err(error) = outcome {
                    tracing::debug!("the connection ended: {error}");
                }
                return;
            }
            _ = stop.changed(), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = look.tick() => {
                if activity.idle().is_some_and(|idle| idle >= limits.idle) {
                    return;
                }
            }
        }
    }
}

fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head.max(limits.idle))
        .max_buf_size(512 << 10)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD as u32)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_frame_size(64 << 10)
        .keep_alive_interval(limits.idle)
        .keep_alive_timeout(limits.head);
    builder
}

/// Number of requests in progress on a connection, and the time at which the last one ended.
struct Activity {
    requests: AtomicUsize,
    begun: Instant,
    /// Milliseconds after `begun`.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self { requests: AtomicUsize::new(0), begun: Instant::now(), last: AtomicU64::new(0) }
    }

    fn begin(self: &Arc<Self>) -> Busy {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Returns how long the connection has been idle; `None` while a request is in progress.
    fn idle(&self) -> Option<Duration> {
        if self.requests.load(Ordering::Acquire) > 0 {
            return None;
        }
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        Some(self.begun.elapsed().saturating_sub(last))
    }
}

/// A request in progress, until its response has been sent.
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        let now = u64::try_from(self.0.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last.store(now, Ordering::Relaxed);
        self.0.requests.fetch_sub(1, Ordering::Release);
    }
}

/// A stream whose writes fail if the peer does not read for too long.
struct Timed<S> {
    stream: S,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waiting: None }
    }

    fn watch<T>(
        &mut self,
        outcome: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = None;
            return outcome;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(outcome, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(outcome, context)
    }
}
