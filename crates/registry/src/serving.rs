//! Serves HTTP to the clients of one socket, with limits against abuse: sockets, TLS, HTTP/1.1 and HTTP/2,
//! and shutdown. A connection serves requests until it ends, is idle for too long, or the server stops.
//! Must not know what is served: that is the [`Handler`].

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
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
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, watch};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;

use imgctl_base::error::{IoContext, Result};

/// Limits against slow, silent or too many clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of concurrent connections. A further one takes the place of the one that has been
    /// without a complete request for the longest time; if all are busy, it waits.
    pub connections: usize,
    /// Timeout for a TLS handshake, or for the head of a request from its first byte on.
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
        let mut served: Vec<Weak<Activity>> = Vec::new();
        let accept = async {
            loop {
                let (stream, peer) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Mostly a lack of file descriptors, which ends when connections close.
                        tracing::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                };
                served.retain(|activity| activity.strong_count() > 0);
                let Some(place) = place(&places, &served).await else {
                    return;
                };
                let activity = Arc::new(Activity::new());
                served.push(Arc::downgrade(&activity));
                let (handler, tls) = (Arc::clone(&self.handler), self.tls.clone());
                let (is_stopping, alive) = (is_stopping.clone(), alive.clone());
                tokio::spawn(async move {
                    let unwanted = Arc::clone(&activity);
                    tokio::select! {
                        () = one(stream, peer, tls, (handler, limits), activity, is_stopping) => {}
                        () = unwanted.makes_room() => {
                            tracing::debug!("{peer} makes room for another connection");
                        }
                    }
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

/// Returns a place for a new connection. Connections without a request make room, so that nobody can
/// hold all places without asking for anything; if all are busy, waits.
async fn place(places: &Arc<Semaphore>, served: &[Weak<Activity>]) -> Option<OwnedSemaphorePermit> {
    loop {
        let busy = match Arc::clone(places).try_acquire_owned() {
            Ok(place) => return Some(place),
            Err(busy) => busy,
        };
        if busy == TryAcquireError::Closed {
            return None;
        }
        let alive = served.iter().filter_map(Weak::upgrade);
        let idle = alive.filter_map(|activity| Some((activity.idle()?, activity)));
        if let Some((_, activity)) = idle.max_by_key(|(idle, _)| *idle) {
            activity.unwanted.notify_one();
        }
        match tokio::time::timeout(RECHECK, Arc::clone(places).acquire_owned()).await {
            Ok(place) => return place.ok(),
            Err(_) => continue,
        }
    }
}

async fn one<H: Handler>(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    (handler, limits): (Arc<H>, Limits),
    activity: Arc<Activity>,
    stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let at = (Some(peer), activity);
    let Some(tls) = tls else {
        return serve_connection(stream, at, (handler, limits), stop).await;
    };
    match tokio::time::timeout(limits.head, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, at, (handler, limits), stop).await,
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
/// How a connection of HTTP/2 begins; no head of HTTP/1.1 begins so.
const PREFACE: &[u8] = b"PRI ";
/// Time between attempts to find a place for a connection.
const RECHECK: Duration = Duration::from_millis(100);

/// Serves one connection to its end.
async fn serve_connection<S, H: Handler>(
    stream: S,
    (peer, activity): (Option<SocketAddr>, Arc<Activity>),
    (handler, limits): (Arc<H>, Limits),
    mut stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
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
    let io = TokioIo::new(Timed::new(stream, limits.silence, Arc::clone(&activity)));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let shortest = limits.idle.min(limits.head);
    let mut look = tokio::time::interval((shortest / 10).min(Duration::from_secs(1)));
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
                let is_over = |time: Option<Duration>, limit| time.is_some_and(|time| time >= limit);
                if is_over(activity.idle(), limits.idle) || is_over(activity.head(), limits.head) {
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
        // It runs from the end of the request before: the time of a head is that of `Activity`.
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

/// Number of requests in progress on a connection, the time at which the last one ended, and the time at
/// which the head of the next one began. Times are milliseconds after `begun`.
struct Activity {
    requests: AtomicUsize,
    begun: Instant,
    last: AtomicU64,
    /// [`NEVER`] unless a part of a head has come.
    head: AtomicU64,
    /// Notified when the connection has to make room.
    unwanted: Notify,
}

const NEVER: u64 = u64::MAX;

impl Activity {
    fn new() -> Self {
        Self {
            requests: AtomicUsize::new(0),
            begun: Instant::now(),
            last: AtomicU64::new(0),
            head: AtomicU64::new(NEVER),
            unwanted: Notify::new(),
        }
    }

    /// Completes when the connection has to make room and has no request.
    async fn makes_room(&self) {
        loop {
            self.unwanted.notified().await;
            if self.idle().is_some() {
                return;
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }

    fn begin(self: &Arc<Self>) -> Busy {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head.store(NEVER, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Bytes have come: without a request in progress, they are a part of the head of the next one.
    fn received(&self) {
        if self.requests.load(Ordering::Acquire) == 0 {
            let now = self.now();
            let _ = self.head.compare_exchange(NEVER, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns how long the head of a request has been incomplete; `None` if none has begun.
    fn head(&self) -> Option<Duration> {
        let head = Some(self.head.load(Ordering::Relaxed)).filter(|head| *head != NEVER)?;
        Some(self.begun.elapsed().saturating_sub(Duration::from_millis(head)))
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
        self.0.last.store(self.0.now(), Ordering::Relaxed);
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

/// A stream whose writes fail if the peer does not read for too long, and that says when it reads.
struct Timed<S> {
    stream: S,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    activity: Arc<Activity>,
    /// Whether the connection speaks HTTP/1, where only heads come while there is no request; `None`
    /// before its first bytes.
    has_heads: Option<bool>,
}

impl<S> Timed<S> {
    fn new(stream: S, limit: Duration, activity: Arc<Activity>) -> Self {
        Self { stream, limit, waiting: None, activity, has_heads: None }
    }

    fn received(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len().min(PREFACE.len());
        let is_first = || bytes.get(..length) != PREFACE.get(..length);
        if *self.has_heads.get_or_insert_with(is_first) {
            self.activity.received();
        }
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
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.received(buffer.filled().get(before..).unwrap_or_default());
        outcome
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
