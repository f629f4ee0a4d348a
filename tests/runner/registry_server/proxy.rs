//! `imgctl registry serve --proxy` and `--cache`: caches in front of other registries.

use std::path::Path;

use serde_json::json;

use crate::common::{Ran, TestEnv, needs_root};
use crate::registry_server::http::{Request, sha256};
use crate::registry_server::server::{Server, digest_of};
use crate::unpacking::readers::Containerd;

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
fn a_cache_leaves_room_on_the_disk() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let upstream = Server::start(&env.path("upstream"), &[]);
    let directory = env.path("cache");
    std::fs::create_dir(&directory).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &directory, "tmpfs", flags, c"size=40m,mode=755").unwrap();
    let url = format!("http://{}", upstream.address);
    let proxy = Server::start(&directory, &["--proxy", &url]);
    let get = |length: usize| {
        let content = vec![length as u8; length << 20];
        let digest = upstream.push_blob("a", &content);
        proxy.ask("GET", format!("/v2/a/blobs/{digest}"))
    };
    let answers = [get(8), get(30), get(4)];
    proxy.stop();
    let unmounted = rustix::mount::unmount(&directory, rustix::mount::UnmountFlags::DETACH);
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 507, 200]);
    unmounted.unwrap();
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

/// Pulls an image into containerd and forgets it again.
fn fetch(containerd: &Containerd, hosts: &Path, name: &str) -> Ran {
    let ran = containerd.ctr(["content", "fetch", "--hosts-dir", hosts.to_str().unwrap(), name]);
    containerd.ctr(["images", "rm", "--sync", name]);
    ran
}

#[test]
fn containerd_reaches_several_registries_through_one_cache() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let containerd = Containerd::start(&env);
    let first = Server::docker(&env.path("first"));
    let second = Server::start(&env.path("second"), &[]);
    for (registry, text) in [(&first, "first"), (&second, "second")] {
        let context = env.context(text, "FROM scratch\nCOPY f /\n", &[("f", text)]);
        env.build(&format!("{text}:v1"), &context);
        let to = format!("docker://{}/library/app:v1", registry.address);
        env.imgctl(["push", &format!("{text}:v1"), &to]).ok();
    }
    let (one, two) = (
        format!("docker.io=http://{}", first.address),
        format!("hub.corp:5000=http://{}", second.address),
    );
    let flags = ["--cache", &one, "--cache", &two, "--cache-size", "1GB"];
    let cache = Server::start(&env.path("cache"), &flags);
    let hosts = env.path("certs.d");
    let host =
        format!("[host.\"http://{}\"]\n  capabilities = [\"pull\", \"resolve\"]\n", cache.address);
    env.write("certs.d/_default/hosts.toml", host);
    let names = ["docker.io/library/app:v1", "hub.corp:5000/library/app:v1"];
    std::thread::scope(|scope| {
        for name in names.into_iter().chain(names) {
            let (containerd, hosts) = (&containerd, &hosts);
            scope.spawn(move || {
                containerd
                    .ctr(["content", "fetch", "--hosts-dir", hosts.to_str().unwrap(), name])
                    .ok()
            });
        }
    });
    // The same name of two registries is two images, by `ns` and in the path.
    let digest = |path: &str| {
        let got = cache.ask("HEAD", path).is(200);
        got.get("docker-content-digest").unwrap().to_owned()
    };
    let of_first = digest("/v2/library/app/manifests/v1?ns=docker.io");
    let of_second = digest("/v2/library/app/manifests/v1?ns=hub.corp:5000");
    assert_ne!(of_first, of_second);
    assert_eq!(digest("/v2/docker.io/library/app/manifests/v1"), of_first);
    assert_eq!(digest("/v2/hub.corp_5000/library/app/manifests/v1"), of_second);
    // No other registry is asked.
    for path in ["/v2/library/app/manifests/v1?ns=quay.io", "/v2/library/app/manifests/v1"] {
        cache.ask("GET", path).fails(404, "NAME_UNKNOWN");
    }
    // Each blob came once, although two asked for it.
    let log = second.stop();
    let fetched: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("\"GET /") && line.contains("/blobs/"))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    let distinct: std::collections::BTreeSet<&&str> = fetched.iter().collect();
    assert_eq!(fetched.len(), distinct.len(), "{log}");
    // Without its registries, the cache serves what it has.
    drop(first);
    for name in names {
        containerd.ctr(["images", "rm", "--sync", name]);
        fetch(&containerd, &hosts, name).ok();
    }
    cache.stop();
    env.imgctl(["registry", "scrub", env.path("cache").to_str().unwrap()]).ok();
}

#[test]
fn a_cache_takes_no_more_than_its_limit() {
    let env = TestEnv::new();
    let upstream = Server::start(&env.path("upstream"), &[]);
    let one = format!("docker.io=http://{}", upstream.address);
    let cache = Server::start(&env.path("cache"), &["--cache", &one, "--cache-size", "3MB"]);
    let blob = |number: u8| vec![number; 1_000_000];
    for number in 0..6 {
        upstream.push_image("app", &format!("v{number}"), &blob(number));
    }
    let path = |number: u8| format!("/v2/app/blobs/{}?ns=docker.io", sha256(&blob(number)));
    for number in 0..6 {
        assert!(cache.ask("GET", path(number)).is(200).body == blob(number));
        let size = |limit: u64| tree_size(&env.path("cache")) <= limit;
        wait(|| size(3_000_000));
    }
    // What is gone comes again.
    assert!(cache.ask("GET", path(0)).is(200).body == blob(0));
}

fn wait(is: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it does not happen");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The size of the blobs below a directory, in bytes.
fn tree_size(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => tree_size(&entry.path()),
            Ok(metadata) if entry.file_name() == "data" => metadata.len(),
            _ => 0,
        })
        .sum()
}
