//! `imgctl manifest`: lists put together from the store and from registries, pushed and read back.

use std::path::Path;

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, tool};
use serde_json::Value;

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

/// An environment with `x:amd64` and `x:arm64`, each of one platform, and `multi:v1` of both.
fn filled() -> TestEnv {
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY f /\nCMD [\"/f\"]\n";
    let context = env.context("context", kubefile, &[("f", "content\n")]);
    let context = context.to_str().unwrap();
    for arch in ["amd64", "arm64"] {
        let (platform, name) = (format!("linux/{arch}"), format!("x:{arch}"));
        env.imgctl(["build", "--platform", &platform, "-t", &name, context]).ok();
    }
    let both = "linux/amd64,linux/arm64";
    env.imgctl(["build", "--platform", both, "-t", "multi:v1", context]).ok();
    env
}

fn skopeo(arguments: &[&str]) -> Ran {
    let words = ["--insecure-policy"].iter().chain(arguments);
    Ran::new(tool("skopeo", words)).ok()
}

fn raw(name: &str) -> Value {
    let name = format!("docker://{name}");
    skopeo(&["inspect", "--raw", "--tls-verify=false", &name]).json()
}

/// The platforms of a list, in its order.
fn platforms(list: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entries = list["manifests"].as_array().unwrap().iter();
    entries
        .map(|entry| {
            let platform = &entry["platform"];
            let variant = text(&platform["variant"]);
            let name = format!("{}/{}", text(&platform["os"]), text(&platform["architecture"]));
            if variant.is_empty() { name } else { format!("{name}/{variant}") }
        })
        .collect()
}

fn inspect(env: &TestEnv, list: &str) -> Value {
    env.imgctl(["manifest", "inspect", list]).ok().json()
}

fn digest(env: &TestEnv, name: &str) -> String {
    let images = env.imgctl(["--json", "images", name]).ok().json();
    images[0]["digest"].as_str().unwrap().to_owned()
}

#[test]
fn a_list_is_made_changed_and_removed() {
    let env = filled();
    env.imgctl(["manifest", "exists", "list:v1"]).fails(NOT_FOUND);
    env.imgctl(["manifest", "create", "list:v1"]).ok();
    env.imgctl(["manifest", "exists", "list:v1"]).ok();
    env.imgctl(["manifest", "exists", "x:amd64"]).fails(USAGE);
    env.imgctl(["manifest", "add", "list:v1", "x:amd64", "x:arm64"]).ok();
    assert_eq!(platforms(&inspect(&env, "list:v1")), ["linux/amd64", "linux/arm64"]);

    let arm = digest(&env, "x:arm64");
    let words = ["manifest", "annotate", "list:v1", &arm, "--arch", "arm", "--variant", "v6"];
    env.imgctl(words.iter().chain(&["--annotation", "a=b"])).ok();
    let list = inspect(&env, "list:v1");
    assert_eq!(platforms(&list), ["linux/amd64", "linux/arm/v6"]);
    assert_eq!(list["manifests"][1]["annotations"]["a"], "b");

    env.imgctl(["manifest", "remove", "list:v1", "x:arm64"]).ok();
    env.imgctl(["manifest", "remove", "list:v1", &arm]).fails(NOT_FOUND);
    assert_eq!(platforms(&inspect(&env, "list:v1")), ["linux/amd64"]);

    env.imgctl(["manifest", "create", "list:v1", "x:arm64"]).fails(USAGE);
    env.imgctl(["manifest", "create", "--amend", "list:v1", "x:arm64"]).ok();
    // What the list needs stays; only the names were three.
    env.imgctl(["rmi", "x:amd64", "x:arm64", "multi:v1"]).ok();
    env.imgctl(["save", "list:v1", "-o", env.path("list.tar").to_str().unwrap()]).ok();
    env.imgctl(["manifest", "rm", "list:v1"]).ok();
    assert_eq!(env.imgctl(["images", "-q"]).ok().stdout(), "");
    // The build cache keeps the layer, nothing keeps former states of the list.
    let blobs = std::fs::read_dir(env.root().join("store/blobs/sha256")).unwrap();
    let is_document = |path: &Path| std::fs::read(path).unwrap().starts_with(b"{");
    let left = blobs.map(|blob| blob.unwrap().path());
    assert_eq!(left.filter(|path| is_document(path)).count(), 0);
}

#[test]
fn of_an_image_for_several_platforms_one_is_added_or_all() {
    let env = filled();
    env.imgctl(["manifest", "create", "one:v1", "multi:v1"]).ok();
    assert_eq!(platforms(&inspect(&env, "one:v1")).len(), 1);
    env.imgctl(["manifest", "add", "--arch", "arm64", "one:v1", "multi:v1"]).ok();
    assert_eq!(platforms(&inspect(&env, "one:v1")).len(), 2);
    env.imgctl(["manifest", "create", "--all", "all:v1", "multi:v1"]).ok();
    assert_eq!(digest(&env, "all:v1"), digest(&env, "multi:v1"));
    let ran = env.imgctl(["manifest", "add", "--arch", "s390x", "all:v1", "multi:v1"]);
    assert!(ran.fails(NOT_FOUND).stderr().contains("linux/s390x"));
}

#[test]
fn a_list_of_the_stores_images_is_pushed_with_them() {
    let (env, registry) = (filled(), Registry::start());
    env.imgctl(["manifest", "create", "list:v1", "x:amd64", "x:arm64"]).ok();
    let name = format!("{}/team/list:v1", registry.host);
    let to = format!("docker://{name}");
    let pushed = env.imgctl(["manifest", "push", "--all", "list:v1", &to]).ok();
    assert_eq!(pushed.stdout(), digest(&env, "list:v1"));
    assert_eq!(platforms(&raw(&name)), ["linux/amd64", "linux/arm64"]);
    for arch in ["amd64", "arm64"] {
        let layout = format!("oci:{}:{arch}", env.path("pulled").display());
        skopeo(&["copy", "--override-arch", arch, "--src-tls-verify=false", &to, &layout]);
        let config = skopeo(&["inspect", "--config", &layout]).json();
        assert_eq!(config["architecture"], arch);
    }
    // Docker's form of it, removed from the store once it is there.
    let docker = format!("docker://{}/team/list:docker", registry.host);
    env.imgctl(["manifest", "push", "--format", "v2s2", "--rm", "list:v1", &docker]).ok();
    let list = raw(docker.trim_start_matches("docker://"));
    assert_eq!(list["mediaType"], "application/vnd.docker.distribution.manifest.list.v2+json");
    let manifest = "application/vnd.docker.distribution.manifest.v2+json";
    assert_eq!(list["manifests"][1]["mediaType"], manifest);
    env.imgctl(["manifest", "exists", "list:v1"]).fails(NOT_FOUND);
}

/// What a CI does: each machine pushes its platform, then one joins them.
#[test]
fn images_of_a_registry_are_joined_without_being_fetched() {
    let (env, registry) = (filled(), Registry::start());
    let name = |tag: &str| format!("{}/team/x:{tag}", registry.host);
    for arch in ["amd64", "arm64"] {
        env.imgctl(["push", &format!("x:{arch}"), &name(arch)]).ok();
    }
    let ci = TestEnv::new();
    let list = name("v1");
    ci.imgctl(["manifest", "create", &list]).ok();
    for arch in ["amd64", "arm64"] {
        let image = format!("docker://{}", name(arch));
        ci.imgctl(["manifest", "add", &list, &image]).ok();
    }
    let blobs = std::fs::read_dir(ci.root().join("store/blobs/sha256")).unwrap();
    assert!(blobs.count() <= 3, "only states of the list are kept");
    ci.imgctl(["images"]).ok();
    ci.imgctl(["prune"]).ok();
    let to = format!("docker://{list}");
    let pushed = ci.imgctl(["--json", "manifest", "push", "--all", &list, &to]).ok().json();
    assert_eq!(pushed["blobs"]["copied"], 0, "{pushed}");
    assert_eq!(platforms(&raw(&list)), ["linux/amd64", "linux/arm64"]);
    assert_eq!(raw(&list)["manifests"][0]["digest"], digest(&env, "x:amd64").as_str());
    assert!(raw(&list).get("annotations").is_none());

    // Elsewhere they are not yet: they come from where they are.
    let elsewhere = Registry::start();
    let to = format!("docker://{}/mirror/x:v1", elsewhere.host);
    ci.imgctl(["manifest", "push", &list, &to]).ok();
    let layout = format!("oci:{}:x", ci.path("pulled").display());
    skopeo(&["copy", "--all", "--src-tls-verify=false", &to, &layout]);
    // A list whose members are there goes alone.
    let again = format!("docker://{}/mirror/x:again", elsewhere.host);
    ci.imgctl(["manifest", "push", "--all=false", &list, &again]).ok();
    assert_eq!(platforms(&raw(again.trim_start_matches("docker://"))).len(), 2);
    // What is not here cannot be compressed.
    let ran = ci.imgctl(["manifest", "push", "--compression", "gzip", &list, &again]);
    assert!(ran.fails(NOT_FOUND).stderr().contains("not in the store"));
}

#[test]
fn a_list_is_shown_where_it_is() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/multi:v1", registry.host);
    env.imgctl(["push", "multi:v1", &name]).ok();
    let shown = env.imgctl(["manifest", "inspect", &name]).ok().json();
    assert_eq!(shown, raw(&name));
    assert_eq!(shown, inspect(&env, "multi:v1"));
    env.imgctl(["manifest", "inspect", "none:v1"]).fails(NOT_FOUND);
    let missing = format!("docker://{}/none:v1", registry.host);
    env.imgctl(["manifest", "inspect", &missing]).fails(NOT_FOUND);
}
