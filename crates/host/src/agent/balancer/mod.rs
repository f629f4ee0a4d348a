//! `imgctl agent lb`: a TCP load balancer for the Kubernetes API on a worker.
//!
//! Each connection goes to a control plane whose `/readyz` reports that it can serve. The list of
//! control planes is a file, which is read again when it changes. Must not depend on Kubernetes
//! beyond that.

mod connection;
mod list;
mod probe;
mod servers;
mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use imgctl_base::error::{Error, Result};
use servers::Servers;

/// Options of the load balancer.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to listen on, unless a socket is given.
    pub listen: SocketAddr,
    /// File with the servers, one `address:port` per line.
    pub servers: PathBuf,
    /// Certificates of the authority that must have signed the servers' certificates; read if the
    /// file exists.
    pub authority: Option<PathBuf>,
    /// Name that the servers' certificates must be valid for; by default, each server's address.
    pub name: Option<String>,
    /// Client certificate and key, for servers that refuse anonymous requests.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// File that receives the status of the servers.
    pub state: Option<PathBuf>,
    /// Time between two probes of a server.
    pub interval: Duration,
    /// Timeout for connecting to a server, and for its answer.
    pub timeout: Duration,
}

/// Maximum number of concurrent connections; further ones wait for another to end.
const MOST_CONNECTIONS: usize = 16_384;

/// Time that open connections have to become quiet when the balancer stops.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Runs until `stop` resolves, and then ends open connections. Listens on `given`, if present:
/// clients that connect while one balancer replaces another wait in its queue.
pub async fn serve(
    options: Options,
    given: Option<std::net::TcpListener>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let listener = match given {
        Some(given) => adopt(given)?,
        None => listen(options.listen).await?,
    };
    let servers = Arc::new(Servers::load(&options.servers)?);
    let timeout = options.timeout;
    let watch = tokio::spawn(watch::watch(Arc::clone(&servers), Arc::new(options)));
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut stop = std::pin::pin!(stop);
    loop {
        let (client, peer) = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, or the peer is gone: neither stops the service.
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let (servers, room) = (Arc::clone(&servers), Arc::clone(&room));
        tokio::spawn(async move {
            let Ok(_place) = room.acquire().await else {
                return;
            };
            if let Err(reason) = connection::forward(client, &servers, timeout).await {
                tracing::warn!("{peer}: {reason}");
            }
        });
    }
    drop(listener);
    watch.abort();
    let _ = watch.await;
    servers.retire(STOP_GRACE);
    let end = Instant::now() + STOP_GRACE;
    while servers.open() > 0 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn adopt(given: std::net::TcpListener) -> Result<TcpListener> {
    let taken = given
        .local_addr()
        .and_then(|_| given.set_nonblocking(true))
        .and_then(|()| TcpListener::from_std(given));
    taken.map_err(|error| {
        Error::io("cannot listen on the socket that was given", error)
            .hint("standard input must be a listening TCP socket, as StandardInput=socket provides")
    })
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => "another program is listening there: run `ss -ltnp`",
            _ => "pass an address of this host with --listen",
        };
        Error::io(format!("cannot listen on {address}"), error).hint(hint)
    })
}

#[cfg(test)]
mod tests;
