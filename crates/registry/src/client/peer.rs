//! Another host of the cluster as a registry to read from: plain HTTP at any of its addresses, with
//! a token that is known beforehand. Resuming, timeouts and the change from one address to the next
//! are those of every registry with mirrors.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::client::hosts::{Place, Shared};
use crate::client::http::Pace;
use crate::client::{ClientOptions, Inner, Repository};
use imgctl_base::error::{Error, Kind, Result};

/// Maximum number of attempts at the last address; the others are tried once.
const TRIES: u32 = 3;

fn pace() -> Pace {
    Pace {
        connect: Duration::from_secs(5),
        answer: Duration::from_secs(30),
        silence: Duration::from_secs(30),
        mirror_tries: 1,
        ..Pace::default()
    }
}

impl Repository {
    /// Returns `repository` of the server at `port` of `addresses`, which are IP addresses of one
    /// host. Nothing is sent to any other server, and only `token` to this one.
    pub fn of_peer(repository: &str, addresses: &[String], port: u16, token: &str) -> Result<Self> {
        let options =
            ClientOptions { tls_verify: Some(false), attempts: Some(TRIES), ..Default::default() };
        let shared = Arc::new(Shared::new(options, pace()));
        let addresses = addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok());
        let place = |address| {
            Ok(Place {
                host: shared.peer(&SocketAddr::new(address, port).to_string(), token)?,
                shared: Arc::clone(&shared),
                repository: repository.to_owned(),
                by_digest: true,
                by_tag: true,
                mirror: false,
            })
        };
        let read = addresses.map(place).collect::<Result<Vec<_>>>()?;
        let write = read
            .last()
            .cloned()
            .ok_or_else(|| Error::new(Kind::Network, "the blob source has no valid address"))?;
        let name = write.name();
        Ok(Self { inner: Arc::new(Inner { shared, name, read, write }) })
    }
}
