//! Credentials and hosts that must not receive them: mirrors, and names that lead into our own
//! network.

use std::net::{SocketAddr, TcpListener};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::access::me;
use super::fake::{Answer, Fake, Request};
use super::*;
use crate::client::auth;
use crate::client::resolver::Names;
use crate::credentials::Credential;

/// Resolves names that end in `.inside` to this machine, and no others.
struct Inside;

impl Resolve for Inside {
    fn resolve(&self, name: Name) -> Resolving {
        let found = if name.as_str().ends_with(".inside") {
            Ok(Box::new([SocketAddr::from(([127, 0, 0, 1], 0))].into_iter()) as Addrs)
        } else {
            Err("there is no such name".into())
        };
        Box::pin(std::future::ready(found))
    }
}

fn inside(proxies: Vec<(String, String)>) -> Client {
    let options = ClientOptions { proxies, attempts: Some(1), ..ClientOptions::default() };
    let mut shared = Shared::new(options, quick());
    shared.names = Names::new(Arc::new(Inside));
    Client { shared: Arc::new(shared) }
}

fn secure(client: &Client, host: &str) -> Place {
    let mut endpoint = endpoint(host, "app");
    endpoint.insecure = false;
    client.place(&endpoint, host, false).unwrap()
}

/// Requests a token for `place` from `realm` and returns the error.
fn token_error(client: &Client, place: &Place, realm: &str, secret: bool) -> Error {
    let credential = secret.then(|| Credential { login: me().unwrap(), source: "here".to_owned() });
    let scopes = Scopes::default();
    let fetched = client.shared.run(async {
        let token = auth::fetch_token(place, realm, None, &scopes, credential.as_ref()).await;
        Ok(token.unwrap_err().error)
    });
    fetched.unwrap()
}

#[test]
fn a_name_that_leads_inside_gets_no_password_for_a_registry_outside() {
    let client = inside(Vec::new());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let realm = format!("https://auth.inside:{}/token", listener.local_addr().unwrap().port());
    let outside = secure(&client, "registry.example");
    let error = token_error(&client, &outside, &realm, true);
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("private address"), "{error}");
    assert!(listener.accept().is_err(), "it was connected to");

    // Nothing listens there: the attempt to connect is enough.
    let nobody = "https://auth.inside:1/token";
    let error = token_error(&client, &outside, nobody, false);
    assert_eq!(error.kind(), Kind::Network, "{error}");
    let near = secure(&client, "registry.inside:1");
    let ask = Ask::new("cannot ask".to_owned(), Method::GET, String::new(), Scopes::default());
    assert!(client.shared.run(near.ask(&ask)).is_err());
    let error = token_error(&client, &near, nobody, true);
    assert_eq!(error.kind(), Kind::Network, "{error}");
}

#[test]
fn a_token_server_on_another_port_gets_no_password_in_the_clear() {
    let server = || Fake::start(|_| Answer::new("200 OK", &[], br#"{"token":"t"}"#));
    let (registry, other) = (server(), server());
    let client = client(None);
    let place = client.place(&endpoint(&registry.host, "app"), &registry.host, false).unwrap();
    let realm = |fake: &Fake| format!("http://{}/token", fake.host);
    let error = token_error(&client, &place, &realm(&other), true);
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("another port"), "{error}");
    assert!(other.log.lock().unwrap().is_empty(), "it was asked");
    // Without a password, and on the registry's own port, it is asked.
    for (fake, secret) in [(&other, false), (&registry, true)] {
        let login = || Credential { login: me().unwrap(), source: "here".to_owned() };
        let (credential, scopes) = (secret.then(login), Scopes::default());
        let realm = realm(fake);
        let asked = client.shared.run(async {
            let token = auth::fetch_token(&place, &realm, None, &scopes, credential.as_ref()).await;
            Ok(token.is_ok())
        });
        assert!(asked.unwrap(), "{realm}");
        assert_eq!(fake.asked("GET", "/token").len(), 1);
    }
}

#[test]
fn a_proxy_may_be_inside_and_makes_no_registry_a_near_one() {
    let proxy = Fake::start(|_| Answer::new("502 Bad Gateway", &[], b""));
    let port = proxy.host.rsplit(':').next().unwrap();
    let variables = [
        ("https_proxy", format!("http://proxy.inside:{port}")),
        ("no_proxy", "auth.inside:1".to_owned()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value));
    let client = inside(variables.to_vec());
    let place = secure(&client, "registry.example");
    let error = token_error(&client, &place, "https://auth.example/token", true);
    assert_eq!(error.kind(), Kind::Network, "{error}");
    assert_eq!(proxy.asked("CONNECT", "auth.example:443").len(), 1);
    let error = token_error(&client, &place, "https://auth.inside:1/token", true);
    assert!(error.to_string().contains("private address"), "{error}");
    assert_eq!(proxy.log.lock().unwrap().len(), 1);
}

#[test]
fn what_the_command_line_gives_is_not_for_mirrors() {
    let guarded = || {
        Fake::start(|request| match request.header("authorization") {
            None => Answer::new("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=x")], b""),
            Some(_) => Answer::new("200 OK", &[], b"content"),
        })
    };
    let (mirror, origin) = (guarded(), guarded());
    let client = client(me());
    let repository = behind(&client, &[&mirror.host], &origin.host, "app");
    for _ in 0..2 {
        assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    }
    let shown = |fake: &Fake| {
        let log = fake.log.lock().unwrap();
        let with = |request: &&Request| request.header("authorization").is_some();
        log.iter().filter(with).count()
    };
    assert!(!mirror.asked("GET", "/blobs/").is_empty());
    assert_eq!((shown(&mirror), shown(&origin)), (0, 2));
    // Requested by its own name, the mirror is an ordinary registry and receives credentials; as a
    // mirror it still receives none.
    let itself = on(&client, &mirror.host, "app");
    assert_eq!(read(&itself, &blob(b"content"), 0).unwrap(), b"content");
    assert_eq!(shown(&mirror), 1);
    assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    assert_eq!(shown(&mirror), 1);
}
