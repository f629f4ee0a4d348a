//! Token servers that lie, and passwords and tokens that must not be seen.

use std::os::unix::fs::PermissionsExt;

use crate::common::Ran;
use crate::common::proxy::{Answer, Fault, Proxy};
use crate::registry_faults::bench::{Bench, DENIED, says};

const PASSWORD: &str = "hunter2-hidden";
/// `me:hunter2-hidden` in base64.
const BASIC: &str = "bWU6aHVudGVyMi1oaWRkZW4=";
const TOKEN: &str = "t0ken-hidden";

/// A bench whose proxy wants a token from `realm`, with the login in `auth.json`.
fn wants_token(realm: &str) -> Bench {
    let bench = Bench::new();
    let auths = serde_json::json!({"auths": {bench.proxy.host.as_str(): {"auth": BASIC}}});
    let file = bench.env.write("auth.json", auths.to_string());
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    let realm = realm.replace("HOST", &bench.proxy.host);
    let challenge =
        format!("Bearer realm=\"{realm}\",service=\"s\",scope=\"repository:team/app:pull\"");
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH"] {
        let challenge = challenge.clone();
        let check = move |request: &crate::common::proxy::Request, answer: &mut Answer| {
            let given = request.header("authorization").unwrap_or_default();
            if given != format!("Bearer {TOKEN}") {
                let headers = [("WWW-Authenticate", challenge.as_str())];
                *answer = Answer::new("401 Unauthorized", &headers, "");
            }
        };
        bench.proxy.on(method, "^/v2/", Fault::edit(check));
    }
    bench
}

fn token() -> String {
    format!(r#"{{"token":"{TOKEN}","expires_in":300}}"#)
}

#[track_caller]
fn tells_nothing(ran: &Ran) {
    let said = ran.report();
    for hidden in [PASSWORD, BASIC, "aHVudGVyMi1oaWRkZW4", TOKEN] {
        assert!(!said.contains(hidden), "{hidden} in\n{said}");
    }
}

#[test]
fn the_most_talkative_log_shows_no_secret() {
    let bench = wants_token("http://HOST/token");
    bench.proxy.on("GET", "^/token", Fault::answer("200 OK", &[], token()));
    let flags = ["--authfile=auth.json", "--log-level=trace"];
    let ran = bench.pull(flags).ok();
    assert!(ran.stderr().contains("TRACE"), "it logs nothing");
    tells_nothing(&ran);
    let asked = bench.proxy.requests();
    let of_token = asked.iter().find(|request| request.path.starts_with("/token"));
    let shown = of_token.unwrap().header("authorization").unwrap();
    assert_eq!(shown, format!("Basic {BASIC}"));
    for line in asked.iter().map(crate::common::proxy::Request::line) {
        assert!(!line.contains("hidden"), "{line}");
    }
    // Pushes, refusals and JSON too.
    let push = ["push", "--authfile=auth.json", "--log-level=trace"];
    let mut push = crate::registry_faults::bench::at(&bench.env.path("maker"), push);
    push.args(["localhost/team/app:v1", &format!("{}/team/new:v1", bench.proxy.host)]);
    push.current_dir(bench.env.path("."));
    tells_nothing(&Ran::new(push).ok());
    bench.proxy.behave();
    let echo = Fault::edit(|request, answer| {
        let shown = request.header("authorization").unwrap_or_default().to_owned();
        let challenge = [("WWW-Authenticate", "Basic realm=x")];
        *answer = Answer::new("401 Unauthorized", &challenge, "");
        if !shown.is_empty() {
            *answer = Answer::new("403 Forbidden", &[], "");
        }
    });
    bench.proxy.on("GET", "^/v2/team", echo);
    for more in [&["--json"][..], &[]] {
        let ran = bench.pull(flags.iter().chain(more)).fails(DENIED);
        tells_nothing(&ran);
    }
}

#[test]
fn a_password_that_a_registry_repeats_is_not_shown() {
    let bench = wants_token("http://HOST/token");
    let words = format!("who is me:{PASSWORD} ({BASIC})?");
    bench.proxy.on("GET", "^/token", Fault::answer("401 Unauthorized", &[], words));
    let ran = bench.pull(["--authfile=auth.json"]).fails(DENIED);
    says("refused", &ran, &[&bench.repository(), "auth.json", "hint:"]);
    tells_nothing(&ran);
}

#[test]
fn token_servers_that_lie() {
    let bench = wants_token("http://HOST/token");
    let long = format!(r#"{{"token":"{}"}}"#, "x".repeat(2 << 20));
    for (what, fault) in [
        ("not JSON", Fault::answer("200 OK", &[], "<html>")),
        ("no token", Fault::answer("200 OK", &[], "{}")),
        ("another token", Fault::answer("200 OK", &[], r#"{"token":"x"}"#)),
        ("two lines", Fault::answer("200 OK", &[], r#"{"token":"x\r\nX-Evil: 1"}"#)),
        ("a number", Fault::answer("200 OK", &[], r#"{"token":1}"#)),
        ("2 MiB", Fault::answer("200 OK", &[], long)),
        ("no end", Fault::Endless),
        ("403", Fault::answer("403 Forbidden", &[], "")),
        ("500", Fault::answer("500 Internal Server Error", &[], "")),
        ("to itself", Fault::Answer(Answer::redirect("/token"))),
        ("closed", Fault::Close),
    ] {
        bench.proxy.on("GET", "^/token", fault);
        let ran = bench.pull(["--authfile=auth.json", "--retry=1"]);
        println!("{what}: {}", ran.report());
        assert!(!ran.success(), "{what}");
        says(what, &ran, &[&bench.repository(), "v1"]);
        tells_nothing(&ran);
        bench.assert_nothing_left();
        let rest = bench.proxy.requests();
        assert!(rest.iter().all(|request| request.header("x-evil").is_none()));
        bench.proxy.forget("^/token");
    }
}

#[test]
fn a_token_server_elsewhere_is_not_told_the_password() {
    let witness = Proxy::alone("127.0.0.2");
    witness.on("GET", "/", Fault::answer("200 OK", &[], token()));
    witness.on("POST", "/", Fault::answer("200 OK", &[], token()));
    for realm in [
        format!("http://{}/token", witness.host),
        "http://me:pw@HOST/token".to_owned(),
        "file:///etc/passwd".to_owned(),
        "not an url".to_owned(),
    ] {
        let bench = wants_token(&realm);
        let ran = bench.pull(["--authfile=auth.json"]).fails(DENIED);
        says(&realm, &ran, &[&bench.repository(), "token server"]);
        tells_nothing(&ran);
        assert!(witness.requests().is_empty(), "{realm}");
        bench.assert_nothing_left();
    }
}

#[test]
fn a_redirect_of_the_token_server_takes_no_password_along() {
    let witness = Proxy::alone("127.0.0.2");
    witness.on("GET", "/", Fault::answer("200 OK", &[], token()));
    let bench = wants_token("http://HOST/token");
    let to = Answer::redirect(&format!("http://{}/token", witness.host));
    bench.proxy.on("GET", "^/token", Fault::Answer(to));
    let ran = bench.pull(["--authfile=auth.json"]);
    tells_nothing(&ran);
    for request in witness.requests() {
        assert_eq!(request.header("authorization"), None);
    }
}
