//! One connection: forwarded to the best server, and closed when another server becomes better.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::probe::Finding;
use super::servers::{Server, Servers};

const BUFFER: usize = 32 * 1024;
/// Time without traffic after which a connection with no pending request counts as quiet.
const QUIET: Duration = Duration::from_millis(400);
/// Number of flights in a TLS handshake. In the fourth, the server may send session tickets after a
/// request has reached it, and these look like an answer.
const HANDSHAKE: u64 = 4;

/// Forwards the client to the first server that accepts the connection.
pub(super) async fn forward(
    client: TcpStream,
    servers: &Servers,
    timeout: Duration,
) -> Result<(), String> {
    let mut failures = Vec::new();
    for server in servers.in_order() {
        let connected = TcpStream::connect(server.address.as_str());
        let why = match tokio::time::timeout(timeout, connected).await {
            Ok(Ok(upstream)) => {
                carry(client, upstream, &server).await;
                return Ok(());
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", timeout.as_secs_f32()),
        };
        failures.push(format!("{}: {why}", server.address));
        servers.found(&server.address, Finding::Down(why));
    }
    if failures.is_empty() {
        return Err("the list of servers is empty".to_owned());
    }
    Err(format!("no server accepts a connection ({})", failures.join("; ")))
}

/// Counts a connection while it is open.
struct Counted(Arc<Server>);

impl Counted {
    fn new(server: &Arc<Server>) -> Self {
        server.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(server))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn carry(client: TcpStream, mut upstream: TcpStream, server: &Arc<Server>) {
    let counted = Counted::new(server);
    let mut leave = counted.0.leave();
    let _ = client.set_nodelay(true);
    let _ = upstream.set_nodelay(true);
    let traffic = Traffic::default();
    let mut client = Watched { stream: client, traffic: &traffic };
    let copy = copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER);
    // How the connection ends is up to its two endpoints: a reset is not a failure of the balancer.
    let mut copy = std::pin::pin!(copy);
    loop {
        tokio::select! {
            _ = &mut copy => return,
            () = until(&mut leave, true) => {}
        }
        let grace = leave.borrow().unwrap_or_default();
        let end = Instant::now() + grace;
        let mut seen = traffic.moves.load(Ordering::Relaxed);
        loop {
            tokio::select! {
                _ = &mut copy => return,
                // The server is good again.
                () = until(&mut leave, false) => break,
                () = tokio::time::sleep(QUIET) => {}
            }
            let moves = traffic.moves.load(Ordering::Relaxed);
            // A client that has sent a request still waits for the answer, which may never come.
            let is_quiet = moves == seen
                && !traffic.asked.load(Ordering::Relaxed)
                && traffic.flights.load(Ordering::Relaxed) > HANDSHAKE;
            if is_quiet || Instant::now() >= end {
                return;
            }
            seen = moves;
        }
    }
}

/// Waits until the connection must end (`wanted` is true) or no longer has to.
async fn until(leave: &mut watch::Receiver<Option<Duration>>, wanted: bool) {
    let waited = leave.wait_for(|grace| grace.is_some() == wanted).await;
    if waited.map(drop).is_err() {
        std::future::pending::<()>().await;
    }
}

#[derive(Default)]
struct Traffic {
    moves: AtomicU64,
    /// Number of times that the direction of the traffic has changed.
    flights: AtomicU64,
    /// The client sent the most recent bytes.
    asked: AtomicBool,
}

impl Traffic {
    fn moved(&self, by_client: bool) {
        self.moves.fetch_add(1, Ordering::Relaxed);
        if self.asked.swap(by_client, Ordering::Relaxed) != by_client {
            self.flights.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The client's end of the connection, with its traffic recorded.
struct Watched<'a> {
    stream: TcpStream,
    traffic: &'a Traffic,
}

impl AsyncRead for Watched<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.traffic.moved(true);
        }
        polled
    }
}

impl AsyncWrite for Watched<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(1..)) = polled {
            self.traffic.moved(false);
        }
        polled
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
