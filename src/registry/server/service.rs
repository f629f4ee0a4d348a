//! The registry as a service among others: requests come on connections that somebody else serves.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;

use crate::error::Result;
use crate::registry::server::backend::Backend;
use crate::registry::server::body::Body;
use crate::registry::server::{ServeOptions, Shared, handler};

/// A registry without sockets. Cheap to clone. Its requests are answered on a tokio runtime.
#[derive(Clone)]
pub(crate) struct Service {
    shared: Arc<Shared>,
}

impl Service {
    /// A registry over `backend`; of `options`, what concerns sockets is not looked at.
    pub(crate) fn new(options: &ServeOptions, backend: Arc<dyn Backend>) -> Result<Self> {
        let shared = Arc::new(Shared::new(options, backend)?);
        Ok(Self { shared })
    }

    /// Answers one request below `/v2`.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        handler::answer(&self.shared, None, request).await
    }

    /// Closes uploads that nobody has asked for in a while. To be called now and then.
    pub(crate) fn tidy(&self) {
        self.shared.sessions.tidy();
    }
}
