//! The registry as one service among others, and the answer to one request: authentication, routing,
//! response, log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{
    ALLOW, CONTENT_SECURITY_POLICY, HeaderName, USER_AGENT, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::server::backend::Backend;
use crate::server::push::{self, Deleted};
use crate::server::reply::{Body, Content, Refusal, Reply, document, set};
use crate::server::routes::{self, Route};
use crate::server::{Access, ServeOptions, Shared, auth, names, pull, upload};
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
        answer(&self.shared, None, request).await
    }

    /// Closes idle uploads. The caller must call this periodically.
    pub fn tidy(&self) {
        self.shared.sessions.tidy();
    }
}

const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// Answers a request. Errors become error responses.
pub(super) async fn answer(
    shared: &Shared,
    peer: Option<SocketAddr>,
    request: Request<Incoming>,
) -> Reply {
    let begun = Instant::now();
    let logged = shared.log.is_some().then(|| {
        let agent = request.headers().get(USER_AGENT);
        Access {
            peer,
            user: None,
            method: request.method().to_string(),
            target: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
            status: 0,
            bytes: 0,
            duration: begun.elapsed(),
            agent: agent.and_then(|agent| agent.to_str().ok().map(str::to_owned)),
            failure: None,
        }
    });
    let is_head = request.method() == Method::HEAD;
    let mut user = None;
    let outcome = dispatch(shared, peer, request, &mut user).await;
    let mut failure = None;
    let mut reply = outcome.unwrap_or_else(|refusal| {
        failure = refusal.cause.as_ref().map(ToString::to_string);
        if shared.candid { refusal.candid().reply() } else { refusal.reply() }
    });
    if is_head {
        // HTTP/1.1 omits the body automatically; HTTP/2 sends it and breaks the request.
        reply = reply.map(|_| Body::new(Content::Bytes(Bytes::new())));
    }
    set(&mut reply, API_VERSION, "registry/2.0");
    // What clients push is neither guessed to be a page nor shown as one.
    set(&mut reply, X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(&mut reply, CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox");
    if let Some(failure) = &failure {
        tracing::error!("{failure}");
    }
    if let (Some(mut access), Some(log)) = (logged, &shared.log) {
        access.user = user;
        access.status = reply.status().as_u16();
        access.bytes = http_body::Body::size_hint(reply.body()).exact().unwrap_or(0);
        access.duration = begun.elapsed();
        access.failure = failure;
        log(&access);
    }
    reply
}

/// Parameter in which containerd names the registry that a mirror stands for.
const NAMESPACE: &str = "ns";

async fn dispatch(
    shared: &Shared,
    peer: Option<SocketAddr>,
    request: Request<Incoming>,
    user: &mut Option<String>,
) -> Result<Reply, Refusal> {
    let (head, body) = request.into_parts();
    names::check(&head, shared.names.as_ref())?;
    let route = Route::parse(head.uri.path());
    let is_reading = matches!(head.method, Method::GET | Method::HEAD);
    let is_base = matches!(route, Ok(Route::Base));
    auth::check(shared, &head.headers, is_reading && !is_base, user).await?;
    let mut route = route?;
    if !allowed(&route).contains(&head.method) {
        return Err(not_allowed(&route));
    }
    if !is_reading && (shared.read_only || shared.backend.intake().is_none()) {
        return Err(upload::not_writable());
    }
    if head.method == Method::DELETE && !shared.deletion && !matches!(route, Route::Upload { .. }) {
        return Err(Refusal::unsupported("deletion is not enabled here"));
    }
    let query = routes::query(head.uri.query());
    if let Some(name) = route.repository_mut() {
        let namespace = routes::parameter(&query, NAMESPACE);
        *name = shared.backend.repository(name, namespace).ok_or_else(|| {
            Refusal::missing("NAME_UNKNOWN", "this cache does not serve the registry asked for")
        })?;
    }
    let (method, headers) = (&head.method, &head.headers);
    match route {
        Route::Base => Ok(document(StatusCode::OK, &serde_json::json!({}))),
        Route::Catalog => pull::catalog(shared, &query).await,
        Route::Tags { repository } => pull::tags(shared, repository, &query).await,
        Route::Referrers { repository, subject } => {
            pull::referrers(shared, repository, subject, &query).await
        }
        Route::Manifest { repository, target } => match *method {
            Method::PUT => {
                push::manifest(shared, (repository, target), &query, headers, body).await
            }
            Method::DELETE => push::delete(shared, repository, Deleted::Manifest(target)).await,
            _ => pull::manifest(shared, method, headers, repository, target).await,
        },
        Route::Blob { repository, digest } => match *method {
            Method::DELETE => push::delete(shared, repository, Deleted::Blob(digest)).await,
            _ => pull::blob(shared, method, headers, repository, digest).await,
        },
        Route::Uploads { repository } => {
            // All requests of a user, or of an address without one, count as one client.
            let client = user.clone().or_else(|| peer.map(|peer| peer.ip().to_string()));
            upload::begin(shared, (repository, client), &query, headers, body).await
        }
        Route::Upload { repository, id } => {
            upload::upload(shared, method, (repository, id), &query, headers, body).await
        }
    }
}

/// Returns the methods that a route allows.
fn allowed(route: &Route) -> &'static [Method] {
    match route {
        Route::Base | Route::Catalog | Route::Tags { .. } | Route::Referrers { .. } => {
            &[Method::GET, Method::HEAD]
        }
        Route::Manifest { .. } => &[Method::GET, Method::HEAD, Method::PUT, Method::DELETE],
        Route::Blob { .. } => &[Method::GET, Method::HEAD, Method::DELETE],
        Route::Uploads { .. } => &[Method::POST],
        Route::Upload { .. } => {
            &[Method::GET, Method::HEAD, Method::PATCH, Method::PUT, Method::DELETE]
        }
    }
}

fn not_allowed(route: &Route) -> Refusal {
    let names: Vec<&str> = allowed(route).iter().map(Method::as_str).collect();
    Refusal::unsupported("the address does not know this method").with(ALLOW, names.join(", "))
}
