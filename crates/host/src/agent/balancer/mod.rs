//! `imgctl agent lb`: a TCP load balancer for the Kubernetes API on a worker.
//!
//! Each connection goes to a control plane whose `/readyz` reports that it can serve. The list of
//! control planes is a file, which is read again when it changes. Must not depend on Kubernetes
//! beyond that.

mod connection;
mod probe;
mod servers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use imgctl_base::error::{Error, Result};
use imgctl_base::fs::atomic::{self, Durability};
use probe::Probe;
use servers::Servers;

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
    let watch = tokio::spawn(watch(Arc::clone(&servers), Arc::new(options)));
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

/// Time between two checks of the list.
const TICK: Duration = Duration::from_millis(250);

/// Runs until the task is aborted.
async fn watch(servers: Arc<Servers>, options: Arc<Options>) {
    // One task per server, so that a hanging server does not delay the others. The tasks end with
    // the set.
    let mut tasks = JoinSet::new();
    let mut looked_at = BTreeMap::new();
    let mut told = String::new();
    loop {
        servers.reload();
        let addresses = servers.addresses();
        looked_at.retain(|address: &String, task: &mut tokio::task::AbortHandle| {
            let stays = addresses.contains(address);
            if !stays {
                task.abort();
            }
            stays
        });
        for address in addresses {
            looked_at.entry(address).or_insert_with_key(|address| {
                let look = look(Arc::clone(&servers), Arc::clone(&options), address.clone());
                tasks.spawn(look)
            });
        }
        while tasks.try_join_next().is_some() {}
        tell(&options, servers.settle(), &mut told);
        tokio::time::sleep(TICK).await;
    }
}

async fn look(servers: Arc<Servers>, options: Arc<Options>, address: String) {
    let mut probe = Probe::new(&options, address.clone());
    loop {
        servers.found(&address, probe.look().await);
        tokio::time::sleep(options.interval).await;
    }
}

/// Writes the status for operators, and for imgctl, which waits until a server that it takes out of
/// service has no more connections.
fn tell(options: &Options, servers: String, told: &mut String) {
    let Some(path) = &options.state else { return };
    if *told == servers {
        return;
    }
    let text = format!("pid {}\n{servers}", std::process::id());
    match atomic::write(path, text.as_bytes(), 0o644, Durability::Atomic) {
        Ok(()) => *told = servers,
        Err(error) => tracing::warn!("{}", error.message()),
    }
}
