//! API client for a real cluster: connects to one API server, through a [`ControlPlane`] or directly.

mod answers;
mod connection;
mod exec;
mod kubeconfig;
pub mod narrow;
mod renewing;
#[cfg(test)]
mod tests;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::{path::Path, sync::Arc, time::Duration};

use answers::parsed;
use bytes::Bytes;
use connection::{ApiConnection, Dial, Reply, RequestError};
pub use connection::{Duplex, Stream};
use http::{HeaderValue, Method, Request, header};
use http_body_util::Full;
use kubeconfig::{Access, Credentials};
use serde_json::Value;
use tokio::runtime::{Handle, Runtime};

use crate::api::{Answer, Api, ApiError, PatchKind};
use imgctl_base::address::join_port;
use imgctl_base::error::{Context, Error, IoContext, Result};

/// Paths of the administrator's kubeconfig on a control plane: kubeadm's, then k3s'.
pub const KUBECONFIGS: [&str; 2] = ["/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml"];
/// Maximum size of a kubeconfig and the files that it references, in bytes.
const LARGEST_FILE: u64 = 1 << 20;
/// Maximum number of attempts for a read.
const TRIES: u32 = 5;
/// Maximum pause before a retry, in seconds.
const LONGEST_PAUSE: u64 = 30;

/// The host of an API server, and the way there: this crate does not know how hosts are reached.
pub trait ControlPlane: Send + Sync {
    /// Returns the host's name for messages.
    fn host(&self) -> &str;

    /// Reads a file of at most `limit` bytes; returns `None` if it is missing.
    fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>>;

    /// Opens a connection from the host to `address`.
    fn tunnel(&self, address: &str, port: u16) -> Result<Stream>;
}

/// A client for one API server over HTTPS.
struct Client {
    line: ApiConnection,
    authorization: Option<HeaderValue>,
    /// Host and port in requests.
    authority: String,
    /// Path in front of the API's own.
    prefix: String,
    /// `None` only while the client is dropped.
    runtime: Option<Runtime>,
}

/// Returns a client for the API server on `control_plane` itself, bypassing any load balancer. Reads the
/// first of `kubeconfigs` that exists there; does not connect to the API server yet.
pub fn connect(control_plane: Arc<dyn ControlPlane>, kubeconfigs: &[&str]) -> Result<Arc<dyn Api>> {
    for &path in kubeconfigs {
        let Some(text) = control_plane.read_file(path, LARGEST_FILE)? else {
            continue;
        };
        let read = |file: &str| {
            let file = beside(path, file);
            let content = control_plane.read_file(&file, LARGEST_FILE)?;
            content.ok_or_else(|| {
                Error::not_found(format!("{path} names {file}, which does not exist"))
            })
        };
        let host = || control_plane.host().to_owned();
        let access = kubeconfig::parse(&text, path, &read).context(host)?;
        let port = access.port;
        let dial = move || control_plane.tunnel("127.0.0.1", port);
        return Ok(Arc::new(Client::new(&access, &access.credentials, |_| Arc::new(dial))?));
    }
    let error = format!("{}: there is no {}", control_plane.host(), kubeconfigs.join(" and no "));
    Err(Error::not_found(error).hint("check that this host is a control plane of a cluster"))
}

/// Returns a client that connects directly to the API server of the current context of the
/// kubeconfig at `path`.
pub fn connect_kubeconfig(path: &Path) -> Result<Arc<dyn Api>> {
    let text = std::fs::read(path).path("read", path)?;
    connect_text(&text, &path.display().to_string())
}

/// The same for the text of a kubeconfig; `path` is for messages and for the files it names.
fn connect_text(text: &[u8], path: &str) -> Result<Arc<dyn Api>> {
    let read = |file: &str| {
        let file = beside(path, file);
        std::fs::read(&file).path("read", Path::new(&file))
    };
    let access = kubeconfig::parse(text, path, &read)?;
    let Credentials::Plugin(plugin) = &access.credentials else {
        return Ok(Arc::new(directly(&access, &access.credentials)?));
    };
    let plugin = plugin.clone();
    let renewing = renewing::Renewing::new(move || {
        let printed = plugin.run()?;
        let credentials = match printed.what {
            exec::Kinds::Certificate(chain, key) => Credentials::Certificate(chain, key),
            exec::Kinds::Token(token) => Credentials::Token(token),
        };
        let client: Arc<dyn Api> = Arc::new(directly(&access, &credentials)?);
        Ok((client, printed.until))
    })?;
    Ok(Arc::new(renewing))
}

fn directly(access: &Access, credentials: &Credentials) -> Result<Client> {
    let (host, port) = (access.host.clone(), access.port);
    Client::new(access, credentials, |runtime| {
        Arc::new(move || runtime.block_on(direct(&host, port)))
    })
}

/// Resolves a path relative to the directory of the file `base`.
fn beside(base: &str, file: &str) -> String {
    let directory = Path::new(base).parent().unwrap_or(Path::new("/"));
    directory.join(file).display().to_string()
}

async fn direct(host: &str, port: u16) -> Result<Stream> {
    let addresses: Vec<IpAddr> = match host.parse() {
        Ok(address) => vec![address],
        Err(_) => {
            let unknown =
                |error| Error::network(format!("cannot find the host {host}")).caused_by(error);
            let resolver = hickory_resolver::TokioResolver::builder_tokio().map_err(unknown)?;
            let resolver = resolver.build().map_err(unknown)?;
            let found = resolver.lookup_ip(host).await.map_err(unknown)?;
            found.iter().collect()
        }
    };
    let mut failure = Error::network(format!("the host {host} has no address"));
    for address in addresses {
        let to = SocketAddr::new(address, port);
        match tokio::net::TcpStream::connect(to).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(Box::new(stream));
            }
            Err(error) => {
                failure = Error::network(format!("cannot connect to {to}")).caused_by(error);
            }
        }
    }
    Err(failure)
}

impl Client {
    fn new(
        access: &Access,
        credentials: &Credentials,
        dial: impl FnOnce(Handle) -> Arc<Dial>,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kube")
            .enable_all()
            .build()
            .doing(|| "cannot start threads".to_owned())?;
        let (tls, name) = tls::settings(access, credentials)?;
        let authorization = match credentials {
            Credentials::Certificate(..) => None,
            Credentials::Plugin(_) => {
                return Err(Error::denied(
                    "a kubeconfig whose credentials come from a program cannot be used here",
                ));
            }
            Credentials::Token(token) => {
                let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
                let mut value =
                    value.map_err(|_| Error::bad_content("the kubeconfig's token is unusable"))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let authority = join_port(&access.host, access.port);
        Ok(Self {
            line: ApiConnection {
                dial: dial(runtime.handle().clone()),
                tls,
                name,
                sender: tokio::sync::Mutex::default(),
            },
            authorization,
            authority,
            prefix: access.prefix.clone(),
            runtime: Some(runtime),
        })
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Option<(&str, &Bytes)>,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{}{path}", self.authority, self.prefix))
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, concat!("imgctl/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let bytes = match body {
            Some((media_type, bytes)) => {
                request = request.header(header::CONTENT_TYPE, media_type);
                bytes.clone()
            }
            None => Bytes::new(),
        };
        request.body(Full::new(bytes))
    }

    /// Sends a request; if it certainly did not arrive, sends it once more on a new connection.
    fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Option<(&str, &Bytes)>,
    ) -> Result<Reply, RequestError> {
        let mut is_second = false;
        loop {
            let request = self.request(method, path, body).map_err(|error| RequestError {
                error: Error::usage(format!("`{path}` is not a path of the API")).caused_by(error),
                was_sent: false,
            })?;
            let Some(runtime) = &self.runtime else {
                let error = Error::failed("the client is closed");
                return Err(RequestError { error, was_sent: false });
            };
            match runtime.block_on(self.line.ask(request)) {
                Err(silence) if !silence.was_sent && !is_second => is_second = true,
                outcome => return outcome,
            }
        }
    }

    /// Performs a read; retries while the server is busy, and once if it is unavailable.
    fn read(&self, path: &str) -> Answer<Bytes> {
        let mut tries = 1;
        loop {
            let error = match self.ask(&Method::GET, path, None) {
                Ok(reply) if reply.code == 200 => return Ok(reply.body),
                Ok(reply) => refusal(&reply),
                Err(silence) => silent(&silence),
            };
            let pause = match error.code {
                429 => error.retry_after.unwrap_or(1).min(LONGEST_PAUSE),
                // The server is starting or stopping, or a connection was lost.
                0 | 502..=504 if tries == 1 => 1,
                _ => return Err(error),
            };
            if tries == TRIES {
                return Err(error);
            }
            tries += 1;
            std::thread::sleep(Duration::from_secs(pause));
        }
    }

    fn write(&self, method: &Method, path: &str, media_type: &str, body: &Value) -> Answer<Value> {
        let bytes = match body {
            Value::Null => Bytes::new(),
            body => Bytes::from(body.to_string()),
        };
        let body = Some((media_type, &bytes)).filter(|_| !bytes.is_empty());
        match self.ask(method, path, body) {
            Ok(reply) if (200..300).contains(&reply.code) => parsed(&reply.body),
            Ok(reply) => Err(refusal(&reply)),
            Err(silence) => Err(silent(&silence)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Api for Client {
    fn raw(&self, path: &str) -> Answer<Vec<u8>> {
        self.read(path).map(Vec::from)
    }

    fn get(&self, path: &str) -> Answer<Value> {
        parsed(&self.read(path)?)
    }

    fn list(&self, path: &str) -> Answer<Vec<Value>> {
        answers::list(path, |page| self.read(page))
    }

    fn create(&self, path: &str, object: &Value) -> Answer<Value> {
        self.write(&Method::POST, path, "application/json", object)
    }

    fn replace(&self, path: &str, object: &Value) -> Answer<Value> {
        self.write(&Method::PUT, path, "application/json", object)
    }

    fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> Answer<Value> {
        let media_type = match kind {
            PatchKind::Json => "application/json-patch+json",
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::Strategic => "application/strategic-merge-patch+json",
        };
        self.write(&Method::PATCH, path, media_type, patch)
    }

    fn delete(&self, path: &str, options: &Value) -> Answer<Value> {
        self.write(&Method::DELETE, path, "application/json", options)
    }
}

fn silent(silence: &RequestError) -> ApiError {
    ApiError { message: silence.error.to_string(), ..ApiError::default() }
}

/// Converts a `Status` or any other error response.
fn refusal(reply: &Reply) -> ApiError {
    let status = parsed(&reply.body).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let details = &status["details"];
    let causes = details["causes"].as_array().into_iter().flatten();
    let header = reply.headers.get(header::RETRY_AFTER);
    let header = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let message = match status["message"].as_str() {
        Some(message) => message.to_owned(),
        None => {
            let body = reply.body.get(..reply.body.len().min(4096));
            String::from_utf8_lossy(body.unwrap_or_default()).trim().to_owned()
        }
    };
    ApiError {
        code: reply.code,
        reason: text(&status["reason"]),
        message,
        causes: causes.map(|cause| (text(&cause["reason"]), text(&cause["message"]))).collect(),
        retry_after: details["retryAfterSeconds"].as_u64().or(header),
        hints: Vec::new(),
    }
}
