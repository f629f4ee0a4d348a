//! The server as a whole: sockets, TLS, the runtime, and shutdown. A connection serves requests
//! until it ends, is idle for too long, or the server stops.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;

use crate::server::backend::Backend;
use crate::server::{Limits, ServeOptions, Shared, service};
use imgctl_base::error::{Error, IoContext, Result};

/// Interval between searches for idle uploads.
const TIDY: Duration = Duration::from_secs(60);
/// Number of such intervals between two searches of the whole tree.
const TIDY_BACKEND: u32 = 60;

/// A registry that is listening but not yet serving.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    shared: Arc<Shared>,
}

impl Server {
    /// Reads users, certificate and key, and starts listening, so that clients can connect.
    pub fn bind(options: &ServeOptions, backend: Arc<dyn Backend>) -> Result<Self> {
        let shared = Arc::new(Shared::new(options, backend)?);
        let tls = match &options.tls {
            Some((certificate, key)) => Some(acceptor(certificate, key)?),
            None => None,
        };
        let listener = listen(&options.addresses)?;
        listener.set_nonblocking(true).doing(|| "cannot set up the socket".to_owned())?;
        let address =
            listener.local_addr().doing(|| "cannot ask the socket for its address".to_owned())?;
        Ok(Self { listener, address, tls, shared })
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready, then waits for requests in progress within the grace period.
    /// Creates its own threads; must not be called from asynchronous code.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("registry")
            .build()
            .doing(|| "cannot start threads".to_owned())?;
        let outcome = runtime.block_on(self.serve(stop));
        // A thread that hangs in a system call must not delay the exit.
        runtime.shutdown_timeout(Duration::from_secs(1));
        outcome
    }

    /// Same as `run`, on the caller's runtime.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)
            .doing(|| "cannot set up the socket".to_owned())?;
        let (stopping, is_stopping) = watch::channel(false);
        let (alive, mut all_gone) = mpsc::channel::<()>(1);
        let limits = self.shared.limits;
        let places = Arc::new(Semaphore::new(limits.connections));
        let tidy = tokio::spawn(tidy(Arc::clone(&self.shared)));
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
                let (shared, tls) = (Arc::clone(&self.shared), self.tls.clone());
                let (is_stopping, alive) = (is_stopping.clone(), alive.clone());
                tokio::spawn(async move {
                    one(stream, peer, tls, shared, is_stopping).await;
                    drop((place, alive));
                });
            }
        };
        tokio::select! {
            () = accept => {}
            () = stop => {}
        }
        tidy.abort();
        drop((listener, alive));
        let _ = stopping.send(true);
        if tokio::time::timeout(limits.grace, all_gone.recv()).await.is_err() {
            tracing::warn!("ended with requests still in progress");
        }
        Ok(())
    }
}

async fn one(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return serve_connection(stream, Some(peer), shared, stop).await;
    };
    match tokio::time::timeout(shared.limits.head, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, Some(peer), shared, stop).await,
        Ok(Err(error)) => tracing::debug!("the TLS handshake with {peer} failed: {error}"),
        Err(_) => tracing::debug!("the TLS handshake with {peer} timed out"),
    }
}

async fn tidy(shared: Arc<Shared>) {
    let mut interval = tokio::time::interval(TIDY);
    let mut round = 0_u32;
    loop {
        interval.tick().await;
        shared.sessions.tidy();
        if round.is_multiple_of(TIDY_BACKEND) && !shared.read_only {
            let backend = Arc::clone(&shared.backend);
            let swept = tokio::task::spawn_blocking(move || backend.tidy()).await;
            if let Ok(Err(error)) = swept {
                tracing::warn!("cannot remove stale uploads: {error}");
            }
        }
        round = round.wrapping_add(1);
    }
}

fn listen(addresses: &[SocketAddr]) -> Result<TcpListener> {
    let mut failure = Error::usage("there is no address to listen on");
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                failure = Error::io(format!("cannot listen on {address}"), error).hint(
                    "another program may be listening there; pass --addr to choose another \
                           address",
                );
            }
        }
    }
    Err(failure)
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let unusable = |what: &str, path: &Path| {
        Error::usage(format!("{} contains no {what} in PEM", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable("certificate", certificate).caused_by(error))?;
    if chain.is_empty() {
        return Err(unusable("certificate", certificate));
    }
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| unusable("private key", key).caused_by(error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| {
            Error::usage(format!(
                "certificate {} and key {} cannot be used",
                certificate.display(),
                key.display()
            ))
            .caused_by(error)
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
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
pub(super) async fn serve_connection<S>(
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
