//! The registry server: OCI distribution v1.1 over a backend.
//!
//! Plain HTTP or TLS, HTTP/1.1 and HTTP/2, with limits against abuse. Must not depend on where the
//! content is stored (that is the backend) or on the command line. Reports requests to a callback.

mod auth;
pub mod backend;
mod layout_backend;
mod listen;
mod names;
mod proxy;
mod pull;
mod push;
mod reply;
mod routes;
mod service;
#[cfg(test)]
mod tests;
mod upload;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::credentials::Secret;
use auth::Auth;
use backend::{Backend, WritableBackend};
use imgctl_base::error::Result;
use reply::{Buffers, Refusal};
use upload::{Sessions, not_writable};

pub use auth::{hash_password, set_password};
pub use layout_backend::LayoutBackend;
pub use listen::Server;
pub use names::Names;
pub use proxy::{ProxyBackend, Upstream};
pub use reply::Body;
pub use service::Service;

pub use crate::serving::{Limits, signalled};

/// Options of a registry server.
#[derive(Clone, Default)]
pub struct ServeOptions {
    /// Addresses, tried in order until listening on one succeeds; port 0 = any.
    pub addresses: Vec<SocketAddr>,
    /// PEM files of certificate chain and key; `None` = plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// File of users with bcrypt hashes, read again when it changes.
    pub htpasswd: Option<PathBuf>,
    /// Accepted as a bearer token, and as the password of any user.
    pub token: Option<Secret>,
    /// Whether reading needs no login, although writing does.
    pub anonymous_pull: bool,
    pub read_only: bool,
    /// Whether tags, manifests and blobs can be deleted.
    pub deletion: bool,
    /// Whether manifests are accepted whose blobs are missing.
    pub sparse: bool,
    pub limits: Limits,
    /// The names under which a registry without logins is asked; `None`: any, and by any page.
    pub names: Option<Names>,
    /// Whether clients receive the full cause of a server error, including paths of this machine.
    pub candid: bool,
    /// Called for every request.
    pub log: Option<Arc<AccessLog>>,
}

/// One request and its result. Contains no secrets.
#[derive(Clone, Debug)]
pub struct Access {
    pub peer: Option<SocketAddr>,
    /// Authenticated user.
    pub user: Option<String>,
    pub method: String,
    /// Path and query.
    pub target: String,
    pub status: u16,
    /// Size of the response's content, in bytes.
    pub bytes: u64,
    /// Time until the response began.
    pub duration: Duration,
    pub agent: Option<String>,
    /// Cause of a server error.
    pub failure: Option<String>,
}

/// Called for every request when its response begins.
pub type AccessLog = dyn Fn(&Access) + Send + Sync;

/// State shared by all requests.
struct Shared {
    backend: Arc<dyn Backend>,
    auth: Option<Auth>,
    sessions: Sessions,
    buffers: Arc<Buffers>,
    limits: Limits,
    names: Option<Names>,
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
            names: options.names.clone(),
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

    /// Changes the content, unless it is read-only.
    async fn change<T: Send + 'static>(
        &self,
        order: impl FnOnce(&dyn WritableBackend) -> Result<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.write(move |backend| Ok(order(backend.intake().ok_or_else(not_writable)?)?)).await
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
