//! Serves HTTP to the clients of one socket, with limits against abuse: sockets, TLS, HTTP/1.1 and HTTP/2,
//! and shutdown. A connection serves requests until it ends, is idle for too long, or the server stops.
//! Must not know what is served: that is the [`Handler`].

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;

use imgctl_base::error::{IoContext, Result};

/// Limits against slow, silent or too many clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of concurrent connections; others wait.
    pub connections: usize,
    /// Timeout for a TLS handshake, or for the head of a request.
    pub head: Duration,
    /// Maximum size of the head of an HTTP/1.1 request, in bytes; at least 8192.
    pub head_size: usize,
    /// Timeout without data within a body, in either direction.
    pub silence: Duration,
    /// Timeout after which a connection without requests is closed.
    pub idle: Duration,
    /// Time for requests in progress to finish after a stop is requested.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            head: Duration::from_secs(30),
            head_size: 512 << 10,
            silence: Duration::from_secs(60),
            idle: Duration::from_secs(120),
            grace: Duration::from_secs(30),
        }
    }
}

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    type Body: Body<Data = Bytes, Error = io::Error> + Send + Unpin + 'static;

    /// Answers one request of `peer`. Errors become responses.
    fn answer(
        &self,
        peer: Option<SocketAddr>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A socket that is listening but not yet served.
pub struct Listener<H> {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    handler: Arc<H>,
}

impl<H: Handler> Listener<H> {
    /// Sets up a socket that is listening already; clients can connect.
    pub fn new(
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        limits: Limits,
        handler: Arc<H>,
    ) -> Result<Self> {
        listener.set_nonblocking(true).doing(|| "cannot set up the socket".to_owned())?;
        let address =
            listener.local_addr().doing(|| "cannot ask the socket for its address".to_owned())?;
        Ok(Self { listener, address, tls, limits, handler })
    }

    /// Returns the address on which clients can connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready, then waits for requests in progress within the grace period.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)
            .doing(|| "cannot set up the socket".to_owned())?;
        let (stopping, is_stopping) = watch::channel(false);
        let (alive, mut all_gone) = mpsc::channel::<()>(1);
        let limits = self.limits;
        let places = Arc::new(Semaphore::new(limits.connections));
        let accept = async {
            loop {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                    return;
                };
                let (stream, peer) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Mostly a lack of file descriptors, which ends when connections close.
                        tracing::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                };
                let (handler, tls) = (Arc::clone(&self.handler), self.tls.clone());
                let (is_stopping, alive) = (is_stopping.clone(), alive.clone());
                tokio::spawn(async move {
                    one(stream, peer, tls, (handler, limits), is_stopping).await;
                    drop((place, alive));
                });
            }
        };
        tokio::select! {
            () = accept => {}
            () = stop => {}
        }
        drop((listener, alive));
        let _ = stopping.send(true);
        if tokio::time::timeout(limits.grace, all_gone.recv()).await.is_err() {
            tracing::warn!("ended with requests still in progress");
        }
        Ok(())
    }
}

async fn one<H: Handler>(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    (handler, limits): (Arc<H>, Limits),
    stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return serve_connection(stream, Some(peer), (handler, limits), stop).await;
    };
    match tokio::time::timeout(limits.head, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, Some(peer), (handler, limits), stop).await,
        Ok(Err(error)) => tracing::debug!("the TLS handshake with {peer} failed: {error}"),
        Err(_) => tracing::debug!("the TLS handshake with {peer} timed out"),
    }
}

/// Completes when the process receives SIGTERM or SIGINT.
pub async fn signalled() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 128;
/// Maximum size of the head of an HTTP/2 request, in bytes.
const HEAD: usize = 64 << 10;

/// Serves one connection to its end.
async fn serve_connection<S, H: Handler>(
    stream: S,
    peer: Option<SocketAddr>,
    (handler, limits): (Arc<H>, Limits),
    mut stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Arc::new(Activity::new());
    let service = service_fn({
        let activity = Arc::clone(&activity);
        move |request| {
            let handler = Arc::clone(&handler);
            let busy = activity.begin();
            async move {
                let reply = handler.answer(peer, request).await;
                Ok::<_, std::convert::Infallible>(reply.map(|body| Held { body, _busy: busy }))
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
        .max_buf_size(limits.head_size)
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

/// A body that marks its request as in progress until it has been sent or dropped.
struct Held<B> {
    body: B,
    _busy: Busy,
}

impl<B: Body<Data = Bytes, Error = io::Error> + Unpin> Body for Held<B> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
