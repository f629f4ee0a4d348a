//! `imgctl agent lb`: a TCP load balancer for the Kubernetes API on a worker.
//!
//! Each connection goes to a control plane whose `/readyz` says that it can serve; the list is a file
//! which is read again when it changes. Must not know Kubernetes beyond that.

mod connection;
mod list;
mod probe;
mod servers;
mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use servers::Servers;

/// What to balance.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    /// `address:port` lines.
    pub(crate) servers: PathBuf,
    /// Certificates of the authority that the servers' must come from; read when they are there.
    pub(crate) authority: Option<PathBuf>,
    /// The name that the servers' certificates must be for; else each server's address.
    pub(crate) name: Option<String>,
    /// Certificate and key for servers that answer nobody whom they do not know.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// Where to write how the servers are.
    pub(crate) state: Option<PathBuf>,
    /// Between two looks at a server.
    pub(crate) interval: Duration,
    /// For connecting to a server, and for its answer.
    pub(crate) timeout: Duration,
}

/// More connections than this wait for another to end.
const MOST_CONNECTIONS: usize = 16_384;

/// Runs until `stop` resolves. Open connections are cut then.
pub(crate) async fn serve(options: Options, stop: impl Future<Output = ()>) -> Result<()> {
    let listener = TcpListener::bind(options.listen).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => "something else listens there: `ss -ltnp`",
            _ => "give an address of this host with --listen",
        };
        Error::io(format!("cannot listen on {}", options.listen), error).hint(hint)
    })?;
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
                    // Out of descriptors, or the peer has gone: neither ends the service.
                    tracing::warn!("a connection could not be accepted: {error}");
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
    watch.abort();
    Ok(())
}

#[cfg(test)]
mod tests;
