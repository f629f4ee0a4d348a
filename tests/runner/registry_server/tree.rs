//! The verbs that look after a registry on disk: ls, gc, scrub.

use crate::common::TestEnv;
use crate::registry_server::http::sha256;
use crate::registry_server::server::{Server, digest_of};

#[test]
fn ls_lists_what_was_pushed() {
    let env = TestEnv::new();
    let directory = env.path("r");
    let path = directory.to_str().unwrap();
    env.imgctl(["registry", "ls", path]).fails(3);
    let server = Server::start(&directory, &[]);
    let first = server.push_image("team/app", "v1", b"one");
    let second = server.push_image("other", "v2", b"two");
    let list = env.imgctl(["registry", "ls", path]).ok().stdout();
    let lines: Vec<Vec<&str>> =
        list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines,
        [
            vec!["REPOSITORY", "TAG", "DIGEST"],
            vec!["other", "v2", &digest_of(&second)],
            vec!["team/app", "v1", &digest_of(&first)],
        ]
    );
    let json = env.imgctl(["registry", "ls", path, "team/app", "--json"]).ok().json();
    assert_eq!(
        json,
        serde_json::json!([{
            "repository": "team/app", "tag": "v1", "digest": digest_of(&first),
            "mediaType": crate::registry_server::server::MANIFEST,
        }])
    );
    env.imgctl(["registry", "ls", path, "none"]).fails(3);
}

#[test]
fn gc_waits_for_the_server_and_frees_what_was_deleted() {
    let env = TestEnv::new();
    let directory = env.path("r");
    let path = directory.to_str().unwrap();
    let server = Server::start(&directory, &["--delete"]);
    server.push_image("a", "v1", b"goes");
    server.push_image("a", "v2", b"stays");
    server.ask("DELETE", "/v2/a/manifests/v1").is(202);
    let gc = ["registry", "gc", path, "--untagged", "--grace", "0s"];
    let busy = env.imgctl(gc).fails(6);
    assert!(busy.stderr().contains("served"), "{}", busy.stderr());
    server.stop();
    let would = env.imgctl(gc.into_iter().chain(["--dry-run", "--json"])).ok().json();
    let young = env.imgctl(["registry", "gc", path, "--untagged", "--json"]).ok().json();
    assert_eq!(young["blobs"], 0, "what is young stays");
    let freed = env.imgctl(gc.into_iter().chain(["--json"])).ok().json();
    assert_eq!(freed["blobs"], 2);
    assert_eq!(freed["manifests"], would["manifests"]);
    assert_eq!(freed["bytes"], would["bytes"]);
    let server = Server::start(&directory, &[]);
    server.ask("GET", format!("/v2/a/blobs/{}", sha256(b"goes"))).is(404);
    server.ask("GET", format!("/v2/a/blobs/{}", sha256(b"stays"))).is(200);
    server.ask("GET", "/v2/a/manifests/v2").is(200);
}

#[test]
fn scrub_finds_every_sort_of_damage() {
    let env = TestEnv::new();
    let directory = env.path("r");
    let path = directory.to_str().unwrap();
    let server = Server::start(&directory, &[]);
    server.push_image("a", "v1", b"layer");
    server.stop();
    let blob = |content: &[u8]| {
        let digest = sha256(content);
        let hex = digest.strip_prefix("sha256:").unwrap();
        directory.join(format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    };
    let good = env.imgctl(["registry", "scrub", path]).ok();
    assert!(good.stdout().contains("all good"), "{}", good.stdout());
    let tag = directory.join("docker/registry/v2/repositories/a/_manifests/tags/v1/current/link");
    let link = std::fs::read(&tag).unwrap();
    std::fs::write(&tag, sha256(b"nothing")).unwrap();
    let bad = env.imgctl(["registry", "scrub", path, "--json"]).fails(10);
    assert_eq!(bad.json()["problems"][0]["subject"], "a:v1");
    std::fs::write(&tag, link).unwrap();
    std::fs::write(blob(b"layer"), "LAYER").unwrap();
    let bad = env.imgctl(["registry", "scrub", path]).fails(10);
    assert!(bad.stdout().contains(&sha256(b"layer")), "{}", bad.stdout());
    std::fs::remove_file(blob(b"layer")).unwrap();
    let bad = env.imgctl(["registry", "scrub", path]).fails(10);
    assert!(bad.stdout().contains("missing"), "{}", bad.stdout());
}
