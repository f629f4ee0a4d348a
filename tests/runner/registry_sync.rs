//! `imgctl registry save`, `sync` and `copy`: real registries and trees on disk, filled from one
//! another; docker-registry serves the trees, skopeo reads what arrives.

use std::path::Path;

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, json, tool};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

/// A registry with `team/x:v1`, `team/y:v1` (they share a layer) and `multi:v1` (two platforms).
fn upstream(env: &TestEnv) -> Registry {
    let registry = Registry::start();
    let both = "linux/amd64,linux/arm64";
    for (name, platform) in [("team/x", "linux/amd64"), ("team/y", "linux/amd64"), ("multi", both)]
    {
        let kubefile = "FROM scratch\nCOPY shared /\nCOPY own /\n";
        let files = [("shared", "the same\n"), ("own", name)];
        let context = env.context(&format!("context-{}", name.replace('/', "-")), kubefile, &files);
        let context = context.to_str().unwrap();
        let image = format!("{}/{name}:v1", registry.host);
        env.imgctl(["build", "--platform", platform, "-t", &image, context]).ok();
        env.imgctl(["push", &image]).ok();
    }
    registry
}

/// Copies all of an image out of a registry, checking every digest, and gives its digest.
fn pulled(env: &TestEnv, name: &str) -> String {
    let layout = env.path("pulled");
    let _ = std::fs::remove_dir_all(&layout);
    let words =
        ["--insecure-policy", "copy", "--all", "--preserve-digests", "--src-tls-verify=false"];
    let (from, to) = (format!("docker://{name}"), format!("oci:{}:x", layout.display()));
    Ran::new(tool("skopeo", words.into_iter().chain([&*from, &*to]))).ok();
    let index = json(&layout.join("index.json"));
    index["manifests"][0]["digest"].as_str().unwrap().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_registry_goes_to_a_tree_and_on_to_a_registry_unchanged() {
    let env = TestEnv::new();
    let (from, to) = (upstream(&env), Registry::start());
    let tree = env.path("tree");
    let plan = env.imgctl(["registry", "sync", "--dry-run", &from.host, text(&tree)]).ok();
    assert_eq!(plan.stdout().lines().filter(|line| line.starts_with("add ")).count(), 3);
    assert!(!tree.exists(), "a dry run makes nothing");
    let words = ["--json", "registry", "sync", &from.host, text(&tree)];
    let done = env.imgctl(words).ok().json();
    assert_eq!(done.as_array().unwrap().len(), 3);
    let again = env.imgctl(words).ok().json();
    assert_eq!(again.as_array().unwrap().len(), 0);

    let words = ["--json", "registry", "sync", text(&tree), &to.host];
    let done = env.imgctl(words).ok().json();
    let sum = |member: &str| -> u64 {
        let all = done.as_array().unwrap().iter();
        all.map(|one| one["blobs"][member].as_u64().unwrap()).sum()
    };
    // Four configs, three layers of their own, a shared one: that goes once, then it is mounted.
    assert_eq!((sum("copied"), sum("mounted")), (4 + 3 + 1, 2), "{done}");
    for name in ["team/x:v1", "team/y:v1", "multi:v1"] {
        let digests =
            [&from, &to].map(|registry| pulled(&env, &format!("{}/{name}", registry.host)));
        assert_eq!(digests[0], digests[1], "{name}");
    }
    assert_eq!(env.imgctl(words).ok().json().as_array().unwrap().len(), 0);
}

#[test]
fn a_part_of_a_registry_goes_below_a_prefix() {
    let env = TestEnv::new();
    let (from, to) = (upstream(&env), Registry::start());
    let source = format!("docker://{}/team", from.host);
    let destination = format!("{}/mirror/a", to.host);
    let done = env.imgctl(["registry", "sync", &source, &destination]).ok();
    let names: Vec<String> =
        done.stdout().lines().map(|line| line.split('@').next().unwrap().to_owned()).collect();
    assert_eq!(names, ["x:v1", "y:v1"]);
    pulled(&env, &format!("{}/mirror/a/x:v1", to.host));
}

#[test]
fn a_tree_with_a_blob_missing_is_an_error_that_names_the_image() {
    let env = TestEnv::new();
    let (from, to) = (upstream(&env), Registry::start());
    let tree = env.path("tree");
    env.imgctl(["registry", "sync", &from.host, text(&tree)]).ok();
    let layout = env.path("pulled");
    pulled(&env, &format!("{}/team/y:v1", from.host));
    let manifest = json(&layout.join("index.json"))["manifests"][0]["digest"].clone();
    let blob = |digest: &str| layout.join("blobs").join(digest.replace(':', "/"));
    let manifest = json(&blob(manifest.as_str().unwrap()));
    let config = manifest["config"]["digest"].as_str().unwrap();
    let hex = config.trim_start_matches("sha256:");
    let data = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
    std::fs::remove_file(tree.join(data)).unwrap();
    let ran = env.imgctl(["registry", "sync", text(&tree), &to.host]).fails(NOT_FOUND);
    assert!(ran.stderr().contains("team/y:v1") && ran.stderr().contains(hex), "{}", ran.report());
    pulled(&env, &format!("{}/team/x:v1", to.host));
}

#[test]
fn images_are_saved_without_their_domain_and_docker_registry_serves_them() {
    let env = TestEnv::new();
    let from = upstream(&env);
    let server = Registry::start();
    let list = env.write("images.txt", format!("# images\n\n'{}/team/y:v1'\n", from.host));
    let multi = pulled(&env, &format!("{}/multi:v1", from.host));
    let images = format!("{0}/team/x:v1,{0}/multi@{multi}", from.host);
    let archive = format!("oci-archive:{}:v1", env.path("y.tar").display());
    env.imgctl(["push", &format!("{}/team/y:v1", from.host), &archive]).ok();
    let tar = format!("oci-archive:{}@apps/z:v1", env.path("y.tar").display());
    let data = server.data();
    let words = [
        "--json",
        "registry",
        "save",
        "--images",
        &images,
        "-f",
        text(&list),
        "--tars",
        &tar,
        "--registry-dir",
        text(&data),
        "--platform",
        "linux/amd64",
    ];
    let done = env.imgctl(words).ok().json();
    assert_eq!(done.as_array().unwrap().len(), 4, "{done}");
    for (name, upstream) in
        [("team/x:v1", "team/x:v1"), ("team/y:v1", "team/y:v1"), ("apps/z:v1", "team/y:v1")]
    {
        let saved = pulled(&env, &format!("{}/{name}", server.host));
        assert_eq!(saved, pulled(&env, &format!("{}/{upstream}", from.host)), "{name}");
    }
    // By its digest an index can be had, though one platform alone came along.
    let by_digest = format!("docker://{}/multi@{multi}", server.host);
    let to = format!("oci:{}:x", env.path("one").display());
    let words = ["--insecure-policy", "--override-arch", "amd64", "copy"];
    let places = ["--src-tls-verify=false", &by_digest, &to];
    Ran::new(tool("skopeo", words.iter().chain(&places))).ok();
    let to = Registry::start();
    let tree = env.path("copy");
    env.imgctl(["registry", "sync", text(&data), text(&tree)]).ok();
    env.imgctl(["registry", "copy", "--all", &format!("{}/multi:v1", from.host), &to.host]).ok();
    assert_eq!(pulled(&env, &format!("{}/multi:v1", to.host)), multi);
}

#[test]
fn two_images_that_become_one_name_are_refused() {
    let env = TestEnv::new();
    let (one, two) = (upstream(&env), Registry::start());
    env.imgctl(["registry", "copy", &format!("{}/team/x:v1", one.host), &two.host]).ok();
    let images = format!("{0}/team/x:v1,{1}/team/x:v1", one.host, two.host);
    let ran = env.imgctl(["registry", "save", "--images", &images]).fails(USAGE);
    let said = ran.stderr();
    assert!(said.contains(&one.host) && said.contains(&two.host), "{}", ran.report());
    // It looks into the working directory, which names none.
    env.imgctl(["registry", "save"]).fails(NOT_FOUND);
    let missing = format!("{}/none:v1", one.host);
    let ran = env.imgctl(["registry", "save", "--images", &missing]).fails(NOT_FOUND);
    assert!(ran.stderr().contains("none:v1"), "{}", ran.report());
    env.imgctl(["registry", "sync", "none", &two.host]).fails(USAGE);
    env.imgctl(["registry", "sync", "./none", &two.host]).fails(NOT_FOUND);
}

#[test]
fn what_a_context_names_is_saved_into_its_registry_directory() {
    let env = TestEnv::new();
    let from = upstream(&env);
    let host = &from.host;
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - name: c\n    image: {host}/multi:v1\n"
    );
    let (list, tars) = (format!("{host}/team/x:v1\n"), "oci-archive:y.tar@apps/z:v1\n");
    let files = [
        ("images/shim/list", &*list),
        ("images/skopeo/tar.txt", tars),
        ("manifests/pod.yaml", &pod),
    ];
    let context = env.context("cluster", "FROM scratch\nCOPY . .\n", &files);
    let tar = context.join("images/skopeo/y.tar");
    let archive = format!("oci-archive:{}:v1", tar.display());
    env.imgctl(["push", &format!("{host}/team/y:v1"), &archive]).ok();
    let save = ["registry", "save", text(&context), "--arch", "amd64"];
    env.imgctl(save).ok();
    let tree = context.join("registry");
    let listed = env.imgctl(["registry", "ls", "-n", text(&tree)]).ok();
    let names: Vec<String> = listed.stdout().lines().map(first_words).collect();
    assert_eq!(names, ["apps/z v1", "multi v1", "team/x v1"]);
    // Once more: nothing is fetched.
    let again = env.imgctl([&["--json"], &save[..]].concat()).ok().json();
    assert!(again.as_array().unwrap().iter().all(|one| one["blobs"]["copied"] == 0), "{again}");
    let empty = env.context("empty", "FROM scratch\n", &[]);
    let ran = env.imgctl(["registry", "save", text(&empty)]);
    let said = ran.fails(NOT_FOUND).stderr();
    assert!(said.contains("names no container images"), "{said}");
    assert!(!empty.join("registry").exists());
}

fn first_words(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().take(2).collect();
    words.join(" ")
}

#[test]
fn a_registry_is_listed_like_a_tree() {
    let env = TestEnv::new();
    let from = upstream(&env);
    let host = &from.host;
    let listed = |words: &[&str]| env.imgctl([&["registry", "ls"], words].concat());
    let all = listed(&[host]).ok().stdout();
    let names: Vec<String> = all.lines().map(first_words).collect();
    assert_eq!(names, ["REPOSITORY TAG", "multi v1", "team/x v1", "team/y v1"]);
    assert_eq!(listed(&[text(&from.data())]).ok().stdout(), all);
    let one = listed(&["--json", &format!("docker://{host}/multi")]);
    let one = one.ok().json();
    assert_eq!(one[0]["digest"], pulled(&env, &format!("{host}/multi:v1")));
    assert_eq!(one[0]["mediaType"], "application/vnd.oci.image.index.v1+json");
    let below = listed(&["-n", &format!("{host}/team")]).ok().stdout();
    let names: Vec<String> = below.lines().map(first_words).collect();
    assert_eq!(names, ["team/x v1", "team/y v1"]);
    let same = listed(&["-n", &format!("{host}/team"), "x"]).ok().stdout();
    assert_eq!(same.lines().map(first_words).collect::<Vec<_>>(), ["team/x v1"]);
    listed(&[&format!("{host}/none")]).fails(NOT_FOUND);
    listed(&["nowhere"]).fails(NOT_FOUND);
    listed(&["docker://x"]).fails(USAGE);
}
