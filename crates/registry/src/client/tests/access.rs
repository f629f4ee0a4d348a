//! Which servers receive our credentials: tokens and token servers, scripted by a fake.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::fake::{Answer, Fake};
use super::*;
use crate::credentials::Secret;

pub(super) fn me() -> Option<Login> {
    Some(Login::Password { user: "me".to_owned(), password: Secret::new("hunter2") })
}

fn challenge(realm: &str, rest: &str) -> Answer {
    let value = format!("Bearer realm=\"{realm}\",service=\"the service\"{rest}");
    Answer::new("401 Unauthorized", &[("WWW-Authenticate", &value)], b"")
}

/// Starts a registry with its own token server. `admits` decides by token and target.
fn guarded(admits: impl Fn(&str, &str) -> bool + Send + Sync + 'static) -> Fake {
    let tokens = AtomicUsize::new(0);
    Fake::start(move |request| {
        let host = request.header("host").unwrap();
        if request.target.starts_with("/token") {
            let number = tokens.fetch_add(1, Ordering::Relaxed) + 1;
            return Answer::json(&format!(
                r#"{{"access_token":"token-{number}","expires_in":300}}"#
            ));
        }
        let token = request.header("authorization").unwrap_or_default();
        let token = token.strip_prefix("Bearer ").unwrap_or_default();
        if !admits(token, &request.target) {
            return challenge(&format!("http://{host}/token"), ",scope=\"repository:app:pull\"");
        }
        Answer::new("200 OK", &[], b"content")
    })
}

#[test]
fn a_token_is_fetched_once_and_anew_when_it_is_too_old() {
    let uses = AtomicUsize::new(0);
    let fake = guarded(move |token, _| match token {
        "token-1" => uses.fetch_add(1, Ordering::Relaxed) < 3,
        "token-2" => true,
        _ => false,
    });
    let repository = on(&client(me()), &fake.host, "app");
    for _ in 0..5 {
        assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    }
    let tokens = fake.asked("GET", "/token");
    assert_eq!(tokens.len(), 2);
    assert_eq!(tokens[0].header("authorization"), Some("Basic bWU6aHVudGVyMg=="));
    assert_eq!(
        tokens[0].target,
        "/token?service=the+service&scope=repository%3Aapp%3Apull&account=me"
    );
    // One without a token, three with the first, one refused, two with the second.
    assert_eq!(fake.asked("GET", "/blobs/").len(), 1 + 3 + 1 + 2);
}

#[test]
fn an_anonymous_token_does_too() {
    let fake = guarded(|token, _| token == "token-1");
    let repository = on(&client(None), &fake.host, "app");
    assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    assert_eq!(fake.asked("GET", "/token")[0].header("authorization"), None);
}

#[test]
fn an_identity_token_is_posted() {
    let fake = guarded(|token, _| token == "token-1");
    let login = Login::Identity(Secret::new("refresh&me"));
    let repository = on(&client(Some(login)), &fake.host, "app");
    assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    let posted = &fake.asked("POST", "/token")[0];
    assert_eq!(posted.target, "/token");
    assert_eq!(
        String::from_utf8_lossy(&posted.body),
        "grant_type=refresh_token&service=the+service&client_id=imgctl\
         &scope=repository%3Aapp%3Apull&refresh_token=refresh%26me"
    );
}

#[test]
fn a_bearer_token_of_ours_is_sent_as_it_is() {
    let fake = guarded(|token, _| token == "mine");
    let login = Login::Bearer(Secret::new("mine"));
    let repository = on(&client(Some(login)), &fake.host, "app");
    assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    assert!(fake.asked("GET", "/token").is_empty());
}

#[test]
fn a_mount_asks_for_both_repositories_at_once() {
    let fake = Fake::start(|request| {
        let host = request.header("host").unwrap();
        if request.target.starts_with("/token") {
            return Answer::json(r#"{"token":"t"}"#);
        }
        match (request.header("authorization"), request.method.as_str()) {
            (None, _) => challenge(&format!("http://{host}/token"), ""),
            (_, "HEAD") => Answer::not_found(),
            _ => Answer::new("201 Created", &[], b""),
        }
    });
    let repository = on(&client(me()), &fake.host, "app");
    assert_eq!(push(&repository, b"content", &["donor"]).unwrap(), Pushed::Mounted);
    let tokens = fake.asked("GET", "/token");
    assert_eq!(tokens.len(), 1);
    assert!(
        tokens[0]
            .target
            .contains("scope=repository%3Aapp%3Apull%2Cpush&scope=repository%3Adonor%3Apull"),
        "{}",
        tokens[0].target
    );
}

#[test]
fn a_refusal_names_the_source_and_hides_the_secret() {
    for (status, kind) in [
        ("401 Unauthorized", Kind::Denied),
        ("403 Forbidden", Kind::Denied),
        ("503 Service Unavailable", Kind::Network),
    ] {
        let fake = Fake::start(move |request| {
            let host = request.header("host").unwrap();
            if request.target.starts_with("/token") {
                Answer::new(
                    status,
                    &[],
                    br#"{"errors":[{"code":"UNAUTHORIZED","message":"wrong"}]}"#,
                )
            } else {
                challenge(&format!("http://{host}/token"), "")
            }
        });
        let error = on(&client(me()), &fake.host, "app").document(&tag("v1")).unwrap_err();
        let text = format!("{error:?} {:?}", error.hints());
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains("UNAUTHORIZED: wrong") && !text.contains("hunter2"), "{text}");
        if kind == Kind::Denied {
            assert!(text.contains("the command line") && text.contains("imgctl login"), "{text}");
        }
    }
}

#[test]
fn token_servers_that_are_not_safe_are_not_asked() {
    let thief = Fake::start(|_| Answer::json(r#"{"token":"t"}"#));
    let port = thief.host.rsplit(':').next().unwrap().to_owned();
    for realm in [
        format!("http://localhost:{port}/token"),
        format!("http://me@{}/token", thief.host),
        format!("ftp://{}/token", thief.host),
        "//token".to_owned(),
    ] {
        let asked = realm.clone();
        let fake = Fake::start(move |_| challenge(&asked, ""));
        let error = on(&client(me()), &fake.host, "app").document(&tag("v1")).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{realm}: {error}");
        assert!(error.to_string().contains("is not trusted"), "{error}");
    }
    assert!(thief.log.lock().unwrap().is_empty());
}

#[test]
fn a_public_registry_cannot_send_our_password_to_a_private_address() {
    let client = client(me());
    let mut public = endpoint("registry.example", "app");
    public.insecure = false;
    let place = client.place(&public, &public.host, false).unwrap();
    for realm in [
        "https://127.0.0.1:9/token",
        "https://10.0.0.1/",
        "https://169.254.169.254/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://localhost/",
    ] {
        let credential =
            crate::credentials::Credential { login: me().unwrap(), source: "here".to_owned() };
        let fetched = client.shared.run(async {
            let scopes = Scopes::default();
            let token = auth::fetch_token(&place, realm, None, &scopes, Some(&credential)).await;
            Ok(token.unwrap_err().error)
        });
        let error = fetched.unwrap();
        assert!(error.to_string().contains("private address"), "{realm}: {error}");
    }
}

#[test]
fn credentials_stay_with_the_registry() {
    let store = Fake::start(|_| Answer::new("200 OK", &[], b"content"));
    let to = format!("http://{}/x?signature=hidden", store.host);
    let fake = Fake::start(move |request| match request.header("authorization") {
        None => Answer::new("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=x")], b""),
        Some(_) if request.method == "POST" => {
            Answer::new("202 Accepted", &[("Location", &to)], b"")
        }
        Some(_) if request.method == "HEAD" => Answer::not_found(),
        Some(_) => Answer::new("307 Temporary Redirect", &[("Location", &to)], b""),
    });
    let repository = on(&client(me()), &fake.host, "app");
    assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    assert_eq!(push(&repository, b"content", &[]).unwrap(), Pushed::Uploaded);
    let log = store.log.lock().unwrap();
    assert_eq!(log.len(), 2);
    assert!(log.iter().all(|request| request.header("authorization").is_none()), "{log:?}");
    assert!(log[1].target.starts_with("/x?signature=hidden&digest=sha256"), "{log:?}");
}

#[test]
fn proxies_are_used_but_not_on_this_machine() {
    let proxy = Fake::start(|_| Answer::new("200 OK", &[], b"content"));
    let through = |no_proxy: &str| {
        let variables = [
            ("HTTP_PROXY", "http://127.0.0.1:9"),
            ("http_proxy", &format!("http://me:pw@{}", proxy.host)),
            ("HTTPS_PROXY", "http://127.0.0.1:9"),
            ("NO_PROXY", no_proxy),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let options = ClientOptions {
            proxies: variables.to_vec(),
            attempts: Some(1),
            ..ClientOptions::default()
        };
        assert!(!format!("{options:?}").contains("pw"));
        Client::with_pace(options, quick())
    };
    // Nothing listens at this address: only the proxy knows the registry. TLS is tried before plain
    // HTTP.
    let repository = on(&through(""), "192.0.2.1:5000", "app");
    assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    let asked = proxy.asked("GET", "http://192.0.2.1:5000/v2/app/blobs/");
    assert_eq!(asked[0].header("proxy-authorization"), Some("Basic bWU6cHc="));
    let fake = Fake::start(|_| Answer::new("200 OK", &[], b"nearby!"));
    let repository = on(&through(""), &fake.host, "app");
    assert_eq!(read(&repository, &blob(b"nearby!"), 0).unwrap(), b"nearby!");
    assert_eq!(proxy.asked("GET", "/blobs/").len(), 1);

    let options = ClientOptions {
        proxies: vec![("https_proxy".to_owned(), "http://me:pw@[".to_owned())],
        ..ClientOptions::default()
    };
    let client = Client::with_pace(options, quick());
    let error = client.place(&endpoint("192.0.2.1", "app"), "192.0.2.1", false).err().unwrap();
    assert!(
        error.to_string().contains("https_proxy") && !error.to_string().contains("pw"),
        "{error}"
    );
}
