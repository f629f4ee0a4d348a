//! Services and registries that fail while something is signed or pushed with its signatures: asked again
//! until `--timeout`, then named; and no name refers to what is half there.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::services::{IDENTITY, ISSUER, Services};
use super::{DENIED, NETWORK, Site};
use crate::common::Ran;
use crate::common::proxy::{Fault, Proxy, Request};

const PATHS: [(&str, &str); 3] = [
    ("/api/v2/signingCert", "certificate authority"),
    ("/api/v1/log/entries", "transparency log"),
    ("/api/v1/timestamp", "time-stamping authority"),
];

/// Signs with all services, which are reached through `proxy`.
fn sign(site: &Site, proxy: &Proxy, timeout: &str) -> Ran {
    let url = format!("http://{}", proxy.host);
    let (stamp, image) = (format!("{url}/api/v1/timestamp"), site.image());
    let words = ["sign", "--identity-token", "token", "--fulcio-url", &url, "--rekor-url", &url];
    let more = ["--timestamp-server-url", &stamp, "--timeout", timeout, &image];
    site.imgctl(&words.into_iter().chain(more).collect::<Vec<_>>())
}

/// How many artifacts refer to the image in its registry.
fn referrers(site: &Site) -> usize {
    let revisions = "docker/registry/v2/repositories/team/app/_manifests/revisions/sha256";
    // The image itself is the first.
    std::fs::read_dir(site.registry.data().join(revisions)).unwrap().count() - 1
}

#[test]
fn services_that_fail_are_asked_again_and_then_named() {
    let site = Site::new();
    let proxy = Proxy::start(site.services.url.trim_start_matches("http://"));
    let busy = || Fault::answer("429 Too Many Requests", &[("Retry-After", "0")], "later");
    for (path, name) in PATHS {
        for (fault, why) in [
            (Fault::Close, "did not answer"),
            (Fault::Stall(0), "did not answer"),
            (busy(), "429"),
            (Fault::answer("503 Service Unavailable", &[], "soon"), "503"),
        ] {
            proxy.on("POST", path, fault);
            let begun = Instant::now();
            let failed = sign(&site, &proxy, "1s").fails(NETWORK);
            assert!(begun.elapsed() < Duration::from_secs(120), "{}", failed.report());
            let said = failed.stderr();
            assert!(said.contains(name) && said.contains(why), "{}", failed.report());
            assert!(said.contains(&proxy.host), "{}", failed.report());
            assert!(said.contains("longer timeout"), "{}", failed.report());
            proxy.behave();
        }
        assert_eq!(referrers(&site), 0, "{name}");
    }
    // What passes is waited for.
    for (path, _) in PATHS {
        proxy.on_first(1, "POST", path, Fault::Close);
        proxy.on_first(2, "POST", path, busy());
    }
    sign(&site, &proxy, "30s").ok();
    assert_ne!(referrers(&site), 0);
    site.verify(&[]).ok();
}

#[test]
fn a_token_that_expires_is_named_and_leaves_nothing() {
    let site = Site::new();
    let proxy = Proxy::start(site.services.url.trim_start_matches("http://"));
    let expired = r#"{"code": 16, "message": "oidc: token is expired"}"#;
    proxy.on("POST", "/api/v2/signingCert", Fault::answer("401 Unauthorized", &[], expired));
    let failed = sign(&site, &proxy, "30s").fails(DENIED);
    assert!(failed.stderr().contains("token is expired"), "{}", failed.report());
    assert_eq!(proxy.count("POST", "/api/v2/signingCert"), 1, "it is not asked in vain");
    assert_eq!(referrers(&site), 0);
    // The proofs of a good certificate need no token: it may expire after that.
    proxy.behave();
    proxy.forget("/api/v2/signingCert");
    sign(&site, &proxy, "30s").ok();
    let with_token = proxy.requests();
    let with_token = with_token.iter().filter(|request| request.header("authorization").is_some());
    assert!(with_token.into_iter().all(|request| request.path.ends_with("signingCert")));
}

#[test]
fn no_tag_refers_to_an_image_whose_signatures_are_not_there() {
    let site = Site::new();
    let url = &site.services.url;
    let image = site.image();
    let words = ["sign", "--json", "--local", "--identity-token", "token", "--fulcio-url", url];
    let signed =
        site.imgctl(&words.into_iter().chain(["--rekor-url", url, &image]).collect::<Vec<_>>());
    let signed: Value = signed.ok().json();
    let artifact = signed[0]["signature"].as_str().unwrap().trim_start_matches("referrer ");
    let proxy = Proxy::start(&site.registry.host);
    let other = format!("{}/other/app:v1", proxy.host);
    let push = || site.imgctl(&["push", "--retry", "1", &image, &other]);
    let digest = site.digest();
    for (path, fault) in [
        (format!("/manifests/{artifact}"), Fault::answer("500 Internal Server Error", &[], "")),
        (format!("/manifests/{artifact}"), Fault::Close),
        (format!("/manifests/{artifact}"), Fault::answer("403 Forbidden", &[], "")),
    ] {
        proxy.on("PUT", &path, fault);
        let failed = push();
        assert!(!failed.success(), "{}", failed.report());
        assert!(failed.stderr().contains(artifact), "{}", failed.report());
        assert_eq!(proxy.count("PUT", "/manifests/v1"), 0, "{}", failed.report());
        proxy.behave();
        site.imgctl(&["tags", &format!("{}/other/app", proxy.host)]);
        let pulled = site.imgctl(&["inspect", &format!("docker://{other}")]);
        assert!(!pulled.success(), "{}", pulled.report());
    }
    push().ok();
    let lines: Vec<String> = proxy.requests().iter().map(Request::line).collect();
    let at =
        |end: &str| lines.iter().rposition(|line| line.starts_with("PUT") && line.ends_with(end));
    assert!(at(artifact).unwrap() < at("/v1").unwrap(), "{lines:?}");
    assert!(at(&digest).unwrap() < at(artifact).unwrap(), "{lines:?}");
    site.env.write("token", Services::token(IDENTITY, ISSUER));
    let words = ["verify", "--trusted-root", "root.json", "--certificate-identity", IDENTITY];
    let words = words.into_iter().chain(["--certificate-oidc-issuer", ISSUER, &other]);
    site.imgctl(&words.collect::<Vec<_>>()).ok();
}
