//! What distribution-spec 1.1 says of content discovery: tags, referrers, and the catalog.

use serde_json::{Value, json};

use crate::common::TestEnv;
use crate::registry_server::http::sha256;
use crate::registry_server::server::{INDEX, MANIFEST, Server, digest_of, image};

/// Follows `Link` from page to page; gives the names on each.
fn pages(server: &Server, path: &str, member: &str) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut path = path.to_owned();
    loop {
        let page = server.ask("GET", path.as_str()).is(200);
        let names = page.json()[member].as_array().unwrap().clone();
        let names = names.iter().map(|name| name.as_str().unwrap().to_owned());
        pages.push(names.collect());
        assert!(pages.len() < 100, "the pages do not end");
        let Some(link) = page.get("link") else {
            return pages;
        };
        assert!(link.ends_with("; rel=\"next\""), "{link}");
        let end = link.find('>').unwrap();
        path = link[1..end].to_owned();
    }
}

#[test]
fn tags_come_sorted_and_in_pages() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    let manifest = server.push_image("a/b", "v3", b"layer");
    for tag in ["v1", "V2", "v10", "_x"] {
        server.push_manifest("a/b", tag, &manifest).is(201);
    }
    let all = ["V2", "_x", "v1", "v10", "v3"];
    let list = server.ask("GET", "/v2/a/b/tags/list").is(200);
    assert_eq!(list.json(), json!({"name": "a/b", "tags": all}));
    assert!(list.get("link").is_none());
    for size in 1..=6 {
        let pages = pages(&server, &format!("/v2/a/b/tags/list?n={size}"), "tags");
        assert_eq!(pages.concat(), all);
        assert!(pages.iter().all(|page| page.len() <= size), "{pages:?}");
        assert_eq!(pages.len(), all.len().div_ceil(size));
    }
    for (query, expected) in [
        ("last=v1", json!(["v10", "v3"])),
        ("last=v2&n=1", json!(["v3"])),
        ("last=zzz", json!([])),
        ("n=0", json!([])),
    ] {
        let list = server.ask("GET", format!("/v2/a/b/tags/list?{query}"));
        assert_eq!(list.is(200).json()["tags"], expected, "{query}");
    }
    server.ask("GET", "/v2/a/b/tags/list?n=many").fails(400, "PAGINATION_NUMBER_INVALID");
    server.ask("GET", "/v2/none/tags/list").fails(404, "NAME_UNKNOWN");
}

#[test]
fn repositories_come_in_pages() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    assert_eq!(pages(&server, "/v2/_catalog", "repositories").concat(), [""; 0]);
    for repository in ["b/x", "a", "a-b", "a/b/c"] {
        server.push_image(repository, "v1", b"layer");
    }
    let all = ["a", "a/b/c", "a-b", "b/x"];
    for size in 1..=5 {
        let pages = pages(&server, &format!("/v2/_catalog?n={size}"), "repositories");
        assert_eq!(pages.concat(), all, "{size}");
    }
}

#[test]
fn referrers_are_found_and_filtered() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &["--delete"]);
    let manifest = server.push_image("a", "v1", b"layer");
    let subject = digest_of(&manifest);
    let config = sha256(b"{}");
    let artifact = |artifact_type: Option<&str>| {
        let mut artifact = image(&config, &config, 2);
        artifact["subject"] = json!({"mediaType": MANIFEST, "digest": subject, "size": 1});
        artifact["annotations"] = json!({"of": artifact_type});
        if let Some(artifact_type) = artifact_type {
            artifact["artifactType"] = json!(artifact_type);
        }
        artifact
    };
    let path = format!("/v2/a/referrers/{subject}");
    let none = server.ask("GET", path.as_str()).is(200);
    assert_eq!(none.get("content-type"), Some(INDEX));
    let empty = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []});
    assert_eq!(none.json(), empty);
    let unknown = format!("/v2/none/referrers/{}", sha256(b"x"));
    assert_eq!(server.ask("GET", unknown).is(200).json(), empty);
    server.ask("GET", "/v2/a/referrers/sha256:no").fails(400, "DIGEST_INVALID");
    let mut all = Vec::new();
    for artifact_type in [Some("x/one"), Some("x/two"), None] {
        let artifact = artifact(artifact_type);
        let put = server.push_manifest("a", &digest_of(&artifact), &artifact);
        assert_eq!(put.is(201).get("oci-subject"), Some(&*subject));
        let config_type = artifact["config"]["mediaType"].as_str().unwrap();
        all.push(json!({
            "mediaType": MANIFEST,
            "digest": digest_of(&artifact),
            "size": artifact.to_string().len(),
            "artifactType": artifact_type.unwrap_or(config_type),
            "annotations": artifact["annotations"],
        }));
    }
    let sorted = |mut list: Vec<Value>| {
        list.sort_by_key(|entry| entry["digest"].to_string());
        list
    };
    let list = server.ask("GET", path.as_str()).is(200);
    assert!(list.get("oci-filters-applied").is_none());
    let found = list.json()["manifests"].as_array().unwrap().clone();
    assert_eq!(sorted(found), sorted(all.clone()));
    let list = server.ask("GET", format!("{path}?artifactType=x%2Ftwo"));
    let list = list.is(200);
    assert_eq!(list.get("oci-filters-applied"), Some("artifactType"));
    assert_eq!(list.json()["manifests"], json!([all[1]]));
    // A subject may come later, and its referrers may go one by one.
    let one = all[0]["digest"].as_str().unwrap();
    server.ask("DELETE", format!("/v2/a/manifests/{one}")).is(202);
    let left = server.ask("GET", path).json();
    assert_eq!(left["manifests"].as_array().unwrap().len(), 2);
}

#[test]
fn referrers_pushed_the_old_way_are_found_too() {
    let env = TestEnv::new();
    let directory = env.path("r");
    let server = Server::docker(&directory);
    let subject = server_image(&server, "a", "v1");
    let config = sha256(b"{}");
    let mut artifact = image(&config, &config, 2);
    artifact["artifactType"] = json!("x/old");
    artifact["subject"] = json!({"mediaType": MANIFEST, "digest": subject, "size": 1});
    let digest = digest_of(&artifact);
    server.push_manifest("a", &digest, &artifact).is(201);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
        {"mediaType": MANIFEST, "digest": digest, "size": artifact.to_string().len()},
    ]});
    let tag = subject.replace(':', "-");
    server.push_manifest("a", &tag, &index).is(201);
    drop(server);
    let server = Server::start(&directory, &[]);
    let list = server.ask("GET", format!("/v2/a/referrers/{subject}")).is(200);
    assert_eq!(list.json()["manifests"][0]["digest"], json!(digest));
}

/// docker-registry takes a blob by POST and PUT only.
fn server_image(server: &Server, repository: &str, tag: &str) -> String {
    for content in [&b"{}"[..], b"layer"] {
        let begun = server.ask("POST", format!("/v2/{repository}/blobs/uploads/"));
        let path = begun.is(202).location();
        let join = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{join}digest={}", sha256(content));
        let put = crate::registry_server::http::Request::new("PUT", path);
        server.send(&put.header("Content-Type", "application/octet-stream").body(content)).is(201);
    }
    let manifest = image(&sha256(b"{}"), &sha256(b"layer"), 5);
    server.push_manifest(repository, tag, &manifest).is(201);
    digest_of(&manifest)
}
