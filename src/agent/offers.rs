//! Serves this host's blobs to other hosts: read-only, over TCP, for those who know a token that
//! was made for this one time.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::agent::blobs::HostBlobs;
use crate::agent::network;
use crate::agent::protocol;
use crate::error::{Error, Result};
use crate::registry::server::{Limits, ServeOptions, Server};
use crate::secret::Secret;
use crate::store::Store;

/// Other hosts that fetch at once, with the connections that each of them makes.
const CONNECTIONS: usize = 256;
/// Random bytes of a token.
const TOKEN: usize = 32;

/// What is served now, if anything.
#[derive(Default)]
pub(super) struct Offers(Mutex<Option<Offered>>);

struct Offered {
    offer: protocol::Offer,
    /// Dropped, it ends the serving.
    _stop: oneshot::Sender<()>,
}

impl Offers {
    /// Begins to serve; asked again, says the same again. To be called on the runtime.
    pub(super) fn begin(&self, store: &Store) -> Result<protocol::Offer> {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current {
            return Ok(current.offer.clone());
        }
        let token = token()?;
        let options = ServeOptions {
            // The first takes IPv4 too; where there is no IPv6, the second is left.
            addresses: vec![
                SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
                SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            ],
            token: Some(Secret::new(token.clone())),
            read_only: true,
            limits: Limits {
                connections: CONNECTIONS,
                ..Limits::default()
            },
            ..ServeOptions::default()
        };
        let server = Server::bind(&options, Arc::new(HostBlobs::new(store)))?;
        let mut addresses = network::addresses();
        if addresses.is_empty() {
            addresses.push(Ipv4Addr::LOCALHOST.to_string());
        }
        let offer = protocol::Offer {
            addresses,
            port: server.address().port(),
            token,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let served = server.serve(async {
                let _ = stopped.await;
            });
            if let Err(error) = served.await {
                tracing::warn!("other hosts are no longer served: {error}");
            }
        });
        *current = Some(Offered {
            offer: offer.clone(),
            _stop: stop,
        });
        Ok(offer)
    }

    /// Ends the serving.
    pub(super) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn token() -> Result<String> {
    let mut bytes = [0_u8; TOKEN];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::failed("the system gives no random numbers"))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
