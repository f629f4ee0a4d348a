//! `imgctl agent peers`: hosts of a cluster share the images that they have from the cluster's registry.
//!
//! containerd first asks this service on its own host ([`search`]). The service learns from the host that keeps
//! the records of a digest ([`index`]) which hosts have the content, and streams it from one of them. If none has
//! it, the answer is 404, and containerd goes on to the registry hosts. To other hosts, the service serves what
//! containerd on this host has ([`inventory`]), by digest only: registry hosts resolve tags.
//!
//! Nothing runs while nothing is pulled: the service waits for requests and for containerd's directory to
//! change. Must not depend on clusters: a file says who the peers are.

mod answer;
mod exchange;
mod index;
mod inventory;
mod placement;
mod reply;
mod search;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use answer::Node;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::secret::Secret;
use imgctl_registry::serving::{Limits, Listener};
use inventory::{Containerd, Holdings};

/// Maximum size of a settings file, in bytes: addresses of 100,000 hosts.
const LONGEST: u64 = 8 << 20;
/// Maximum number of clients at the same time; others wait. Each takes a few hundred KiB at most.
const CONNECTIONS: usize = 256;

/// Settings of the service on a host, in a file that only root may read.
#[derive(Clone, Serialize, Deserialize)]
pub struct Settings {
    pub cluster: String,
    /// Domain of the cluster's registry. Only content that containerd pulled from there is shared.
    pub domain: String,
    /// Address of this host, as in `peers`.
    pub address: String,
    pub port: u16,
    /// Addresses of all hosts of the cluster.
    pub peers: Vec<String>,
    /// Token that clients and other hosts present; `None` if the registry requires no login.
    pub token: Option<String>,
    /// Socket of containerd.
    pub socket: PathBuf,
    /// Directory of containerd's content, which has `blobs/<algorithm>/<hex>`.
    pub content: PathBuf,
}

impl Settings {
    /// Reads the file that imgctl has written on this host.
    pub fn read(path: &Path) -> Result<Self> {
        use std::io::Read as _;
        let mut text = Vec::new();
        let file = std::fs::File::open(path).path("read", path)?;
        file.take(LONGEST).read_to_end(&mut text).path("read", path)?;
        serde_json::from_slice(&text).map_err(|error| {
            Error::bad_content(format!("{} cannot be used", path.display())).caused_by(error)
        })
    }

    fn secret(&self) -> Option<Secret> {
        self.token.clone().map(Secret::new)
    }
}

/// Serves until `stop` resolves.
pub fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<()> {
    let listener = listen(settings.port)?;
    let socket = settings.socket.display().to_string();
    let source = Arc::new(Containerd::new(socket, &settings.domain, settings.content.clone()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("peers")
        .enable_all()
        .build()
        .doing(|| "cannot start threads".to_owned())?;
    let outcome = runtime.block_on(serve(settings, listener, source, stop));
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// Serves on a socket that is listening already.
async fn serve(
    settings: Settings,
    listener: TcpListener,
    source: Arc<dyn Holdings>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let blobs = settings.content.join("blobs/sha256");
    let node = Arc::new(Node::new(settings, Arc::clone(&source))?);
    let limits = Limits {
        connections: CONNECTIONS,
        // A restart must not wait long for transfers: containerd continues them at a registry host.
        grace: Duration::from_secs(5),
        ..Limits::default()
    };
    let listener = Listener::new(listener, None, limits, Arc::clone(&node))?;
    let tell = tokio::spawn(exchange::run(node, source, blobs));
    let outcome = listener.serve(stop).await;
    tell.abort();
    outcome
}

/// Listens on all addresses of this host: containerd's requests arrive over the loopback interface.
fn listen(port: u16) -> Result<TcpListener> {
    let failed = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Ok(listener) => return Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => error,
        Err(_) => match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        },
    };
    Err(Error::io(format!("cannot listen on port {port}"), failed)
        .hint("another program may be listening there: run `ss -ltnp`"))
}
