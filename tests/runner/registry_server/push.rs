//! What distribution-spec 1.1 says of pushing and of deletion.

use serde_json::json;

use crate::common::TestEnv;
use crate::registry_server::http::{Request, Response, sha256};
use crate::registry_server::server::{INDEX, MANIFEST, Server, digest_of, image};

const UPLOADS: &str = "/v2/a/blobs/uploads/";

fn patch(server: &Server, path: &str, range: &str, content: &[u8]) -> Response {
    let request = Request::new("PATCH", path).header("Content-Type", "application/octet-stream");
    server.send(&request.header("Content-Range", range).body(content))
}

#[test]
fn a_blob_is_taken_in_one_piece() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let digest = sha256(b"content");
    let location = format!("/v2/a/blobs/{digest}");
    // POST alone.
    let path = format!("{UPLOADS}?digest={digest}");
    let made = server.send(&Request::new("POST", path).body(*b"content")).is(201);
    assert_eq!(made.location(), location);
    assert_eq!(made.get("docker-content-digest"), Some(&*digest));
    // POST, then PUT; with and without a length.
    for chunked in [false, true] {
        let begun = server.ask("POST", UPLOADS).is(202);
        let path = format!("{}?digest={digest}", begun.location());
        let put = Request::new("PUT", path).body(*b"content");
        let put = if chunked { put.chunked() } else { put };
        let made = server.send(&put).is(201);
        assert_eq!(made.location(), location);
    }
    assert_eq!(server.ask("GET", location).is(200).body, b"content");
}

#[test]
fn a_blob_is_taken_in_chunks_in_their_order_only() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let begun = server.ask("POST", UPLOADS).is(202);
    let path = begun.location();
    let first = patch(&server, &path, "0-3", b"0123").is(202);
    assert_eq!(first.get("range"), Some("0-3"));
    let path = first.location();
    for (range, content) in [("0-3", "0123"), ("5-6", "56"), ("4-9", "45"), ("x", "45")] {
        let refused = patch(&server, &path, range, content.as_bytes());
        let refused = refused.fails(416, "BLOB_UPLOAD_INVALID");
        assert_eq!(refused.get("range"), Some("0-3"));
        assert_eq!(refused.location(), path);
    }
    let status = server.ask("GET", path.as_str()).is(204);
    assert_eq!(status.get("range"), Some("0-3"));
    assert_eq!(status.location(), path);
    let second = patch(&server, &path, "4-5", b"45").is(202);
    assert_eq!(second.get("range"), Some("0-5"));
    let digest = sha256(b"01234567");
    let last = |range: &str| {
        let path = format!("{path}?digest={digest}");
        let put = Request::new("PUT", path).header("Content-Range", range);
        server.send(&put.body(*b"67"))
    };
    last("7-8").fails(416, "BLOB_UPLOAD_INVALID");
    last("6-7").is(201);
    let got = server.ask("GET", format!("/v2/a/blobs/{digest}")).is(200);
    assert_eq!(got.body, b"01234567");
    server.ask("GET", path).fails(404, "BLOB_UPLOAD_UNKNOWN");
}

#[test]
fn a_blob_may_stream_in_without_a_length() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let content = vec![7_u8; 1_234_567];
    let begun = server.ask("POST", UPLOADS).is(202);
    let patch = Request::new("PATCH", begun.location()).body(content.clone());
    let sent = server.send(&patch.chunked()).is(202);
    assert_eq!(sent.get("range"), Some("0-1234566"));
    let digest = sha256(&content);
    let path = format!("{}?digest={digest}", sent.location());
    server.ask("PUT", path).is(201);
    let head = server.ask("HEAD", format!("/v2/a/blobs/{digest}")).is(200);
    assert_eq!(head.get("content-length"), Some("1234567"));
}

#[test]
fn a_wrong_digest_keeps_nothing() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let digest = sha256(b"right");
    for (path, code) in [
        (format!("?digest={digest}"), "DIGEST_INVALID"),
        ("?digest=sha256:no".to_owned(), "DIGEST_INVALID"),
        ("?digest=".to_owned(), "DIGEST_INVALID"),
        (String::new(), "DIGEST_INVALID"),
    ] {
        let begun = server.ask("POST", UPLOADS).is(202);
        let path = format!("{}{path}", begun.location());
        let put = Request::new("PUT", path).body(*b"wrong");
        server.send(&put).fails(400, code);
    }
    let path = format!("{UPLOADS}?digest={digest}");
    let post = Request::new("POST", path).body(*b"wrong");
    server.send(&post).fails(400, "DIGEST_INVALID");
    server.ask("HEAD", format!("/v2/a/blobs/{digest}")).is(404);
    server.ask("GET", format!("/v2/a/blobs/{}", sha256(b"wrong"))).is(404);
}

#[test]
fn an_upload_can_be_given_up_and_unknown_ones_are_not_found() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let path = server.ask("POST", UPLOADS).is(202).location();
    server.ask("DELETE", path.as_str()).is(204);
    for path in [
        path.as_str(),
        "/v2/a/blobs/uploads/00000000-0000-4000-8000-000000000000",
        "/v2/a/blobs/uploads/x",
        "/v2/a/blobs/uploads/..%2f..%2fx",
    ] {
        for method in ["GET", "PATCH", "DELETE"] {
            let refused = server.ask(method, path);
            assert!([400, 404].contains(&refused.status), "{path}: {refused:?}");
        }
    }
    let left = env.path("r/docker/registry/v2/repositories/a/_uploads");
    assert_eq!(std::fs::read_dir(left).unwrap().count(), 0);
}

#[test]
fn a_client_has_a_limited_number_of_open_uploads() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let begin = || server.ask("POST", "/v2/a/blobs/uploads/");
    let first = begin().is(202).location();
    for _ in 1..256 {
        begin().is(202);
    }
    let refused = begin();
    assert!(refused.get("retry-after").is_some());
    refused.fails(429, "TOOMANYREQUESTS");
    // A whole blob counts as well, and each that ends makes room.
    let digest = sha256(b"x");
    let whole = || {
        let path = format!("/v2/a/blobs/uploads/?digest={digest}");
        server.send(&Request::new("POST", path).body("x"))
    };
    whole().is(429);
    server.ask("DELETE", first).is(204);
    whole().is(201);
    begin().is(202);
}

#[test]
fn a_blob_is_mounted_from_another_repository_or_uploaded() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let digest = server.push_blob("from/here", b"shared");
    let missing = sha256(b"missing");
    for (query, status) in [
        (format!("mount={digest}&from=from/here"), 201),
        (format!("mount={digest}&from=from%2Fhere"), 201),
        (format!("mount={digest}"), 201),
        (format!("mount={digest}&from=elsewhere"), 202),
        (format!("mount={digest}&from=../from/here"), 202),
        (format!("mount={missing}&from=from/here"), 202),
        (format!("mount={missing}"), 202),
    ] {
        let made = server.ask("POST", format!("/v2/to/blobs/uploads/?{query}"));
        let made = made.is(status);
        match status {
            201 => {
                assert_eq!(made.location(), format!("/v2/to/blobs/{digest}"));
                assert_eq!(server.ask("GET", made.location()).is(200).body, b"shared");
            }
            _ => assert!(made.location().starts_with("/v2/to/blobs/uploads/")),
        }
    }
    server.ask("POST", "/v2/to/blobs/uploads/?mount=sha256:no").fails(400, "DIGEST_INVALID");
}

#[test]
fn manifests_are_checked_before_they_are_kept() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let good = server.push_image("a", "v1", b"layer");
    let (config, layer) = (sha256(b"{}"), sha256(b"layer"));
    let put = |target: &str, media_type: &str, body: &str| {
        let request = Request::new("PUT", format!("/v2/a/manifests/{target}"));
        server.send(&request.header("Content-Type", media_type).body(body))
    };
    let both = json!({"mediaType": MANIFEST, "layers": [], "manifests": []}).to_string();
    let absent = image(&config, &sha256(b"absent"), 6).to_string();
    let text = good.to_string();
    let page = text.replace(MANIFEST, "text/html");
    let short = image(&config, &layer, 4).to_string();
    // Go's programs take the second list for the first.
    let two = text.replace("\"layers\":", "\"Layers\":[],\"layers\":");
    assert_ne!(two, text);
    for (target, media_type, body, status, code) in [
        ("v2", MANIFEST, "", 400, "MANIFEST_INVALID"),
        ("v2", MANIFEST, "{", 400, "MANIFEST_INVALID"),
        ("v2", MANIFEST, "[]", 400, "MANIFEST_INVALID"),
        ("v2", MANIFEST, r#"{"schemaVersion":1}"#, 400, "MANIFEST_INVALID"),
        ("v2", MANIFEST, &both, 400, "MANIFEST_INVALID"),
        ("v2", INDEX, &text, 400, "MANIFEST_INVALID"),
        ("v2", "text/html", &page, 400, "MANIFEST_INVALID"),
        ("v2", MANIFEST, &short, 400, "MANIFEST_INVALID"),
        ("v2", MANIFEST, &two, 400, "MANIFEST_INVALID"),
        ("v2", MANIFEST, &absent, 404, "MANIFEST_BLOB_UNKNOWN"),
        (&layer, MANIFEST, &text, 400, "DIGEST_INVALID"),
        ("sha256:00", MANIFEST, &text, 400, "DIGEST_INVALID"),
        (".v2", MANIFEST, &text, 400, "TAG_INVALID"),
    ] {
        put(target, media_type, body).fails(status, code);
    }
    server.ask("GET", "/v2/a/manifests/v2").is(404);
    let made = put("v2", MANIFEST, &text).is(201);
    let digest = digest_of(&good);
    assert_eq!(made.location(), format!("/v2/a/manifests/{digest}"));
    assert_eq!(made.get("docker-content-digest"), Some(&*digest));
    let made = put(&format!("{digest}?tag=x&tag=y"), MANIFEST, &text).is(201);
    assert_eq!(made.get("oci-tag"), Some("x"));
    let tags = server.ask("GET", "/v2/a/tags/list").json();
    assert_eq!(tags["tags"], json!(["v1", "v2", "x", "y"]));
}

#[test]
fn large_manifests_are_taken_and_too_large_ones_refused() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let mut manifest = server.push_image("a", "small", b"layer");
    manifest["annotations"] = json!({"fill": "x".repeat(4 << 20)});
    server.push_manifest("a", "large", &manifest).is(201);
    let got = server.ask("GET", "/v2/a/manifests/large").is(200);
    assert!(got.body == manifest.to_string().as_bytes());
    manifest["annotations"] = json!({"fill": "x".repeat(17 << 20)});
    let refused = server.push_manifest("a", "huge", &manifest);
    refused.fails(413, "SIZE_INVALID");
}

#[test]
fn indexes_may_lack_children_and_manifests_layers_that_lie_elsewhere() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let child = server.push_image("a", "v1", b"layer");
    let index = json!({
        "schemaVersion": 2, "mediaType": INDEX, "manifests": [
            {"mediaType": MANIFEST, "digest": digest_of(&child), "size": child.to_string().len()},
            {"mediaType": MANIFEST, "digest": sha256(b"arm64"), "size": 5},
        ],
    });
    server.push_manifest("a", "index", &index).is(201);
    let got = server.ask("GET", "/v2/a/manifests/index").is(200);
    assert_eq!(got.get("content-type"), Some(INDEX));
    let mut foreign = image(&sha256(b"{}"), &sha256(b"elsewhere"), 9);
    foreign["layers"][0]["mediaType"] =
        json!("application/vnd.oci.image.layer.nondistributable.v1.tar");
    server.push_manifest("a", "foreign", &foreign).is(201);
    drop(server);
    let sparse = Server::start(&env.path("r"), &["--sparse"]);
    let absent = image(&sha256(b"{}"), &sha256(b"absent"), 6);
    sparse.push_manifest("a", "sparse", &absent).is(201);
}

#[test]
fn deletion_has_to_be_allowed() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let manifest = server.push_image("a", "v1", b"layer");
    let digest = digest_of(&manifest);
    let blob = format!("/v2/a/blobs/{}", sha256(b"layer"));
    for path in ["/v2/a/manifests/v1", &blob] {
        server.ask("DELETE", path).fails(405, "UNSUPPORTED");
    }
    drop(server);
    let server = Server::start(&env.path("r"), &["--delete"]);
    server.push_manifest("a", "v2", &manifest).is(201);
    server.ask("DELETE", "/v2/a/manifests/v1").is(202);
    server.ask("GET", "/v2/a/manifests/v1").is(404);
    server.ask("DELETE", "/v2/a/manifests/v1").fails(404, "MANIFEST_UNKNOWN");
    let path = format!("/v2/a/manifests/{digest}");
    server.ask("GET", path.as_str()).is(200);
    server.ask("DELETE", path.as_str()).is(202);
    server.ask("GET", path.as_str()).is(404);
    server.ask("GET", "/v2/a/manifests/v2").is(404);
    let tags = server.ask("GET", "/v2/a/tags/list").is(200).json();
    assert_eq!(tags["tags"], json!([]));
    server.ask("DELETE", path).fails(404, "MANIFEST_UNKNOWN");
    server.ask("DELETE", blob.as_str()).is(202);
    server.ask("HEAD", blob.as_str()).is(404);
    server.ask("DELETE", blob).fails(404, "BLOB_UNKNOWN");
}

#[test]
fn a_read_only_registry_takes_nothing() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let manifest = server.push_image("a", "v1", b"layer");
    drop(server);
    let server = Server::start(&env.path("r"), &["--read-only", "--delete"]);
    server.ask("GET", "/v2/a/manifests/v1").is(200);
    server.ask("POST", UPLOADS).fails(405, "UNSUPPORTED");
    server.ask("DELETE", "/v2/a/manifests/v1").fails(405, "UNSUPPORTED");
    let put = server.push_manifest("a", "v2", &manifest);
    put.fails(405, "UNSUPPORTED");
}
