//! Clients that go away, servers that are killed, many at once.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::common::{TestEnv, needs_root};
use crate::registry_server::http::{Request, Response, sha256};
use crate::registry_server::server::Server;

fn scrub(env: &TestEnv) {
    env.imgctl(["registry", "scrub", env.path("r").to_str().unwrap()]).ok();
}

/// Sends a PATCH of which only `part` arrives; gives the connection.
fn half(server: &Server, path: &str, length: usize, part: &[u8]) -> TcpStream {
    let head = Request::new("PATCH", path).header("Content-Type", "application/octet-stream");
    let head = head.head().replace("Content-Length: 0", &format!("Content-Length: {length}"));
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(part).unwrap();
    stream
}

#[test]
fn an_upload_of_unknown_length_leaves_room_on_the_disk() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let directory = env.path("r");
    std::fs::create_dir(&directory).unwrap();
    rustix::mount::mount(
        "tmpfs",
        &directory,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        c"size=40m,mode=755",
    )
    .unwrap();
    let server = Server::start(&directory, &[]);
    let begun = server.ask("POST", "/v2/a/blobs/uploads/").is(202);
    let all = vec![7; 48 << 20];
    let refused = Request::new("PATCH", begun.location())
        .header("Content-Type", "application/octet-stream")
        .chunked()
        .body(all)
        .send(&server.address);
    let stat = rustix::fs::statvfs(&directory).unwrap();
    let free = stat.f_bavail * stat.f_frsize;
    server.stop();
    rustix::mount::unmount(&directory, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(refused.status, 507);
    // What was being written when the last look was taken.
    assert!(free >= (16 << 20) - (1 << 20), "{free} bytes are left");
}

/// Waits until the upload has so many bytes.
fn wait_for(server: &Server, path: &str, range: &str) {
    let begun = Instant::now();
    loop {
        let status = server.ask("GET", path);
        if status.status == 204 && status.get("range") == Some(range) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{status:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_push_goes_on_after_the_client_was_cut_off() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let content = vec![9_u8; 1_000_000];
    let path = server.ask("POST", "/v2/a/blobs/uploads/").is(202).location();
    drop(half(&server, &path, content.len(), &content[..600_000]));
    wait_for(&server, &path, "0-599999");
    let patch = Request::new("PATCH", path.as_str()).header("Content-Range", "600000-999999");
    server.send(&patch.body(&content[600_000..])).is(202);
    let digest = sha256(&content);
    server.ask("PUT", format!("{path}?digest={digest}")).is(201);
    scrub(&env);
}

#[test]
fn kill_9_in_the_middle_of_a_push_leaves_a_valid_tree_and_the_push_goes_on() {
    let env = TestEnv::new();
    let content = vec![3_u8; 2_000_000];
    let server = Server::start(&env.path("r"), &[]);
    let manifest = server.push_image("a", "v1", b"layer");
    let path = server.ask("POST", "/v2/a/blobs/uploads/").is(202).location();
    let first = Request::new("PATCH", path.as_str()).header("Content-Range", "0-999999");
    server.send(&first.body(&content[..1_000_000])).is(202);
    let connection = half(&server, &path, 1_000_000, &content[1_000_000..1_500_000]);
    std::thread::sleep(Duration::from_millis(100));
    server.signal(Signal::KILL);
    server.wait();
    drop(connection);
    scrub(&env);
    let server = Server::start(&env.path("r"), &[]);
    let got = server.ask("GET", "/v2/a/manifests/v1").is(200);
    assert_eq!(got.body, manifest.to_string().as_bytes());
    let status = server.ask("GET", path.as_str()).is(204);
    let (_, last) = status.get("range").unwrap().split_once('-').unwrap();
    let have = last.parse::<usize>().unwrap() + 1;
    assert!((1_000_000..=1_500_000).contains(&have), "{have}");
    let digest = sha256(&content);
    let put = Request::new("PUT", format!("{path}?digest={digest}"));
    server.send(&put.body(&content[have..])).is(201);
    let head = server.ask("HEAD", format!("/v2/a/blobs/{digest}")).is(200);
    assert_eq!(head.get("content-length"), Some("2000000"));
    scrub(&env);
}

#[test]
fn servers_killed_at_random_never_leave_a_name_without_its_content() {
    let env = TestEnv::new();
    let rounds = if crate::common::long() { 60 } else { 8 };
    for round in 0..rounds {
        let server = Server::start(&env.path("r"), &[]);
        let address = server.address.clone();
        let (acknowledged, taken) = mpsc::channel();
        let pushing = std::thread::spawn(move || {
            for number in 0.. {
                let content = vec![round as u8; 1000 * (number % 300 + 1)];
                let tag = format!("r{round}-{number}");
                if push(&address, &tag, &content, &acknowledged).is_none() {
                    return;
                }
            }
        });
        // However slow the machine is, one image at least is there; the request after the last one
        // counted is under way when the signal comes.
        let requests = REQUESTS_OF_A_PUSH + round * 7 % 23;
        let mut tags: Vec<String> = (0..requests)
            .filter_map(|_| {
                let said = taken.recv_timeout(Duration::from_secs(300));
                said.expect("the server does not take the next request")
            })
            .collect();
        server.signal(Signal::KILL);
        server.wait();
        pushing.join().unwrap();
        tags.extend(taken.try_iter().flatten());
        scrub(&env);
        let listed = env.imgctl(["registry", "ls", env.path("r").to_str().unwrap()]);
        let listed = listed.ok().stdout();
        let mut known: HashSet<&str> = HashSet::new();
        known.extend(listed.split([' ', ':', '\n']));
        for tag in &tags {
            assert!(known.contains(&**tag), "{tag} was taken and is gone: {listed}");
        }
    }
}

/// Two blobs and a manifest.
const REQUESTS_OF_A_PUSH: usize = 3;

/// Pushes an image; `None` when the server is gone. Each request that the server has taken is told,
/// the last one with the tag.
fn push(
    address: &str,
    tag: &str,
    content: &[u8],
    acknowledged: &mpsc::Sender<Option<String>>,
) -> Option<()> {
    let mut parts = Vec::new();
    for content in [b"{}", content] {
        let digest = sha256(content);
        let path = format!("/v2/killed/blobs/uploads/?digest={digest}");
        try_send(address, &Request::new("POST", path), content)?;
        acknowledged.send(None).ok()?;
        parts.push(digest);
    }
    let manifest =
        crate::registry_server::server::image(&parts[0], &parts[1], content.len()).to_string();
    let path = format!("/v2/killed/manifests/{tag}");
    let request =
        Request::new("PUT", path).header("Content-Type", crate::registry_server::server::MANIFEST);
    try_send(address, &request, manifest.as_bytes())?;
    acknowledged.send(Some(tag.to_owned())).ok()
}

fn try_send(address: &str, request: &Request, body: &[u8]) -> Option<()> {
    let mut stream = TcpStream::connect(address).ok()?;
    let head = request.clone().body(body).head();
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    bytes.starts_with(b"HTTP/1.1 201").then_some(())
}

#[test]
fn many_push_the_same_blob_and_tag_at_once() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &["--delete"]);
    let content = vec![5_u8; 3_000_000];
    let digest = sha256(&content);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (server, content, digest) = (&server, &content, &digest);
            scope.spawn(move || {
                let repository = format!("r{}", number % 2);
                assert_eq!(server.push_blob(&repository, content), *digest);
                let config = server.push_blob(&repository, b"{}");
                let mut manifest =
                    crate::registry_server::server::image(&config, digest, content.len());
                manifest["annotations"] = json!({"by": number.to_string()});
                server.push_manifest(&repository, "same", &manifest).is(201);
                let path = format!("/v2/{repository}/manifests/same");
                server.ask("GET", path).is(200);
            });
        }
    });
    for repository in ["r0", "r1"] {
        let got = server.ask("GET", format!("/v2/{repository}/blobs/{digest}")).is(200);
        assert!(got.body == content);
        let tags = server.ask("GET", format!("/v2/{repository}/tags/list")).json();
        assert_eq!(tags["tags"], json!(["same"]));
    }
    scrub(&env);
}

#[test]
fn requests_in_progress_end_before_the_server_does() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let path = server.ask("POST", "/v2/a/blobs/uploads/").is(202).location();
    let mut stream = half(&server, &path, 10, b"01234");
    let mut idle = TcpStream::connect(&server.address).unwrap();
    // Connections are taken in their order.
    server.ask("GET", "/v2/").is(200);
    server.signal(Signal::TERM);
    let begun = Instant::now();
    while TcpStream::connect(&server.address).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it takes new clients");
        std::thread::sleep(Duration::from_millis(10));
    }
    stream.write_all(b"56789").unwrap();
    let answer = Response::read(&mut stream).is(202);
    assert_eq!(answer.get("range"), Some("0-9"));
    let begun = Instant::now();
    let (code, _) = server.wait();
    assert_eq!(code, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10), "an idle client held it up");
    let _ = idle.read(&mut [0; 1]);
}

#[test]
fn garbage_on_the_wire_harms_nobody() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let long = format!("GET /v2/{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a/".repeat(100_000));
    let many = format!("GET /v2/ HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    for bytes in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET /v2/\r\n\r\n",
        b"PUT /v2/a/manifests/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"PUT /v2/a/manifests/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"PUT /v2/a/manifests/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        long.as_bytes(),
        many.as_bytes(),
    ] {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{answer:?}");
    }
    server.ask("GET", "/v2/").is(200);
    assert!(server.memory() < 100 << 10, "{} KiB", server.memory());
}
