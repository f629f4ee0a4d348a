//! `imgctl registry serve --proxy`: a cache in front of another registry.

use serde_json::json;

use crate::common::TestEnv;
use crate::registry_server::http::{Request, sha256};
use crate::registry_server::server::{Server, digest_of};

#[test]
fn a_cache_fetches_once_follows_tags_and_serves_without_its_upstream() {
    let env = TestEnv::new();
    let upstream = Server::start(&env.path("upstream"), &[]);
    let content: Vec<u8> = (0..4_000_000_u32).map(|i| (i % 253) as u8).collect();
    let manifest = upstream.push_image("team/app", "v1", &content);
    let (digest, layer) = (digest_of(&manifest), sha256(&content));
    let url = format!("http://{}", upstream.address);
    let proxy = Server::start(&env.path("cache"), &["--proxy", &url, "--proxy-ttl", "0s"]);
    let by_tag = "/v2/team/app/manifests/v1";
    let blob = format!("/v2/team/app/blobs/{layer}");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let got = proxy.ask("GET", by_tag).is(200);
                assert_eq!(got.get("docker-content-digest"), Some(&*digest));
                let got = proxy.ask("GET", blob.as_str()).is(200);
                assert!(got.body == content, "{} bytes", got.body.len());
            });
        }
    });
    let by_digest = format!("/v2/team/app/manifests/{digest}");
    proxy.ask("GET", by_digest.as_str()).is(200);
    let part = Request::new("GET", blob.as_str()).header("Range", "bytes=1-3");
    assert_eq!(proxy.send(&part).is(206).body, content[1..4]);
    // A tag that moves is followed.
    let second = upstream.push_image("team/app", "v1", b"second");
    let got = proxy.ask("GET", by_tag).is(200);
    assert_eq!(got.body, second.to_string().as_bytes());
    for path in [
        "/v2/team/app/manifests/none".to_owned(),
        "/v2/none/manifests/v1".to_owned(),
        format!("/v2/team/app/blobs/{}", sha256(b"none")),
    ] {
        proxy.ask("GET", path).is(404);
    }
    let tags = proxy.ask("GET", "/v2/team/app/tags/list").is(200);
    assert_eq!(tags.json()["tags"], json!(["v1"]));
    proxy.ask("POST", "/v2/a/blobs/uploads/").fails(405, "UNSUPPORTED");
    let log = upstream.stop();
    let fetched = |what: &str| {
        let is_get = |line: &&str| line.contains("\"GET /") && line.contains(what);
        log.lines()
            .filter(is_get)
            .filter(|line| line.contains(" 200 ") || line.contains(" 206 "))
            .count()
    };
    // A large blob may come in several ranges, but each once.
    assert!(fetched(&format!("/blobs/{layer}")) <= 4, "{log}");
    assert_eq!(fetched("/manifests/"), 2, "{log}");
    // What is here is served without the upstream; what is not is its failure, not ours.
    proxy.ask("GET", by_tag).is(200);
    proxy.ask("GET", by_digest).is(200);
    assert!(proxy.ask("GET", blob).is(200).body == content);
    proxy.ask("GET", format!("/v2/team/app/blobs/{}", sha256(b"other"))).fails(502, "UPSTREAM");
    proxy.stop();
    env.imgctl(["registry", "scrub", env.path("cache").to_str().unwrap()]);
}

#[test]
fn a_tag_that_the_upstream_removed_stays_removed() {
    let env = TestEnv::new();
    let upstream = Server::start(&env.path("upstream"), &["--delete"]);
    upstream.push_image("app", "v1", b"content");
    let url = format!("http://{}", upstream.address);
    let proxy = Server::start(&env.path("cache"), &["--proxy", &url, "--proxy-ttl", "1s"]);
    proxy.ask("GET", "/v2/app/manifests/v1").is(200);
    upstream.ask("DELETE", "/v2/app/manifests/v1").is(202);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    for _ in 0..2 {
        proxy.ask("GET", "/v2/app/manifests/v1").is(404);
    }
}
