//! What distribution-spec 1.1 says of pulling, and RFC 9110 of ranges and conditions.

use crate::common::TestEnv;
use crate::registry_server::http::{Request, sha256, sha512};
use crate::registry_server::server::{MANIFEST, Server, digest_of};

#[test]
fn the_base_says_what_it_is() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    for path in ["/v2/", "/v2", "/v2/?ns=docker.io"] {
        let base = server.ask("GET", path).is(200);
        let version = base.get("docker-distribution-api-version");
        assert_eq!(version, Some("registry/2.0"));
    }
    server.ask("GET", "/").is(404);
    server.ask("GET", "/v1/").is(404);
    server.stop();
}

#[test]
fn a_manifest_comes_back_byte_for_byte_by_tag_and_digest() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let manifest = server.push_image("team/app", "v1", b"layer");
    let digest = digest_of(&manifest);
    let text = manifest.to_string();
    for target in ["v1", digest.as_str()] {
        for query in ["", "?ns=docker.io"] {
            let path = format!("/v2/team/app/manifests/{target}{query}");
            let got = server.ask("GET", path.as_str()).is(200);
            assert_eq!(got.body, text.as_bytes());
            let head = server.ask("HEAD", path.as_str()).is(200);
            for response in [got, head] {
                assert_eq!(response.get("content-type"), Some(MANIFEST));
                assert_eq!(response.get("docker-content-digest"), Some(&*digest));
                assert_eq!(response.get("content-length"), Some(&*text.len().to_string()));
            }
        }
    }
    for (path, status, code) in [
        ("/v2/team/app/manifests/none", 404, "MANIFEST_UNKNOWN"),
        ("/v2/team/none/manifests/v1", 404, "MANIFEST_UNKNOWN"),
        (&format!("/v2/other/manifests/{digest}"), 404, "MANIFEST_UNKNOWN"),
        (&format!("/v2/team/app/manifests/{}", sha256(b"")), 404, "MANIFEST_UNKNOWN"),
        ("/v2/team/app/manifests/sha256:00", 400, "DIGEST_INVALID"),
        ("/v2/team/app/manifests/.tag", 400, "TAG_INVALID"),
        ("/v2/Team/manifests/v1", 400, "NAME_INVALID"),
    ] {
        server.ask("GET", path).fails(status, code);
        server.ask("HEAD", path).is(status);
    }
}

#[test]
fn a_blob_comes_back_whole_and_only_from_its_repository() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let digest = server.push_blob("a/b", &content);
    let empty = server.push_blob("a/b", b"");
    let path = format!("/v2/a/b/blobs/{digest}");
    let got = server.ask("GET", path.as_str()).is(200);
    assert!(got.body == content);
    let head = server.ask("HEAD", path.as_str()).is(200);
    for response in [got, head] {
        assert_eq!(response.get("content-length"), Some("3000000"));
        assert_eq!(response.get("docker-content-digest"), Some(&*digest));
        assert_eq!(response.get("accept-ranges"), Some("bytes"));
    }
    let path = format!("/v2/a/b/blobs/{empty}");
    assert!(server.ask("GET", path).is(200).body.is_empty());
    let missing = sha256(b"missing");
    for (path, status, code) in [
        (format!("/v2/a/b/blobs/{missing}"), 404, "BLOB_UNKNOWN"),
        (format!("/v2/other/blobs/{digest}"), 404, "BLOB_UNKNOWN"),
        ("/v2/a/b/blobs/sha256:xyz".to_owned(), 400, "DIGEST_INVALID"),
        ("/v2/a/b/blobs/md5:d41d8cd98f00b204e9800998ecf8427e".to_owned(), 400, "DIGEST_INVALID"),
    ] {
        server.ask("GET", path.as_str()).fails(status, code);
        server.ask("HEAD", path).is(status);
    }
}

#[test]
fn parts_of_a_blob_are_served() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let digest = server.push_blob("a", b"0123456789");
    let path = format!("/v2/a/blobs/{digest}");
    let ask = |range: &str, condition: &str| {
        let request = Request::new("GET", path.as_str()).header("Range", range);
        server.send(&match condition {
            "" => request,
            condition => request.header("If-Range", condition),
        })
    };
    for (range, expected, content_range) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=8-", "89", "bytes 8-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=5-100", "56789", "bytes 5-9/10"),
    ] {
        let part = ask(range, "").is(206);
        assert_eq!(part.body, expected.as_bytes(), "{range}");
        assert_eq!(part.get("content-range"), Some(content_range));
    }
    let behind = ask("bytes=10-", "").fails(416, "RANGE_INVALID");
    assert_eq!(behind.get("content-range"), Some("bytes */10"));
    for range in ["bytes=3-1", "bytes=0-1,4-5", "lines=1-2"] {
        assert_eq!(ask(range, "").is(200).body, b"0123456789", "{range}");
    }
    let etag = server.ask("HEAD", path.as_str());
    let etag = etag.get("etag").unwrap();
    assert_eq!(ask("bytes=0-1", etag).is(206).body, b"01");
    assert_eq!(ask("bytes=0-1", "\"other\"").is(200).body, b"0123456789");
}

#[test]
fn what_the_client_has_is_not_sent_again() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let manifest = server.push_image("a", "v1", b"layer");
    for path in [
        "/v2/a/manifests/v1".to_owned(),
        format!("/v2/a/manifests/{}", digest_of(&manifest)),
        format!("/v2/a/blobs/{}", sha256(b"layer")),
    ] {
        let first = server.ask("GET", path.as_str()).is(200);
        let etag = first.get("etag").unwrap();
        for (known, status) in [
            (etag.to_owned(), 304),
            (format!("\"x\", W/{etag}"), 304),
            ("*".to_owned(), 304),
            ("\"x\"".to_owned(), 200),
        ] {
            let request = Request::new("GET", path.as_str()).header("If-None-Match", known);
            let second = server.send(&request).is(status);
            assert_eq!(second.body.is_empty(), status == 304);
        }
    }
}

#[test]
fn sha512_is_as_good() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let digest = sha512(b"layer");
    let started = server.ask("POST", "/v2/a/blobs/uploads/?digest-algorithm=sha512").is(202);
    let path = format!("{}?digest={digest}", started.location());
    server.send(&Request::new("PUT", path).body(*b"layer")).is(201);
    // Without word of the algorithm at the beginning, too.
    let started = server.ask("POST", "/v2/b/blobs/uploads/").is(202);
    let path = format!("{}?digest={digest}", started.location());
    server.send(&Request::new("PUT", path).body(*b"layer")).is(201);
    for repository in ["a", "b"] {
        let got = server.ask("GET", format!("/v2/{repository}/blobs/{digest}"));
        assert_eq!(got.is(200).body, b"layer");
    }
    let config = server.push_blob("a", b"{}");
    let manifest = crate::registry_server::server::image(&config, &digest, 5);
    let by_digest = sha512(manifest.to_string().as_bytes());
    server.push_manifest("a", &by_digest, &manifest).is(201);
    let got = server.ask("GET", format!("/v2/a/manifests/{by_digest}"));
    assert_eq!(got.is(200).body, manifest.to_string().as_bytes());
    server.ask("POST", "/v2/a/blobs/uploads/?digest-algorithm=md5").fails(400, "DIGEST_INVALID");
}

#[test]
fn methods_that_an_address_does_not_know_are_named_so() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &["--delete"]);
    let digest = sha256(b"");
    for (method, path) in [
        ("POST", "/v2/".to_owned()),
        ("PUT", "/v2/a/tags/list".to_owned()),
        ("PATCH", "/v2/a/manifests/v1".to_owned()),
        ("POST", format!("/v2/a/blobs/{digest}")),
        ("GET", "/v2/a/blobs/uploads/".to_owned()),
        ("DELETE", format!("/v2/a/referrers/{digest}")),
    ] {
        let refused = server.ask(method, path).fails(405, "UNSUPPORTED");
        assert!(refused.get("allow").is_some());
    }
}
