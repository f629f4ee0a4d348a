//! The registry on a socket: addresses, certificate, threads, and what has to be tidied meanwhile.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::server::backend::Backend;
use crate::server::{Body, ServeOptions, Shared, service};
use crate::serving::{Handler, Listener};
use imgctl_base::error::{Error, IoContext, Result};

/// Interval between searches for idle uploads.
const TIDY: Duration = Duration::from_secs(60);
/// Number of such intervals between two searches of the whole tree.
const TIDY_BACKEND: u32 = 60;

/// A registry that is listening but not yet serving.
pub struct Server {
    listener: Listener<Shared>,
    shared: Arc<Shared>,
}

impl Handler for Shared {
    type Body = Body;

    async fn answer(
        &self,
        peer: Option<SocketAddr>,
        request: Request<Incoming>,
    ) -> Response<Self::Body> {
        service::answer(self, peer, request).await
    }
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
        let listener = Listener::new(listener, tls, options.limits, Arc::clone(&shared))?;
        Ok(Self { listener, shared })
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
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
        let tidy = tokio::spawn(tidy(self.shared));
        let outcome = self.listener.serve(stop).await;
        tidy.abort();
        outcome
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
