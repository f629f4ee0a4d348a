//! Tests of the balancer with real sockets and the TLS of API servers.

use std::net::TcpListener as StdListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Instant;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::*;

const NAME: &str = "apiserver.cluster.local";

/// A self-signed certificate and its key.
struct Identity {
    certificate: rcgen::Certificate,
    key: rcgen::KeyPair,
}

impl Identity {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        Self { certificate: made.cert, key: made.signing_key }
    }

    fn write(&self, directory: &Path) -> (PathBuf, PathBuf) {
        let (certificate, key) = (directory.join("crt"), directory.join("key"));
        std::fs::write(&certificate, self.certificate.pem()).unwrap();
        std::fs::write(&key, self.key.serialize_pem()).unwrap();
        (certificate, key)
    }

    fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain: CertificateDer<'static> = self.certificate.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(chain.clone()).unwrap();
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![chain],
                PrivateKeyDer::try_from(self.key.serialize_der()).unwrap(),
            )
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A fake API server: answers /readyz over TLS. A plaintext connection counts as a client, and gets
/// the name of the server in reply to each word.
struct ApiServer {
    address: SocketAddr,
    readyz: Arc<AtomicU16>,
    /// The server accepts connections but does not answer.
    hangs: Arc<AtomicBool>,
    /// Status for anonymous requests, unless it is 0.
    anonymous: Arc<AtomicU16>,
}

impl ApiServer {
    async fn start(name: &'static str, identity: &Identity) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            readyz: Arc::new(AtomicU16::new(200)),
            hangs: Arc::default(),
            anonymous: Arc::default(),
        };
        let acceptor = identity.acceptor();
        let (readyz, hangs, anonymous) =
            (Arc::clone(&server.readyz), Arc::clone(&server.hangs), Arc::clone(&server.anonymous));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, readyz, hangs, anonymous) = (
                    acceptor.clone(),
                    Arc::clone(&readyz),
                    Arc::clone(&hangs),
                    Arc::clone(&anonymous),
                );
                tokio::spawn(async move {
                    let mut first = [0_u8; 1];
                    if stream.peek(&mut first).await.unwrap_or(0) == 0 {
                        return;
                    }
                    if first[0] != 22 {
                        return speak(stream, name).await;
                    }
                    let Ok(mut tls) = acceptor.accept(stream).await else {
                        return;
                    };
                    let is_known = tls.get_ref().1.peer_certificates().is_some();
                    let mut request = [0_u8; 4096];
                    while let Ok(1..) = tls.read(&mut request).await {
                        if hangs.load(Ordering::Relaxed) {
                            std::future::pending::<()>().await;
                        }
                        let refusal = anonymous.load(Ordering::Relaxed);
                        let code = if !is_known && refusal != 0 {
                            refusal
                        } else {
                            readyz.load(Ordering::Relaxed)
                        };
                        let text = "[+]ping ok\n[-]etcd failed: reason withheld\n";
                        let answer = format!(
                            "HTTP/1.1 {code} Said\r\ncontent-length: {}\r\n\r\n{text}",
                            text.len()
                        );
                        if tls.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        server
    }
}

/// `SLOW` is answered late. `TICKET` is answered at once, and then again late.
const SLOW: &[u8] = b"slow";
const TICKET: &[u8] = b"ticket";
const LATE: Duration = Duration::from_secs(3);

async fn speak(mut stream: TcpStream, name: &str) {
    let mut word = [0_u8; 64];
    while let Ok(length @ 1..) = stream.read(&mut word).await {
        if &word[..length] == TICKET && stream.write_all(TICKET).await.is_err() {
            return;
        }
        if [SLOW, TICKET].contains(&&word[..length]) {
            tokio::time::sleep(LATE).await;
        }
        if stream.write_all(name.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns an address where nothing listens.
fn nobody() -> SocketAddr {
    StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn word(stream: &mut TcpStream, word: &[u8]) -> String {
    let mut answer = [0_u8; 64];
    if stream.write_all(word).await.is_err() {
        return String::new();
    }
    let length = stream.read(&mut answer).await.unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// Returns a connection with more traffic than a handshake, and the name of the server behind it.
async fn talk(address: SocketAddr) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut name = String::new();
    for _ in 0..3 {
        name = word(&mut stream, b"?").await;
    }
    (stream, name)
}

async fn ask(address: SocketAddr) -> String {
    match TcpStream::connect(address).await {
        Ok(mut stream) => word(&mut stream, b"?").await,
        Err(_) => String::new(),
    }
}

/// Asks until the answer is `wanted`, and then checks that it stays.
async fn is_answered_by(address: SocketAddr, wanted: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    let mut row = 0;
    while row < 6 {
        assert!(Instant::now() < end, "never answered by {wanted} alone");
        row = if ask(address).await == wanted { row + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_state(file: &Path, line: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if text.lines().any(|one| one.trim_end() == line) {
            return;
        }
        assert!(Instant::now() < end, "no `{line}` in\n{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct Bed {
    directory: tempfile::TempDir,
    listen: SocketAddr,
    identity: Identity,
    one: ApiServer,
    two: ApiServer,
}

impl Bed {
    async fn start() -> Self {
        let identity = Identity::new();
        let (one, two) =
            (ApiServer::start("one", &identity).await, ApiServer::start("two", &identity).await);
        Self { directory: tempfile::tempdir().unwrap(), listen: nobody(), identity, one, two }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn list(&self, text: &str) {
        let fresh = self.path("servers.new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, self.path("servers")).unwrap();
    }

    fn options(&self) -> Options {
        let (authority, _) = self.identity.write(self.directory.path());
        Options {
            listen: self.listen,
            servers: self.path("servers"),
            authority: Some(authority),
            name: Some(NAME.to_owned()),
            certificate: None,
            state: Some(self.path("state")),
            interval: Duration::from_millis(50),
            timeout: Duration::from_secs(2),
        }
    }

    async fn balance(&self, options: Options) {
        tokio::spawn(serve(options, None, std::future::pending()));
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(self.listen).await.is_err() {
            assert!(Instant::now() < end, "it does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn both(&self) -> String {
        format!("{}\n{}\n", self.one.address, self.two.address)
    }
}

fn on_threads(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn connections_go_to_servers_that_are_up_and_a_changed_list_is_noticed() {
    on_threads(async {
        let bed = Bed::start().await;
        bed.list(&format!("# ours\n{}\n{}\n", nobody(), bed.one.address));
        bed.balance(bed.options()).await;
        for _ in 0..4 {
            assert_eq!(ask(bed.listen).await, "one");
        }
        let (mut open, name) = talk(bed.listen).await;
        assert_eq!(name, "one");
        bed.list(&format!("{}\n", bed.two.address));
        is_answered_by(bed.listen, "two").await;
        // The connection to the removed server is closed.
        assert_eq!(open.read(&mut [0]).await.unwrap_or(0), 0);
        // A list that is temporarily broken changes nothing.
        bed.list("nonsense\n");
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert_eq!(ask(bed.listen).await, "two");
    });
}

#[test]
fn an_unready_server_gets_no_connection_and_those_that_are_open_end() {
    on_threads(async {
        let bed = Bed::start().await;
        bed.list(&bed.both());
        bed.balance(bed.options()).await;
        let (mut open, name) = talk(bed.listen).await;
        let (bad, good) = match name.as_str() {
            "one" => (&bed.one, "two"),
            _ => (&bed.two, "one"),
        };
        // The server still accepts connections and speaks TLS, but its etcd is unreachable.
        bad.readyz.store(500, Ordering::Relaxed);
        is_answered_by(bed.listen, good).await;
        assert_eq!(open.read(&mut [0]).await.unwrap_or(0), 0, "it was left open");
        let state = format!("{} unready 0 /readyz answers 500 (etcd failed)", bad.address);
        until_state(&bed.path("state"), &state).await;
        // No server can serve: an unready one is better than a refusal.
        bed.one.readyz.store(500, Ordering::Relaxed);
        bed.two.readyz.store(500, Ordering::Relaxed);
        let other = match good {
            "one" => bed.one.address,
            _ => bed.two.address,
        };
        let state = format!("{other} unready 0 /readyz answers 500 (etcd failed)");
        until_state(&bed.path("state"), &state).await;
        let mut open = TcpStream::connect(bed.listen).await.unwrap();
        assert!(!word(&mut open, b"?").await.is_empty());
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!word(&mut open, b"?").await.is_empty(), "it was cut");
        bad.readyz.store(200, Ordering::Relaxed);
        until_state(&bed.path("state"), &format!("{} ready 0", bad.address)).await;
    });
}

#[test]
fn a_server_that_hangs_is_unready() {
    on_threads(async {
        let bed = Bed::start().await;
        bed.list(&bed.both());
        let mut options = bed.options();
        options.timeout = Duration::from_millis(500);
        bed.balance(options).await;
        bed.one.hangs.store(true, Ordering::Relaxed);
        let state = format!("{} unready 0 no answer to /readyz within 0.5 s", bed.one.address);
        until_state(&bed.path("state"), &state).await;
        is_answered_by(bed.listen, "two").await;
    });
}

#[test]
fn a_server_that_is_taken_out_is_left_alone_without_cutting_an_answer_and_comes_back() {
    on_threads(async {
        let bed = Bed::start().await;
        bed.list(&format!("{}\n", bed.one.address));
        bed.balance(bed.options()).await;
        let (mut idle, _) = talk(bed.listen).await;
        let (mut waits, _) = talk(bed.listen).await;
        waits.write_all(SLOW).await.unwrap();
        // As in TLS 1.3: the tickets arrive after the request has been sent.
        let mut young = TcpStream::connect(bed.listen).await.unwrap();
        assert_eq!(word(&mut young, b"?").await, "one");
        assert_eq!(word(&mut young, TICKET).await, "ticket");
        until_state(&bed.path("state"), &format!("{} ready 3", bed.one.address)).await;
        bed.list(&format!("{}\n#out {} 600\n", bed.two.address, bed.one.address));
        assert_eq!(idle.read(&mut [0]).await.unwrap_or(0), 0, "it was left open");
        let mut answer = [0_u8; 3];
        waits.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"one", "the answer was cut");
        young.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"one", "the answer behind the ticket was cut");
        until_state(&bed.path("state"), &format!("{} out 0", bed.one.address)).await;
        is_answered_by(bed.listen, "two").await;
        let first = std::fs::read_to_string(bed.path("state")).unwrap();
        assert!(first.starts_with(&format!("pid {}\n", std::process::id())));
        // The server is better than an unready one, and returns to service when its time is up.
        bed.two.readyz.store(500, Ordering::Relaxed);
        is_answered_by(bed.listen, "one").await;
        bed.list(&format!("{}\n#out {} 1\n", bed.two.address, bed.one.address));
        until_state(&bed.path("state"), &format!("{} ready 0", bed.one.address)).await;
    });
}

#[test]
fn who_does_not_answer_strangers_is_asked_with_a_certificate() {
    on_threads(async {
        let bed = Bed::start().await;
        bed.list(&bed.both());
        for server in [&bed.one, &bed.two] {
            server.anonymous.store(401, Ordering::Relaxed);
        }
        // Unready, but only reports this to authenticated clients.
        bed.one.readyz.store(500, Ordering::Relaxed);
        let mut options = bed.options();
        let pair = bed.identity.write(bed.directory.path());
        let certificate = bed.path("current.pem");
        options.certificate = Some((certificate.clone(), certificate.clone()));
        bed.balance(options).await;
        // Before the host has joined, it has no certificate: such a server counts as ready.
        until_state(&bed.path("state"), &format!("{} ready 0", bed.one.address)).await;
        let both = [pair.0, pair.1].map(|path| std::fs::read(path).unwrap());
        std::fs::write(&certificate, both.concat()).unwrap();
        is_answered_by(bed.listen, "two").await;
        until_state(&bed.path("state"), &format!("{} ready 0", bed.two.address)).await;
    });
}

#[test]
fn a_server_of_another_authority_is_not_ready() {
    on_threads(async {
        let bed = Bed::start().await;
        let stranger = ApiServer::start("stranger", &Identity::new()).await;
        bed.list(&format!("{}\n{}\n", stranger.address, bed.one.address));
        bed.balance(bed.options()).await;
        is_answered_by(bed.listen, "one").await;
        let end = Instant::now() + Duration::from_secs(60);
        let text = loop {
            let text = std::fs::read_to_string(bed.path("state")).unwrap_or_default();
            if text.contains(&format!("{} unready", stranger.address)) {
                break text;
            }
            assert!(Instant::now() < end, "{text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(text.contains("certificate"), "{text}");
    });
}

#[test]
fn a_busy_port_and_an_empty_list_are_named() {
    on_threads(async {
        let bed = Bed::start().await;
        bed.list("\n");
        let busy = StdListener::bind("127.0.0.1:0").unwrap();
        let address = busy.local_addr().unwrap();
        let mut options = bed.options();
        options.listen = address;
        let error = serve(options, None, std::future::pending()).await.unwrap_err();
        assert!(error.message().contains(&address.to_string()), "{error:?}");
        let error = serve(bed.options(), None, std::future::pending()).await.unwrap_err();
        assert!(error.message().contains("lists no servers"), "{error:?}");
    });
}

#[test]
fn one_balancer_follows_another_and_nobody_is_refused() {
    on_threads(async {
        let bed = Bed::start().await;
        bed.list(&bed.both());
        let socket = StdListener::bind(bed.listen).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let given = socket.try_clone().unwrap();
        let first = tokio::spawn(serve(bed.options(), Some(given), async {
            let _ = stopped.await;
        }));
        let (mut open, name) = talk(bed.listen).await;
        assert!(!name.is_empty());
        let (mut waits, _) = talk(bed.listen).await;
        waits.write_all(SLOW).await.unwrap();
        until_open(&bed, 2).await;
        stop.send(()).unwrap();
        assert_eq!(open.read(&mut [0]).await.unwrap_or(0), 0, "it goes on");
        let mut answer = [0_u8; 3];
        waits.read_exact(&mut answer).await.unwrap();
        first.await.unwrap().unwrap();
        // No balancer is running, and the connection is not refused.
        let mut early = TcpStream::connect(bed.listen).await.unwrap();
        early.write_all(b"?").await.unwrap();
        let given = Some(socket.try_clone().unwrap());
        tokio::spawn(serve(bed.options(), given, std::future::pending()));
        early.read_exact(&mut answer).await.unwrap();
        // The error names a descriptor that is not a socket.
        let file = std::fs::File::open(bed.path("servers")).unwrap();
        let none = StdListener::from(std::os::fd::OwnedFd::from(file));
        let error = serve(bed.options(), Some(none), std::future::pending()).await.unwrap_err();
        assert!(error.message().contains("socket that was given"), "{error:?}");
    });
}

/// Waits until `wanted` connections are open.
async fn until_open(bed: &Bed, wanted: usize) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let text = std::fs::read_to_string(bed.path("state")).unwrap_or_default();
        let words = text.lines().skip(1).filter_map(|line| line.split(' ').nth(2));
        let open: usize = words.filter_map(|word| word.parse::<usize>().ok()).sum();
        if open == wanted {
            return;
        }
        assert!(Instant::now() < end, "{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
