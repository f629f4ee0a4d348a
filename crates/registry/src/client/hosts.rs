//! State that all requests of one client share: the runtime, connections, and facts about each host.
//! Opens another host of the cluster as a registry to read from.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue, Method, StatusCode};
use reqwest::Url;
use tokio::runtime::Runtime;

use crate::client::challenge::Auth;
use crate::client::failure::Failure;
use crate::client::http::Pace;
use crate::client::resolver::{Guard, Hickory, Names};
use crate::client::{ClientOptions, Inner, Repository};
use crate::registries::{Certificates, Endpoint};
use crate::tls;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};

/// Name of [`HUB_ENDPOINT`] for users and in credential files.
const HUB: &str = "docker.io";
const HUB_ENDPOINT: &str = "registry-1.docker.io";
/// Maximum number of pieces of large blobs that are in memory or being fetched.
const PIECES: usize = 8;
/// Time for which an unreachable host is tried last.
const DOWN: Duration = Duration::from_secs(60);

/// Properties that connections must share to be interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pool {
    /// Accepts any certificate.
    pub(super) insecure: bool,
    /// Names must not resolve to private addresses.
    pub(super) public: bool,
    pub(super) certificates: Certificates,
}

/// State shared by all repositories of one client.
pub(super) struct Shared {
    pub(super) options: ClientOptions,
    pub(super) pace: Pace,
    runtime: OnceLock<Runtime>,
    starting: Mutex<()>,
    pub(super) names: Arc<Names>,
    connections: Mutex<HashMap<Pool, reqwest::Client>>,
    hosts: Mutex<HashMap<(Pool, String, bool), Arc<Host>>>,
    /// One permit for each of [`PIECES`].
    pub(super) pieces: Arc<tokio::sync::Semaphore>,
}

impl Drop for Shared {
    /// Shuts down without waiting: the last owner may be a task of this or another runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    pub(super) fn new(options: ClientOptions, pace: Pace) -> Self {
        Self {
            options,
            pace,
            runtime: OnceLock::new(),
            starting: Mutex::new(()),
            names: Names::new(Arc::new(Hickory::default())),
            connections: Mutex::default(),
            hosts: Mutex::default(),
            pieces: Arc::new(tokio::sync::Semaphore::new(PIECES)),
        }
    }

    /// Returns the runtime and starts it on first use.
    pub(super) fn runtime(&self) -> Result<&Runtime> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("registry")
            .enable_all()
            .build()
            .doing(|| "cannot start the network runtime".to_owned())?;
        Ok(self.runtime.get_or_init(|| runtime))
    }

    /// Runs a request to completion in the calling thread, which must not be a runtime thread.
    pub(super) fn run<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime()?.block_on(future)
    }

    /// Returns a pool of connections.
    pub(super) fn connection(&self, pool: Pool) -> Result<reqwest::Client> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connections.get(&pool) {
            return Ok(connection.clone());
        }
        let builder = tls::builder_for(&pool.certificates, pool.insecure)?;
        let guard = Guard {
            names: Arc::clone(&self.names),
            // The operator decides where the name of a proxy leads.
            exempt: pool.public.then(|| tls::proxy_hosts(&self.options.proxies)),
        };
        let connection = tls::with_proxies(builder, &self.options.proxies)?
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .tcp_nodelay(true)
            .dns_resolver(Arc::new(guard))
            .connect_timeout(self.pace.connect)
            .build()
            .map_err(|error| Error::failed("cannot make an HTTP client").caused_by(error))?;
        connections.insert(pool, connection.clone());
        Ok(connection)
    }

    /// Returns the state of an endpoint's host. The state of the host that was `asked` for is
    /// separate, so that a mirror never receives its credentials.
    pub(super) fn host(&self, endpoint: &Endpoint, asked: bool) -> Result<Arc<Host>> {
        let insecure = match self.options.tls_verify {
            Some(verify) => !verify,
            None => endpoint.insecure,
        };
        let pool = Pool { insecure, public: false, certificates: endpoint.certificates.clone() };
        let key = (pool.clone(), endpoint.host.clone(), asked);
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(&key) {
            return Ok(Arc::clone(host));
        }
        let host = Arc::new(self.new_host(&endpoint.host, pool, asked, Auth::default())?);
        hosts.insert(key, Arc::clone(&host));
        Ok(host)
    }

    /// Returns the state of a host that nothing is known about yet.
    pub(super) fn new_host(&self, name: &str, pool: Pool, asked: bool, auth: Auth) -> Result<Host> {
        Ok(Host {
            name: name.to_owned(),
            insecure: pool.insecure,
            certificates: pool.certificates.clone(),
            connection: self.connection(pool)?,
            asked,
            base: tokio::sync::OnceCell::new(),
            auth,
            down: Mutex::new(None),
        })
    }

    /// Returns the state of a host that speaks plain HTTP and knows `token`.
    pub(super) fn peer(&self, name: &str, token: &str) -> Result<Arc<Host>> {
        let pool = Pool { insecure: true, public: false, certificates: Certificates::default() };
        let mut host = self.new_host(name, pool, true, Auth::with_token(token)?)?;
        host.base = host.url("http")?.into();
        Ok(Arc::new(host))
    }
}

/// One registry host.
pub(super) struct Host {
    /// `host[:port]`.
    pub(super) name: String,
    pub(super) insecure: bool,
    pub(super) certificates: Certificates,
    pub(super) connection: reqwest::Client,
    /// Whether this is the requested registry itself, not a mirror or another endpoint of it.
    pub(super) asked: bool,
    base: tokio::sync::OnceCell<Url>,
    pub(super) auth: Auth,
    down: Mutex<Option<Instant>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Host {
    /// Returns the name under which its credentials are stored.
    pub(super) fn registry(&self) -> &str {
        if self.name == HUB_ENDPOINT { HUB } else { &self.name }
    }

    /// Returns `scheme://host/`. Probes the scheme of an insecure host once.
    pub(super) async fn base(&self, pace: &Pace) -> Result<&Url, Failure> {
        self.base
            .get_or_try_init(async || {
                let secure = self.url("https")?;
                if !self.insecure {
                    return Ok(secure);
                }
                let plain = self.url("http")?;
                if is_loopback(&secure) {
                    // A TLS server answers plain HTTP with 400, if at all.
                    match self.probe(&plain, pace).await {
                        Ok(status) if status != StatusCode::BAD_REQUEST => Ok(plain),
                        other => match self.probe(&secure, pace).await {
                            Ok(_) => Ok(secure),
                            Err(_) if other.is_ok() => Ok(plain),
                            Err(_) => Err(other
                                .err()
                                .unwrap_or_else(|| Error::failed("no scheme is spoken").into())),
                        },
                    }
                } else {
                    match self.probe(&secure, pace).await {
                        Ok(_) => Ok(secure),
                        Err(failure) => match self.probe(&plain, pace).await {
                            Ok(_) => Ok(plain),
                            Err(_) => Err(failure),
                        },
                    }
                }
            })
            .await
    }

    fn url(&self, scheme: &str) -> Result<Url> {
        let url = Url::parse(&format!("{scheme}://{}/", self.name)).ok();
        // The other parts of a URL are not valid in a host name.
        url.filter(|url| url.path() == "/" && url.username().is_empty() && url.query().is_none())
            .ok_or_else(|| Error::usage(format!("`{}` is not a registry's address", self.name)))
    }

    async fn probe(&self, base: &Url, pace: &Pace) -> Result<StatusCode, Failure> {
        let url = base
            .join("v2/")
            .map_err(|_| Error::usage(format!("`{}` is not a registry's address", self.name)))?;
        let asked = self.connection.request(Method::GET, url).send();
        match tokio::time::timeout(pace.answer, asked).await {
            Ok(Ok(response)) => Ok(response.status()),
            Ok(Err(error)) => Err(Failure::transport(&self.name, &error)),
            Err(_) => Err(Failure::silence(&self.name, pace.answer)),
        }
    }

    /// Returns whether the host was unreachable recently.
    pub(super) fn is_down(&self) -> bool {
        let down = *self.down.lock().unwrap_or_else(PoisonError::into_inner);
        down.is_some_and(|since| since.elapsed() < DOWN)
    }

    /// Records whether the host is reachable.
    pub(super) fn note(&self, error: Option<&Error>) {
        let down = error.is_some_and(|error| error.kind() == Kind::Network);
        *self.down.lock().unwrap_or_else(PoisonError::into_inner) = down.then(Instant::now);
    }
}

/// One repository at one host.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) shared: Arc<Shared>,
    pub(super) host: Arc<Host>,
    /// Name of the repository at this host; empty for requests that concern no repository.
    pub(super) repository: String,
    /// Path of the API.
    pub(super) path: String,
    /// Headers of every request to the host itself.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) by_digest: bool,
    pub(super) by_tag: bool,
    /// Whether this is a mirror with another place to fall back to.
    pub(super) mirror: bool,
}

impl Place {
    /// Returns `host/repository`, for messages.
    pub(super) fn name(&self) -> String {
        if self.repository.is_empty() {
            return self.host.registry().to_owned();
        }
        format!("{}/{}", self.host.registry(), self.repository)
    }
}

/// Returns whether `host[:port]` names this machine.
pub(super) fn is_local_name(host: &str) -> bool {
    Url::parse(&format!("https://{host}/")).is_ok_and(|url| is_loopback(&url))
}

/// Returns whether a URL names this machine.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

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
                path: "v2".to_owned(),
                headers: Vec::new(),
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
