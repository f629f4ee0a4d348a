//! The registry server: OCI distribution v1.1 over a backend.
//!
//! Plain HTTP or TLS, HTTP/1.1 and HTTP/2, with limits against abuse. Must not depend on where the
//! content is stored (that is the backend) or on the command line. Reports requests to a callback.

mod auth;
pub(crate) mod backend;
mod body;
mod connection;
mod discover;
mod growing;
mod handler;
mod layout_backend;
mod listen;
mod proxy;
mod pull;
mod push;
mod reply;
mod routes;
mod service;
mod sessions;
#[cfg(test)]
mod tests;
mod upload;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::registry::credentials::Secret;
use auth::Auth;
use backend::Backend;
use body::Buffers;
use reply::Refusal;
use sessions::Sessions;

pub(crate) use auth::{hash_password, set_password};
pub(crate) use body::Body;
pub(crate) use layout_backend::LayoutBackend;
pub(crate) use listen::{Server, signalled};
pub(crate) use proxy::{ProxyBackend, Upstream};
pub(crate) use service::Service;

/// Options of a registry server.
#[derive(Clone, Default)]
pub(crate) struct ServeOptions {
    /// Addresses, tried in order until listening on one succeeds; port 0 = any.
    pub(crate) addresses: Vec<SocketAddr>,
    /// PEM files of certificate chain and key; `None` = plain HTTP.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// File of users with bcrypt hashes, read again when it changes.
    pub(crate) htpasswd: Option<PathBuf>,
    /// Accepted as a bearer token, and as the password of any user.
    pub(crate) token: Option<Secret>,
    /// Whether reading needs no login, although writing does.
    pub(crate) anonymous_pull: bool,
    pub(crate) read_only: bool,
    /// Whether tags, manifests and blobs can be deleted.
    pub(crate) deletion: bool,
    /// Whether manifests are accepted whose blobs are missing.
    pub(crate) sparse: bool,
    pub(crate) limits: Limits,
    /// Whether clients receive the full cause of a server error, including paths of this machine.
    pub(crate) candid: bool,
    /// Called for every request.
    pub(crate) log: Option<Arc<AccessLog>>,
}

/// Limits against slow, silent or too many clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of concurrent connections; others wait.
    pub(crate) connections: usize,
    /// Timeout for a TLS handshake, or for the head of a request.
    pub(crate) head: Duration,
    /// Timeout without data within a body, in either direction.
    pub(crate) silence: Duration,
    /// Timeout after which a connection without requests is closed.
    pub(crate) idle: Duration,
    /// Time for requests in progress to finish after a stop is requested.
    pub(crate) grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            head: Duration::from_secs(30),
            silence: Duration::from_secs(60),
            idle: Duration::from_secs(120),
            grace: Duration::from_secs(30),
        }
    }
}

/// One request and its result. Contains no secrets.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) peer: Option<SocketAddr>,
    /// Authenticated user.
    pub(crate) user: Option<String>,
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) status: u16,
    /// Size of the response's content, in bytes.
    pub(crate) bytes: u64,
    /// Time until the response began.
    pub(crate) duration: Duration,
    pub(crate) agent: Option<String>,
    /// Cause of a server error.
    pub(crate) failure: Option<String>,
}

/// Called for every request when its response begins.
pub(crate) type AccessLog = dyn Fn(&Access) + Send + Sync;

/// State shared by all requests.
struct Shared {
    backend: Arc<dyn Backend>,
    auth: Option<Auth>,
    sessions: Sessions,
    buffers: Arc<Buffers>,
    limits: Limits,
    read_only: bool,
    deletion: bool,
    sparse: bool,
    candid: bool,
    log: Option<Arc<AccessLog>>,
}

impl Shared {
    fn new(options: &ServeOptions, backend: Arc<dyn Backend>) -> Result<Self> {
        Ok(Self {
            backend,
            auth: Auth::new(options)?,
            sessions: Sessions::default(),
            buffers: Arc::default(),
            limits: options.limits,
            read_only: options.read_only,
            deletion: options.deletion,
            sparse: options.sparse,
            candid: options.candid,
            log: options.log.clone(),
        })
    }

    /// Reads from the backend, directly if that does not block for long.
    async fn read<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Backend) -> Result<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        if !self.backend.may_wait() {
            return Ok(ask(&*self.backend)?);
        }
        self.write(move |backend| Ok(ask(backend)?)).await
    }

    /// Runs a backend operation on a thread that may wait for the disk.
    async fn write<T: Send + 'static>(
        &self,
        order: impl FnOnce(&dyn Backend) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let backend = Arc::clone(&self.backend);
        let job = tokio::task::spawn_blocking(move || order(&*backend));
        job.await.unwrap_or_else(|_| Err(upload::stopped()))
    }
}
