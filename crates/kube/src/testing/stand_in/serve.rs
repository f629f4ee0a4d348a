//! Serves the stand-in over HTTPS on loopback, for tests of the client.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::{convert::Infallible, path::PathBuf, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{pki_types::pem::PemObject as _, server::WebPkiClientVerifier};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::api::{Answer, Api, ApiError, PatchKind};
use crate::testing::credentials;
use crate::testing::stand_in::{StandIn, path};

/// A running server. Dropping it stops the server.
pub struct Served {
    directory: tempfile::TempDir,
    /// Number of connections so far.
    pub connections: Arc<AtomicUsize>,
    runtime: Option<Runtime>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Served {
    /// Returns the path of one of the kubeconfigs of [`credentials`].
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Serves `api` until the returned value is dropped.
pub fn serve(api: &StandIn) -> Served {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let directory = tempfile::tempdir().unwrap();
    credentials::write(directory.path(), listener.local_addr().unwrap().port());
    let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&read("ca.crt")).unwrap()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let chain = vec![CertificateDer::from_pem_slice(&read("server.crt")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(&read("server.key")).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let (api, counter) = (api.clone(), Arc::clone(&connections));
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        while let Ok((stream, _)) = listener.accept().await {
            let (api, acceptor) = (api.clone(), acceptor.clone());
            counter.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let is_known = stream.get_ref().1.peer_certificates().is_some();
                let service = service_fn(|request| {
                    let api = api.clone();
                    async move { Ok::<_, Infallible>(answer(&api, request, is_known).await) }
                });
                let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = served.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Served { directory, connections, runtime: Some(runtime) }
}

async fn answer(
    api: &StandIn,
    request: Request<Incoming>,
    is_known: bool,
) -> Response<Full<Bytes>> {
    let bearer = format!("Bearer {}", credentials::TOKEN);
    let shown = request.headers().get(header::AUTHORIZATION);
    let is_known = is_known || shown.is_some_and(|shown| *shown == *bearer);
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = head.uri.path_and_query().unwrap().as_str();
    let media_type = head.headers.get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|one| one.to_str().ok()).unwrap_or_default();
    let outcome = match (is_known, &head.method) {
        (false, _) => Err(ApiError {
            code: 401,
            reason: "Unauthorized".to_owned(),
            message: "Unauthorized".to_owned(),
            ..ApiError::default()
        }),
        (_, &Method::GET) => get(api, path),
        (_, &Method::POST) => api.create(path, &body).map(|object| (201, object)),
        (_, &Method::PUT) => api.replace(path, &body).map(|object| (200, object)),
        (_, &Method::DELETE) => api.delete(path, &body).map(|object| (200, object)),
        (_, &Method::PATCH) => {
            let kind = match media_type {
                "application/json-patch+json" => PatchKind::Json,
                "application/merge-patch+json" => PatchKind::Merge,
                _ => PatchKind::Strategic,
            };
            api.patch(path, kind, &body).map(|object| (200, object))
        }
        _ => Err(super::status::no_such_path()),
    };
    match outcome {
        Ok((code, object)) => {
            let bytes = match object {
                Value::String(text) => text,
                object => object.to_string(),
            };
            let response = Response::builder().status(code);
            response.body(Full::new(bytes.into())).unwrap()
        }
        Err(error) => {
            let causes = error.causes.iter();
            let causes =
                causes.map(|(reason, message)| json!({"reason": reason, "message": message}));
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": error.message, "reason": error.reason, "code": error.code,
                "details": {"causes": causes.collect::<Vec<_>>()},
            });
            let mut response = Response::builder().status(error.code);
            if let Some(seconds) = error.retry_after {
                response = response.header(header::RETRY_AFTER, seconds);
            }
            response.body(Full::new(status.to_string().into())).unwrap()
        }
    }
}

fn get(api: &StandIn, path: &str) -> Answer<(u16, Value)> {
    let parsed = path::Path::parse(path);
    match parsed.filter(|parsed| parsed.name.is_empty()) {
        Some(parsed) => page(api, path, &parsed).map(|page| (200, page)),
        None => {
            let bytes = api.raw(path)?;
            let text = String::from_utf8(bytes).unwrap();
            Ok((200, Value::String(text)))
        }
    }
}

/// Returns one page of a list; `continue` is the start of the next page.
fn page(api: &StandIn, path: &str, parsed: &path::Path) -> Answer<Value> {
    let all = api.list(path)?;
    let number = |name: &str| parsed.query(name).and_then(|text| text.parse::<usize>().ok());
    let begin = match parsed.query("continue") {
        None => 0,
        Some(token) => match token.strip_prefix("from=") {
            Some(begin) => begin.parse().unwrap(),
            None => {
                return Err(ApiError {
                    code: 410,
                    reason: "Expired".to_owned(),
                    ..ApiError::default()
                });
            }
        },
    };
    let limit = number("limit").unwrap_or(usize::MAX);
    let kind = all.first().map_or("Thing", |one| one["kind"].as_str().unwrap());
    let version = all.first().map_or(json!("v1"), |one| one["apiVersion"].clone());
    let items = all.iter().skip(begin).take(limit).cloned().map(|mut one| {
        let members = one.as_object_mut().unwrap();
        members.shift_remove("kind");
        members.shift_remove("apiVersion");
        one
    });
    let items: Vec<Value> = items.collect();
    let next = if begin + items.len() < all.len() {
        format!("from={}", begin + items.len())
    } else {
        String::new()
    };
    Ok(json!({
        "kind": format!("{kind}List"), "apiVersion": version,
        "metadata": {"continue": next}, "items": items,
    }))
}
