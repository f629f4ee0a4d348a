//! Serves this host's blobs to other hosts: read-only, over TCP, to clients that present the token
//! of the offer.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::agent::network;
use crate::agent::protocol;
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;
use imgctl_registry::server::{Limits, ServeOptions, Server};
use imgctl_store::store::Store;
use imgctl_transfer::transfer::store_backend::StoreBackend;

/// Maximum number of concurrent connections from all fetching hosts.
const CONNECTIONS: usize = 256;
/// Number of random bytes in a token.
const TOKEN: usize = 32;

/// The current offer, if any.
#[derive(Default)]
pub(super) struct Offers(Mutex<Option<Offered>>);

struct Offered {
    offer: protocol::PeerSource,
    /// Stops serving when dropped.
    _stop: oneshot::Sender<()>,
}

impl Offers {
    /// Starts serving. If already serving, returns the existing offer. Must be called on the
    /// runtime.
    pub(super) fn begin(&self, store: &Store) -> Result<protocol::PeerSource> {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current {
            return Ok(current.offer.clone());
        }
        let token = token()?;
        let options = ServeOptions {
            // The first address also accepts IPv4; without IPv6, the second one is used.
            addresses: vec![
                SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
                SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            ],
            token: Some(Secret::new(token.clone())),
            read_only: true,
            limits: Limits { connections: CONNECTIONS, ..Limits::default() },
            ..ServeOptions::default()
        };
        let server = Server::bind(&options, Arc::new(StoreBackend::by_digest(store)))?;
        let mut addresses = network::addresses();
        if addresses.is_empty() {
            addresses.push(Ipv4Addr::LOCALHOST.to_string());
        }
        let offer = protocol::PeerSource { addresses, port: server.address().port(), token };
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let served = server.serve(async {
                let _ = stopped.await;
            });
            if let Err(error) = served.await {
                tracing::warn!("stopped serving other hosts: {error}");
            }
        });
        *current = Some(Offered { offer: offer.clone(), _stop: stop });
        Ok(offer)
    }

    /// Stops serving.
    pub(super) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn token() -> Result<String> {
    let mut bytes = [0_u8; TOKEN];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::failed("the system provides no random numbers"))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
