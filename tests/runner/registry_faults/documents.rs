//! Manifests and indexes that are not what they should be.

use serde_json::json;

use crate::common::proxy::Fault;
use crate::faults::archive::{INDEX, MANIFEST, sha256};
use crate::registry_faults::bench::{BAD_CONTENT, Bench, says};

const TAG: &str = "/v2/team/app/manifests/v1";

#[test]
fn manifests_that_lie_are_refused_by_name() {
    let bench = Bench::new();
    let schema1 = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    let other = format!("sha256:{}", sha256(b"other"));
    let manifest = ("Content-Type", MANIFEST);
    for (what, fault, word) in [
        (
            "a digest in the header that it has not",
            Fault::edit(move |_, answer| answer.set("Docker-Content-Digest", &other)),
            "reports",
        ),
        (
            "another media type than its own",
            Fault::edit(|_, answer| answer.set("Content-Type", INDEX)),
            "announced as",
        ),
        (
            "a page to log in",
            Fault::answer("200 OK", &[("Content-Type", "text/html")], "<html></html>"),
            "JSON",
        ),
        (
            "schema 1",
            Fault::answer("200 OK", &[("Content-Type", schema1)], r#"{"schemaVersion":1}"#),
            "schema 1",
        ),
        (
            "schema 1 that does not say so",
            Fault::answer("200 OK", &[manifest], r#"{"schemaVersion":1,"fsLayers":[]}"#),
            "schema",
        ),
        ("17 MiB", Fault::answer("200 OK", &[manifest], vec![b' '; 17 << 20]), "more than"),
        ("no end", Fault::Endless, "more than"),
        (
            "brackets without an end",
            Fault::answer("200 OK", &[manifest], "[".repeat(1 << 20)),
            "manifest",
        ),
    ] {
        bench.proxy.on("GET", TAG, fault);
        bench.refuses(what, BAD_CONTENT, &[&bench.repository(), "v1", word]);
        bench.proxy.behave();
    }
}

#[test]
fn a_manifest_asked_for_by_digest_has_to_have_it() {
    let bench = Bench::new();
    let (_, digest) = bench.manifest();
    bench.proxy.on(
        "GET",
        "/v2/team/app/manifests/sha256:",
        Fault::edit(|_, answer| {
            answer.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("docker-content-digest"));
            answer.body.push(b'\n');
        }),
    );
    let name = format!("{}@{digest}", bench.repository());
    let ran = bench.env.imgctl(["pull", &name]).fails(BAD_CONTENT);
    says("a newline more", &ran, &[&digest, &bench.repository()]);
    bench.assert_nothing_left();
}

#[test]
fn indexes_inside_indexes_end_somewhere() {
    let bench = Bench::new();
    let mut child = json!({"mediaType": MANIFEST, "digest": bench.manifest().1, "size": 1});
    for _ in 0..200 {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [child]});
        let bytes = index.to_string();
        let digest = format!("sha256:{}", sha256(bytes.as_bytes()));
        child = json!({"mediaType": INDEX, "digest": digest, "size": bytes.len()});
        let answer = Fault::answer("200 OK", &[("Content-Type", INDEX)], bytes);
        let path = format!("/v2/team/app/manifests/{digest}$");
        bench.proxy.on("GET", &path, answer);
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [child]});
    let answer = Fault::answer("200 OK", &[("Content-Type", INDEX)], index.to_string());
    bench.proxy.on("GET", TAG, answer);
    let words = ["nests more than", &bench.repository()];
    bench.refuses("200 deep", BAD_CONTENT, &words);
    let ran = bench.pull(["--all-platforms"]).fails(BAD_CONTENT);
    says("200 deep, all of it", &ran, &words);
    assert!(bench.proxy.count("GET", "/manifests/") < 40, "all were read");
    bench.assert_nothing_left();
}

#[test]
fn an_index_that_lists_too_much_is_refused_before_it_is_read() {
    let bench = Bench::new();
    let entry = |number: u32| {
        let digest = format!("sha256:{}", sha256(&number.to_be_bytes()));
        json!({"mediaType": MANIFEST, "digest": digest, "size": 4_000_000_000_u64})
    };
    for (what, count) in [("a hundred of 4 GB", 100), ("20000", 20_000)] {
        let entries: Vec<_> = (0..count).map(entry).collect();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        let answer = Fault::answer("200 OK", &[("Content-Type", INDEX)], index.to_string());
        bench.proxy.on("GET", TAG, answer);
        let ran = bench.pull(["--all-platforms"]).fails(BAD_CONTENT);
        says(what, &ran, &[&bench.repository()]);
        bench.proxy.behave();
        assert_eq!(bench.proxy.count("GET", "/manifests/sha256:"), 0, "{what}");
        bench.assert_nothing_left();
    }
}

#[test]
fn lists_of_tags_end_somewhere() {
    let bench = Bench::new();
    let repository = bench.repository();
    let list = r#"{"name":"team/app","tags":["v1"]}"#;
    let again = ("Link", "</v2/team/app/tags/list?n=1000>; rel=\"next\"");
    for (what, fault, word) in [
        ("no end", Fault::Endless, "more than"),
        ("not JSON", Fault::answer("200 OK", &[], "<html>"), "malformed"),
        ("a page that follows itself", Fault::answer("200 OK", &[again], list), "links to itself"),
    ] {
        bench.proxy.on("GET", "/tags/list", fault);
        let ran = bench.env.imgctl(["tags", &repository]).fails(BAD_CONTENT);
        says(what, &ran, &[&repository, word]);
        bench.proxy.behave();
    }
}
