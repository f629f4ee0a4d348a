//! `registry serve --store`: the images of the store over the registry API, and back.

use serde_json::{Value, json};

use crate::common::{TestEnv, json};
use crate::registry_server::http::{Request, sha256};
use crate::registry_server::peers::{layout, peer, raw, skopeo_push};
use crate::registry_server::server::{MANIFEST, Server, digest_of};

/// A store with one image under several names, and its manifest's digest.
fn filled(names: &[&str]) -> (TestEnv, String) {
    let env = TestEnv::new();
    let context = env.context("context", "FROM scratch\nCOPY file /file\n", &[("file", "x")]);
    env.build(names[0], &context);
    for name in &names[1..] {
        env.imgctl(["tag", names[0], name]).ok();
    }
    let digest = digest(&env, names[0]);
    (env, digest)
}

fn digest(env: &TestEnv, name: &str) -> String {
    let shown: Value =
        serde_json::from_str(&env.imgctl(["images", "--json", name]).ok().stdout()).unwrap();
    shown[0]["digest"].as_str().unwrap().to_owned()
}

#[test]
fn images_are_in_the_repositories_of_their_full_and_short_names() {
    let names = ["etcd:v1", "quay.io/a/b:v1", "host.example:5000/a/b:v2", "ghcr.io/etcd:v1"];
    let (env, digest) = filled(&names);
    let server = Server::of_store(&env, &[]);
    for name in [
        "etcd/manifests/v1",
        "localhost/etcd/manifests/v1",
        "a/b/manifests/v1",
        "quay.io/a/b/manifests/v1",
        "a/b/manifests/v2",
        "ghcr.io/etcd/manifests/v1",
    ] {
        let found = server.ask("HEAD", format!("/v2/{name}")).is(200);
        assert_eq!(found.get("docker-content-digest"), Some(&*digest), "{name}");
    }
    let catalog = server.ask("GET", "/v2/_catalog").is(200).json();
    // Every image once: the short name means that of localhost.
    assert_eq!(catalog["repositories"], json!(["a/b", "etcd", "ghcr.io/etcd"]));
    let tags = server.ask("GET", "/v2/a/b/tags/list").is(200).json();
    assert_eq!(tags["tags"], json!(["v1", "v2"]));
    server.ask("GET", "/v2/b/tags/list").fails(404, "NAME_UNKNOWN");
    server.ask("GET", "/v2/etcd/manifests/v2").fails(404, "MANIFEST_UNKNOWN");
    // A name that comes is served at once, and one that two registries have is nobody's.
    env.imgctl(["tag", "etcd:v1", "docker.io/team/x:v1"]).ok();
    env.imgctl(["tag", "etcd:v1", "quay.io/c/d:v1"]).ok();
    env.imgctl(["tag", "etcd:v1", "ghcr.io/c/d:v1"]).ok();
    server.ask("HEAD", "/v2/team/x/manifests/v1").is(200);
    server.ask("HEAD", "/v2/ghcr.io/c/d/manifests/v1").is(200);
    server.ask("HEAD", "/v2/c/d/manifests/v1").is(404);
    server.stop();
}

#[test]
fn blobs_come_in_ranges_and_only_from_their_repository() {
    let (env, digest) = filled(&["etcd:v1"]);
    let other = env.context("other", "FROM scratch\nCOPY file /f\n", &[("file", "secret")]);
    env.build("other:v1", &other);
    let server = Server::of_store(&env, &[]);
    let manifest = server.ask("GET", format!("/v2/etcd/manifests/{digest}")).is(200);
    assert_eq!(sha256(&manifest.body), digest);
    let layer = manifest.json()["layers"][0]["digest"].clone();
    let path = format!("/v2/etcd/blobs/{}", layer.as_str().unwrap());
    let whole = server.ask("GET", &path).is(200).body;
    let part = Request::new("GET", &path).header("Range", "bytes=1-4");
    assert_eq!(server.send(&part).is(206).body, whole[1..5]);
    let foreign = path.replace("/etcd/", "/other/");
    server.ask("GET", &foreign).fails(404, "BLOB_UNKNOWN");
    server.ask("HEAD", &foreign).is(404);
    // Nothing is taken.
    let push = Request::new("POST", "/v2/etcd/blobs/uploads/");
    assert_eq!(server.send(&push).status / 100, 4);
    server.stop();
}

#[test]
fn what_a_client_has_begun_to_pull_outlives_its_name_and_prune() {
    let (env, digest) = filled(&["etcd:v1"]);
    let server = Server::of_store(&env, &[]);
    let manifest = server.ask("GET", "/v2/etcd/manifests/v1").is(200).json();
    env.imgctl(["rmi", "etcd:v1"]).ok();
    env.imgctl(["prune", "--all"]).ok();
    server.ask("HEAD", "/v2/etcd/manifests/v1").is(404);
    server.ask("GET", format!("/v2/etcd/manifests/{digest}")).is(200);
    let layer = manifest["layers"][0]["digest"].as_str().unwrap();
    let bytes = server.ask("GET", format!("/v2/etcd/blobs/{layer}")).is(200).body;
    assert_eq!(sha256(&bytes), layer);
    // With the server the claim ends.
    server.stop();
    env.imgctl(["prune", "--all"]).ok();
    let blobs = env.path("root/store/blobs/sha256");
    assert_eq!(std::fs::read_dir(blobs).unwrap().count(), 0);
}

#[test]
fn skopeo_podman_and_imgctl_pull_from_the_store() {
    let env = TestEnv::new();
    let layout = layout(&env);
    let layout = layout.to_str().unwrap();
    env.imgctl(["load", "-i", layout, "--tag", "team/app:v1"]).ok();
    let server = Server::of_store(&env, &[]);
    let address = server.address.as_str();
    let index = raw(&env, address, "team/app:v1");
    assert_eq!(sha256(index.as_bytes()), digest(&env, "team/app:v1"));
    let name = format!("{address}/team/app:v1");
    peer(&env, "podman", &["pull", "-q", "--tls-verify=false", &name]);
    let copy = env.path("copy");
    let (from, to) = (format!("docker://{name}"), format!("oci:{}:x", copy.display()));
    let flags = ["copy", "-q", "--all", "--preserve-digests", "--src-tls-verify=false"];
    peer(&env, "skopeo", &[&flags[..], &[&from, &to]].concat());
    assert_eq!(json(&copy.join("index.json"))["manifests"][0]["digest"], sha256(index.as_bytes()));
    let other = TestEnv::new();
    let flags = ["pull", "--all-platforms", "--tls-verify=false"];
    other.imgctl([&flags[..], &[&name]].concat()).ok();
    assert_eq!(digest(&other, &name), sha256(index.as_bytes()));
    server.stop();
}

#[test]
fn what_is_pushed_is_an_image_of_the_store() {
    let env = TestEnv::new();
    let layout = layout(&env);
    let server = Server::of_store(&env, &["--writable", "--delete"]);
    let address = server.address.clone();
    skopeo_push(&env, &layout, &address, "team/app:v1");
    skopeo_push(&env, &layout, &address, "quay.io/team/app:v2");
    let index = raw(&env, &address, "team/app:v1");
    assert_eq!(raw(&env, &address, "quay.io/team/app:v2"), index);
    let shown = env.imgctl(["images", "--json"]).ok().stdout();
    let shown: Vec<Value> = serde_json::from_str(&shown).unwrap();
    // The manifests that came before their index have no name of their own any more.
    let table = json(&env.path("root/store/index.json"));
    let names: Vec<&str> = table["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["annotations"]["org.opencontainers.image.ref.name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["localhost/team/app:v1", "quay.io/team/app:v2"], "{shown:?}");
    env.imgctl(["prune"]).ok();
    let tree = env.export("team/app:v1", "tree");
    assert_eq!(std::fs::read_to_string(tree.join("etc/arch")).unwrap(), arch());
    // A referrer, by its digest alone, is found, kept and goes when it is deleted.
    let subject = sha256(index.as_bytes());
    server.push_blob("team/app", b"{}");
    let referrer = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/x.note",
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": sha256(b"{}"), "size": 2},
        "layers": [],
        "subject": {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": subject, "size": index.len()},
    });
    let by_digest = digest_of(&referrer);
    server.push_manifest("team/app", &by_digest, &referrer).is(201);
    server.stop();
    env.imgctl(["prune", "--all"]).ok();
    env.imgctl(["images", "-a"]).ok();
    let server = Server::of_store(&env, &["--writable", "--delete"]);
    let found = |server: &Server| {
        let path = format!("/v2/team/app/referrers/{subject}");
        server.ask("GET", path).is(200).json()["manifests"].clone()
    };
    assert_eq!(found(&server)[0]["digest"], json!(by_digest));
    server.ask("DELETE", format!("/v2/team/app/manifests/{by_digest}")).is(202);
    assert_eq!(found(&server), json!([]));
    server.ask("DELETE", "/v2/team/app/manifests/v1").is(202);
    server.ask("HEAD", "/v2/localhost/team/app/manifests/v1").is(404);
    server.stop();
    env.imgctl(["scrub"]).ok();
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

#[test]
fn a_push_says_what_is_missing_or_wrong() {
    let (env, digest) = filled(&["etcd:v1"]);
    let server = Server::of_store(&env, &["--writable"]);
    let manifest = server.ask("GET", "/v2/etcd/manifests/v1").is(200).json();
    let layer = manifest["layers"][0]["digest"].as_str().unwrap().to_owned();
    let missing = server.push_manifest("new", "v1", &manifest);
    missing.fails(404, "MANIFEST_BLOB_UNKNOWN");
    // A blob that the client proves to know of is mounted, not sent.
    for blob in [&layer, manifest["config"]["digest"].as_str().unwrap()] {
        let path = format!("/v2/new/blobs/uploads/?mount={blob}&from=etcd");
        server.ask("POST", path).is(201);
    }
    let body = server.ask("GET", "/v2/etcd/manifests/v1").is(200).body;
    let put = Request::new("PUT", "/v2/new/manifests/v1").header("Content-Type", MANIFEST);
    server.send(&put.body(body)).is(201);
    assert_eq!(self::digest(&env, "new:v1"), digest);
    let wrong = Request::new("POST", format!("/v2/new/blobs/uploads/?digest={layer}"));
    server.send(&wrong.body(&b"other"[..])).fails(400, "DIGEST_INVALID");
    let by_sha512 = crate::registry_server::http::sha512(b"text");
    let begun = server.ask("POST", "/v2/new/blobs/uploads/").is(202);
    let end = format!("{}?digest={by_sha512}", begun.location());
    server.send(&Request::new("PUT", end).body(&b"text"[..])).is(201);
    let path = format!("/v2/new/blobs/{by_sha512}");
    assert_eq!(server.ask("GET", path).is(200).body, b"text");
    server.stop();
}

/// The files of the store's blobs.
fn blobs(env: &TestEnv) -> usize {
    let blobs = env.path("root/store/blobs/sha256");
    std::fs::read_dir(blobs).unwrap().count()
}

#[test]
fn what_is_deleted_is_gone() {
    let env = TestEnv::new();
    let server = Server::of_store(&env, &["--writable", "--delete"]);
    let manifest = server.push_image("app", "v1", b"no layer that anybody unpacks");
    let digest = digest_of(&manifest);
    let (config, layer) = (
        manifest["config"]["digest"].as_str().unwrap(),
        manifest["layers"][0]["digest"].as_str().unwrap(),
    );
    // A second image shares the config.
    let other = server.push_image("app", "v2", b"another layer");
    let path = |what: &str| format!("/v2/app/{what}");
    let (manifest_path, layer_path) =
        (path(&format!("manifests/{digest}")), path(&format!("blobs/{layer}")));
    // What an image needs stays, and that is said.
    for blob in [config, layer] {
        let refused = server.ask("DELETE", path(&format!("blobs/{blob}")));
        let refused = refused.fails(405, "UNSUPPORTED");
        let said = refused.json().to_string();
        assert!(said.contains("localhost/app:v"), "{said}");
        server.ask("HEAD", path(&format!("blobs/{blob}"))).is(200);
    }
    // A client has begun to pull it.
    server.ask("GET", &manifest_path).is(200);
    server.ask("DELETE", &manifest_path).is(202);
    server.ask("GET", &manifest_path).fails(404, "MANIFEST_UNKNOWN");
    server.ask("GET", path("manifests/v1")).fails(404, "MANIFEST_UNKNOWN");
    server.ask("GET", format!("/v2/localhost/app/manifests/{digest}")).is(404);
    server.ask("GET", &layer_path).fails(404, "BLOB_UNKNOWN");
    server.ask("DELETE", &layer_path).fails(404, "BLOB_UNKNOWN");
    server.ask("DELETE", &manifest_path).fails(404, "MANIFEST_UNKNOWN");
    // The other image is whole, and nothing else is on the disk.
    let other_path = path(&format!("manifests/{}", digest_of(&other)));
    server.ask("GET", &other_path).is(200);
    server.ask("GET", path(&format!("blobs/{config}"))).is(200);
    assert_eq!(blobs(&env), 3);
    // A blob that no image needs is removed by itself.
    let stray = server.push_blob("app", b"stray");
    assert_eq!(blobs(&env), 4);
    server.ask("DELETE", path(&format!("blobs/{stray}"))).is(202);
    server.ask("GET", path(&format!("blobs/{stray}"))).fails(404, "BLOB_UNKNOWN");
    assert_eq!(blobs(&env), 3);
    // What was pushed and deleted can be pushed again.
    let again = server.push_image("app", "v1", b"no layer that anybody unpacks");
    assert_eq!(again, manifest);
    server.ask("GET", &layer_path).is(200);
    // After its tag, a manifest that a client may be pulling goes by its digest.
    server.ask("GET", &manifest_path).is(200);
    server.ask("DELETE", path("manifests/v1")).is(202);
    server.ask("GET", &manifest_path).is(200);
    server.ask("DELETE", &manifest_path).is(202);
    server.ask("GET", &manifest_path).is(404);
    server.ask("DELETE", &other_path).is(202);
    assert_eq!(blobs(&env), 0);
    // One that nobody has asked for goes with its last tag.
    server.push_image("app", "v3", b"unseen");
    server.ask("DELETE", path("manifests/v3")).is(202);
    assert_eq!(blobs(&env), 0);
    server.stop();
    env.imgctl(["scrub"]).ok();
}

#[test]
fn skopeo_deletes_images_of_the_store_and_members_stay_with_their_index() {
    let env = TestEnv::new();
    let layout = layout(&env);
    let server = Server::of_store(&env, &["--writable", "--delete"]);
    let address = server.address.clone();
    skopeo_push(&env, &layout, &address, "team/app:v1");
    let index = raw(&env, &address, "team/app:v1");
    let parsed: Value = serde_json::from_str(&index).unwrap();
    let member = parsed["manifests"][0]["digest"].as_str().unwrap();
    let member_path = format!("/v2/team/app/manifests/{member}");
    let refused = server.ask("DELETE", &member_path).fails(405, "UNSUPPORTED");
    let said = refused.json().to_string();
    assert!(said.contains("delete the index"), "{said}");
    server.ask("GET", &member_path).is(200);
    let name = format!("docker://{address}/team/app:v1");
    peer(&env, "skopeo", &["delete", "--tls-verify=false", &name]);
    let digest = sha256(index.as_bytes());
    for path in [
        "/v2/team/app/manifests/v1".to_owned(),
        format!("/v2/team/app/manifests/{digest}"),
        member_path,
    ] {
        server.ask("GET", path).is(404);
    }
    assert_eq!(blobs(&env), 0);
    server.stop();
    // Where deletion is not enabled, it is not claimed.
    let server = Server::of_store(&env, &["--writable"]);
    server.push_image("app", "v1", b"layer");
    for path in ["manifests/v1".to_owned(), format!("blobs/{digest}")] {
        server.ask("DELETE", format!("/v2/app/{path}")).fails(405, "UNSUPPORTED");
    }
    server.stop();
}
