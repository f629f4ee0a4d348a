//! `imgctl push` to a real registry and to every other place: skopeo and docker-registry read what
//! arrives, and what is there already is not sent.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::registry::Registry;
use crate::common::{IMGCTL, Ran, TestEnv, json, noise, tool};
use serde_json::Value;

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const NETWORK: i32 = 7;

/// An environment with the images `x:v1` (two layers) and `multi:v1` (two platforms).
fn filled() -> TestEnv {
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY bin /bin\nCOPY etc /etc\nCMD [\"/bin/x\"]\n";
    let files = [("bin/x", "#!/bin/sh\n"), ("etc/conf", "a=b\n")];
    let context = env.context("context", kubefile, &files);
    // Not to be compressed, so that there is something to send.
    env.write("context/bin/large", noise(1, 3 << 20));
    let context = context.to_str().unwrap();
    env.imgctl(["build", "-t", "x:v1", context]).ok();
    let platforms = "linux/amd64,linux/arm64";
    env.imgctl(["build", "--platform", platforms, "-t", "multi:v1", context]).ok();
    env
}

fn skopeo(arguments: &[&str]) -> Ran {
    let words = ["--insecure-policy"].iter().chain(arguments);
    Ran::new(tool("skopeo", words)).ok()
}

/// The manifest of an image in a registry, as skopeo gets it.
fn raw(name: &str) -> Value {
    skopeo(&["inspect", "--raw", "--tls-verify=false", &format!("docker://{name}")]).json()
}

/// Copies all of an image out of a registry, checking every digest, and gives its digest.
fn pulled_by_skopeo(env: &TestEnv, name: &str) -> String {
    let layout = env.path("pulled");
    let _ = std::fs::remove_dir_all(&layout);
    let to = format!("oci:{}:x", layout.display());
    let from = format!("docker://{name}");
    skopeo(&["copy", "--all", "--preserve-digests", "--src-tls-verify=false", &from, &to]);
    let index = json(&layout.join("index.json"));
    index["manifests"][0]["digest"].as_str().unwrap().to_owned()
}

/// The digest under which the store has an image.
fn digest(env: &TestEnv, name: &str) -> String {
    let images = env.imgctl(["--json", "images", name]).ok().json();
    images[0]["digest"].as_str().unwrap().to_owned()
}

/// Forwards to a registry, counts what is asked and sent, and may be slow.
struct Proxy {
    address: String,
    sent: Arc<AtomicU64>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn before(host: &str, pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap().to_string(),
            sent: Arc::default(),
            requests: Arc::default(),
        };
        let (host, sent) = (host.to_owned(), Arc::clone(&proxy.sent));
        let requests = Arc::clone(&proxy.requests);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&host) else {
                    return;
                };
                let (back_from, back_to) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || forward(back_from, back_to, |_| {}));
                let (sent, requests) = (Arc::clone(&sent), Arc::clone(&requests));
                std::thread::spawn(move || {
                    forward(client, server, |bytes| {
                        sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        requests.lock().unwrap().extend(request_line(bytes));
                        std::thread::sleep(pause);
                    });
                });
            }
        });
        proxy
    }

    /// The request lines so far.
    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// What a piece that a client sends begins with, if that is a request.
fn request_line(bytes: &[u8]) -> Option<String> {
    let line = bytes.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    line.ends_with("HTTP/1.1").then(|| line.to_owned())
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut seen: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                seen(&buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn what_is_pushed_is_what_others_pull_and_once_is_enough() {
    let (env, registry) = (filled(), Registry::start());
    let proxy = Proxy::before(&registry.host, Duration::ZERO);
    let name = format!("{}/team/x:v1", proxy.address);
    let first = env.imgctl(["--json", "push", "x:v1", &name]).ok().json();
    assert_eq!(first["digest"], digest(&env, "x:v1"));
    assert_eq!(first["blobs"]["copied"], 3);
    assert_eq!(first["bytesCopied"], first["bytesTotal"]);
    let pulled = pulled_by_skopeo(&env, &format!("{}/team/x:v1", registry.host));
    assert_eq!(first["digest"], pulled.as_str());

    // Again: one question. (Whoever has talked to the registry before knows it speaks plain HTTP.)
    let before = proxy.requests().len();
    let again = env.imgctl(["--json", "push", "x:v1", &name]).ok().json();
    assert_eq!(again["upToDate"], true);
    let requests = proxy.requests().split_off(before);
    let others: Vec<&String> =
        requests.iter().filter(|line| !line.starts_with("HEAD /v2/team/x/manifests/v1 ")).collect();
    assert!(others.iter().all(|line| line.starts_with("GET /v2/ ")), "{requests:?}");

    // Another tag: every blob is there.
    let tag = format!("{}/team/x:v2", proxy.address);
    let tagged = env.imgctl(["--json", "push", "x:v1", &tag]).ok().json();
    assert_eq!(tagged["blobs"]["existed"], 3);
    // Another repository: the registry takes them from the first.
    let other = format!("{}/other/x:v1", proxy.address);
    let before = proxy.sent.load(Ordering::Relaxed);
    let mounted = env.imgctl(["--json", "push", "x:v1", &other]).ok().json();
    assert_eq!(mounted["blobs"]["mounted"], 3, "{mounted}");
    assert_eq!(mounted["bytesCopied"], 0);
    assert!(proxy.sent.load(Ordering::Relaxed) - before < 64 << 10);
    let pulled = pulled_by_skopeo(&env, &format!("{}/other/x:v1", registry.host));
    assert_eq!(first["digest"], pulled.as_str());
}

#[test]
fn an_index_goes_whole_or_one_platform_of_it() {
    let (env, registry) = (filled(), Registry::start());
    let name = |tag: &str| format!("{}/multi:{tag}", registry.host);
    env.imgctl(["push", "multi:v1", &name("all")]).ok();
    assert_eq!(pulled_by_skopeo(&env, &name("all")), digest(&env, "multi:v1"));
    assert_eq!(raw(&name("all"))["manifests"].as_array().unwrap().len(), 2);
    let platform = ["--platform", "linux/arm64"];
    let words = ["push", "multi:v1", &name("arm")];
    env.imgctl(words.iter().chain(&platform)).ok();
    let config = skopeo(&[
        "inspect",
        "--config",
        "--tls-verify=false",
        &format!("docker://{}", name("arm")),
    ])
    .json();
    assert_eq!(config["architecture"], "arm64");
    let words = ["push", "multi:v1", &name("none"), "--platform", "linux/s390x"];
    let ran = env.imgctl(words).fails(NOT_FOUND);
    assert!(ran.stderr().contains("linux/s390x"), "{}", ran.report());
}

#[test]
fn layers_are_compressed_again_once_and_manifests_are_of_dockers_family() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/x:gzip", registry.host);
    let file = env.path("digest");
    let words = ["--json", "push", "--compression", "gzip", "--format", "v2s2", "--digestfile"];
    let words: Vec<&str> =
        words.into_iter().chain([file.to_str().unwrap(), "x:v1", &name]).collect();
    let pushed = env.imgctl(&words).ok().json();
    let manifest = raw(&name);
    let media = "application/vnd.docker.distribution.manifest.v2+json";
    assert_eq!(manifest["mediaType"], media);
    let layers = manifest["layers"].as_array().unwrap();
    let gzip = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    assert!(layers.iter().all(|layer| layer["mediaType"] == gzip), "{manifest}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), pushed["digest"].as_str().unwrap());
    // skopeo checks digests and diff-ids on its way into podman's storage format.
    let to = format!("docker-archive:{}:x:v1", env.path("out.tar").display());
    skopeo(&["copy", "--src-tls-verify=false", &format!("docker://{name}"), &to]);
    env.imgctl(["load", "-i", env.path("out.tar").to_str().unwrap()]).ok();
    let config = |name: &str| env.imgctl(["images", "-q", name]).ok().stdout();
    assert_eq!(config("docker.io/library/x:v1"), config("localhost/x:v1"));
    // After a prune the digests are still known, so nothing is compressed or sent.
    env.imgctl(["prune"]).ok();
    let again = env.imgctl(&words).ok().json();
    assert_eq!(again["upToDate"], true);
    let ran = env.imgctl(["push", "--compression", "zstd", "--format", "v2s2", "x:v1", &name]);
    let ran = ran.fails(USAGE);
    assert!(ran.stderr().contains("no zstd"), "{}", ran.report());
}

#[test]
fn every_other_place_takes_an_image_that_skopeo_reads() {
    let env = filled();
    let at = |name: &str| env.path(name).display().to_string();
    for place in [
        format!("oci:{}:v1", at("oci")),
        format!("oci-archive:{}:v1", at("oci.tar")),
        format!("docker-archive:{}:reg.io/x:v1", at("docker.tar")),
        format!("dir:{}", at("dir")),
    ] {
        let said = env.imgctl(["push", "x:v1", &place]).ok().stderr();
        assert!(!said.contains("--no-sync"), "{place}: {said}");
        let config = skopeo(&["inspect", "--config", &place]).json();
        assert_eq!(config["config"]["Cmd"][0], "/bin/x", "{place}");
    }
    let registry = Registry::start();
    let tree = format!("registry-dir:{}:team/x:v1", registry.data().display());
    env.imgctl(["push", "multi:v1", &tree]).ok();
    let pulled = pulled_by_skopeo(&env, &format!("{}/team/x:v1", registry.host));
    assert_eq!(pulled, digest(&env, "multi:v1"));
}

#[test]
fn a_push_that_was_killed_is_finished_by_the_next() {
    let (env, registry) = (filled(), Registry::start());
    let proxy = Proxy::before(&registry.host, Duration::from_millis(20));
    let slow = format!("{}/x:v1", proxy.address);
    let mut child = env.command(["push", "x:v1", &slow]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while proxy.sent.load(Ordering::Relaxed) < 1 << 20 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let direct = format!("{}/x:v1", registry.host);
    let inspect = ["inspect", "--raw", "--tls-verify=false", &format!("docker://{direct}")];
    assert!(!Ran::new(tool("skopeo", inspect)).success(), "half an image has a name");
    env.imgctl(["push", "x:v1", &direct]).ok();
    assert_eq!(pulled_by_skopeo(&env, &direct), digest(&env, "x:v1"));
    env.imgctl(["scrub"]).ok();
}

#[test]
fn a_push_that_cannot_be_says_why() {
    let env = filled();
    let nowhere = format!("127.0.0.1:{}/x:v1", imgctl_base::testing::free_port());
    for (words, code, expected) in [
        (&["push", "none:v1", "localhost:1/x"][..], NOT_FOUND, "none:v1"),
        (&["push", "x:v1"], USAGE, "a registry to push to"),
        (&["push", "x:v1", "team/x:v1"], USAGE, "a registry to push to"),
        (&["push", "x:v1", "reg.io/Upper"], USAGE, "lower case"),
        (&["push", "--retry", "0", "x:v1", &nowhere], NETWORK, &nowhere[..9]),
    ] {
        let ran = env.imgctl(words).fails(code);
        assert!(ran.stderr().contains(expected), "{}", ran.report());
    }
}

#[test]
fn what_was_pushed_can_be_removed_again() {
    let env = filled();
    let registry = Registry::start();
    let name = |tag: &str| format!("{}/team/x:{tag}", registry.host);
    env.imgctl(["push", "x:v1", &name("v1")]).ok();
    env.imgctl(["push", "x:v1", &name("same")]).ok();
    env.imgctl(["push", "multi:v1", &name("other")]).ok();
    let ran = env.imgctl(["registry", "rm", &name("v1")]).ok();
    assert_eq!(ran.stdout(), format!("Removed: {}", name("v1")));
    // Another name of the same manifest went with it.
    let ran = env.imgctl(["inspect", &format!("docker://{}", name("same"))]);
    ran.fails(NOT_FOUND);
    raw(&name("other"));
    let ran = env.imgctl(["registry", "rm", &name("v1")]).fails(NOT_FOUND);
    assert!(ran.stderr().contains(&name("v1")), "{}", ran.report());
    env.imgctl(["registry", "rm", "x:v1"]).fails(USAGE);
}

#[test]
fn over_plain_http_the_kernel_sends_large_blobs() {
    let env = filled();
    let registry = Registry::start();
    let name = format!("{}/app:v1", registry.host);
    env.imgctl(["tag", "x:v1", &name]).ok();
    let trace = env.path("trace");
    let mut command = tool("strace", ["-f", "-e", "trace=sendfile", "-o"]);
    command.arg(&trace).arg(IMGCTL).arg("--root").arg(env.root()).args(["push", &name]);
    Ran::new(command).ok();
    assert_eq!(pulled_by_skopeo(&env, &name), digest(&env, "x:v1"));
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert!(trace.contains("sendfile("), "{trace}");
}
