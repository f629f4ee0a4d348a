//! The registry as one service among others: another server owns the connections and passes
//! requests in.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;

use crate::server::backend::Backend;
use crate::server::body::Body;
use crate::server::{ServeOptions, Shared, handler};
use imgctl_base::error::Result;

/// A registry without sockets. Cheap to clone. Answers requests on a tokio runtime.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
}

impl Service {
    /// Creates a registry over `backend`. Ignores the socket settings in `options`.
    pub fn new(options: &ServeOptions, backend: Arc<dyn Backend>) -> Result<Self> {
        let shared = Arc::new(Shared::new(options, backend)?);
        Ok(Self { shared })
    }

    /// Answers one request below `/v2`.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        handler::answer(&self.shared, None, request).await
    }

    /// Closes idle uploads. The caller must call this periodically.
    pub fn tidy(&self) {
        self.shared.sessions.tidy();
    }
}
