//! Registries that refuse: each refusal has its exit code and says who refused what, with whose
//! credentials, and what to do.

use std::time::{Duration, Instant};

use crate::common::proxy::{Answer, Fault};
use crate::registry_faults::bench::{Bench, DENIED, NETWORK, NOT_FOUND, says};
use crate::registry_faults::redirects::with_login;

const TAG: &str = "/v2/team/app/manifests/v1";

#[test]
fn each_refusal_says_who_refused_what() {
    let bench = Bench::new();
    let repository = bench.repository();
    let said = r#"{"errors":[{"code":"DENIED","message":"not \u001b[31mfor you"}]}"#;
    let login = format!("imgctl login {}", bench.proxy.host);
    let basic = ("WWW-Authenticate", "Basic realm=\"x\"");
    for (status, headers, code, words) in [
        ("401 Unauthorized", &[basic][..], DENIED, &["no credentials", &login][..]),
        ("401 Unauthorized", &[], DENIED, &["401", "asked for no credentials", &login]),
        (
            "403 Forbidden",
            &[],
            DENIED,
            &["403", "asked for no credentials", "DENIED: not [31mfor you"],
        ),
        ("404 Not Found", &[], NOT_FOUND, &["404"]),
        (
            "429 Too Many Requests",
            &[("Retry-After", "0")],
            NETWORK,
            &["429", "tried 2 times", "hint:"],
        ),
        ("500 Internal Server Error", &[], NETWORK, &["500", "tried 2 times"]),
        ("503 Service Unavailable", &[], NETWORK, &["503", "tried 2 times"]),
        ("418 I'm a teapot", &[], NETWORK, &["418"]),
    ] {
        for (path, about) in [(TAG, "v1"), ("/v2/team/app/blobs/", "blob sha256:")] {
            bench.proxy.on("GET", path, Fault::answer(status, headers, said));
            bench.refuses(status, code, &[&[&*repository, about], words].concat());
            bench.proxy.behave();
        }
    }
}

#[test]
fn a_refusal_names_where_the_credentials_come_from() {
    let bench = with_login();
    let repository = bench.repository();
    let file = bench.env.path("auth.json");
    let file = file.to_str().unwrap();
    bench.proxy.on("GET", TAG, Fault::answer("403 Forbidden", &[], ""));
    let ran = bench.pull(["--authfile=auth.json"]).fails(DENIED);
    says("403 before a login", &ran, &[&repository, "asked for no credentials"]);
    bench.proxy.behave();
    let forbid = Fault::edit(|request, answer| {
        if request.header("authorization").is_some() {
            *answer = Answer::new("403 Forbidden", &[], "");
        }
    });
    bench.proxy.on("GET", TAG, forbid);
    let ran = bench.pull(["--authfile=auth.json"]).fails(DENIED);
    says("403", &ran, &[&repository, "auth.json"]);
    bench.proxy.behave();
    // A wrong password of each source.
    let ran = bench.pull(["--creds=me:wrong-hidden"]).fails(DENIED);
    says("--creds", &ran, &[&repository, "the command line", "hint:"]);
    assert!(!ran.stderr().contains("wrong-hidden"));
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text.replace("bWU6", "eGU6")).unwrap();
    let ran = bench.pull(["--authfile=auth.json"]).fails(DENIED);
    says("another user", &ran, &[&repository, "auth.json", "hint:"]);
    bench.assert_nothing_left();
}

#[test]
fn files_of_credentials_that_are_wrong_are_named() {
    let bench = with_login();
    for (what, text) in [
        ("not JSON", "{\"auths\":"),
        ("not base64", &format!("{{\"auths\":{{\"{}\":{{\"auth\":\"%%%\"}}}}}}", bench.proxy.host)),
        ("a directory", ""),
    ] {
        let file = bench.env.path(format!("wrong-{}.json", what.replace(' ', "-")));
        match text {
            "" => std::fs::create_dir(&file).unwrap(),
            text => std::fs::write(&file, text).unwrap(),
        }
        let flag = format!("--authfile={}", file.display());
        let ran = bench.pull([flag]);
        assert!(!ran.success(), "{what}");
        says(what, &ran, &[file.to_str().unwrap()]);
        assert!(!ran.stderr().contains("%%%"), "{}", ran.report());
    }
    bench.assert_nothing_left();
}

#[test]
fn a_retry_after_is_obeyed_and_the_pull_finishes() {
    let bench = Bench::new();
    let retry_after = [("Retry-After", "1")];
    let fault = Fault::answer("429 Too Many Requests", &retry_after, "");
    bench.proxy.on_first(1, "GET", "/manifests/v1", fault.clone());
    bench.proxy.on_first(1, "GET", "/blobs/", fault);
    let begun = Instant::now();
    bench.pulls(&[]);
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

#[test]
fn refusals_that_pass_are_outlived() {
    let bench = Bench::new();
    for status in ["502 Bad Gateway", "503 Service Unavailable"] {
        for path in ["/manifests/v1", "/blobs/"] {
            bench.proxy.on_first(1, "GET", path, Fault::answer(status, &[], ""));
        }
    }
    bench.proxy.on_first(2, "GET", "/blobs/", Fault::Close);
    bench.pulls(&["--unpack"]);
}

#[test]
fn a_registry_that_is_not_there_is_named() {
    let bench = Bench::new();
    bench.proxy.on("GET", "/", Fault::Close);
    let host = bench.proxy.host.clone();
    bench.refuses("closed at once", NETWORK, &["team/app", &host]);
}
