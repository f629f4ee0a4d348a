//! `imgctl agent lb`: a TCP load balancer for the Kubernetes API on a worker.
//!
//! Each connection goes to a control plane that is up; the list is a file which is read again when
//! it changes. Must not know Kubernetes beyond "a server that accepts TLS is up".

mod health;
mod servers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use servers::Servers;

/// What to balance.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    /// `address:port` lines.
    pub(crate) servers: PathBuf,
    /// Between two looks at a server.
    pub(crate) interval: Duration,
    /// For connecting to a server.
    pub(crate) timeout: Duration,
}

/// More connections than this wait for another to end.
const MOST_CONNECTIONS: usize = 16_384;
const BUFFER: usize = 32 * 1024;

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
    let watch = tokio::spawn(health::watch(Arc::clone(&servers), options.clone()));
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
        let (servers, room, timeout) = (Arc::clone(&servers), Arc::clone(&room), options.timeout);
        tokio::spawn(async move {
            let Ok(_place) = room.acquire().await else {
                return;
            };
            if let Err(reason) = forward(client, &servers, timeout).await {
                tracing::warn!("{peer}: {reason}");
            }
        });
    }
    watch.abort();
    Ok(())
}

/// Joins the client to the first server that takes the connection.
async fn forward(
    mut client: TcpStream,
    servers: &Servers,
    timeout: Duration,
) -> Result<(), String> {
    let mut failures = Vec::new();
    for server in servers.in_order() {
        let connected = tokio::time::timeout(timeout, TcpStream::connect(server.as_str())).await;
        let mut upstream = match connected {
            Ok(Ok(upstream)) => upstream,
            Ok(Err(error)) => {
                servers.mark(&server, false);
                failures.push(format!("{server}: {error}"));
                continue;
            }
            Err(_) => {
                servers.mark(&server, false);
                failures.push(format!("{server}: no answer in {} s", timeout.as_secs()));
                continue;
            }
        };
        let _ = client.set_nodelay(true);
        let _ = upstream.set_nodelay(true);
        // How it ends is the two ends' business: a reset is no failure of ours.
        let _ = copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await;
        return Ok(());
    }
    if failures.is_empty() {
        return Err("the list of servers is empty".to_owned());
    }
    Err(format!(
        "no server takes a connection ({})",
        failures.join("; ")
    ))
}

#[cfg(test)]
mod tests;
