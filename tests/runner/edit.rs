//! Image surgery: merge, rebase, annotate, bundle. What comes out is compared with what a Kubefile
//! that copies the same trees gives, and read by umoci.

use std::path::Path;

use crate::common::{Ran, TestEnv, needs_root, tool, tree};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;

/// A rootfs image, an application on it, and an application that stands alone.
fn three() -> TestEnv {
    let env = TestEnv::new();
    let base = "FROM scratch
LABEL sealos.io.type=rootfs version=v1 init=\"init.sh \\$x\"
ENV A=base PATH=/bin B=1
COPY . .
CMD [\"bash install.sh\"]
";
    let files = [
        ("Kubefile.ignored", ""),
        ("bin/tool", "tool\n"),
        ("etc/conf", "base\n"),
        ("registry/docker/registry/v2/blobs/x/data", "blob\n"),
    ];
    env.build("base:v1", &env.context("base", base, &files));
    let app = "FROM scratch
LABEL version=v2 extra=yes
ENV A=app C=2
COPY . .
ENTRYPOINT [\"bash first.sh\"]
CMD [\"kubectl apply -f manifests\", \"helm list\"]
";
    let files = [("manifests/a.yaml", "kind: A\n"), ("etc/conf", "app\n")];
    env.build("app:v1", &env.context("app", app, &files));
    let patch = "FROM base:v1\nCOPY add /add\nCMD [\"true\"]\n";
    env.build("patch:v1", &env.context("patch", patch, &[("add/x", "x\n")]));
    env
}

fn inspect(env: &TestEnv, name: &str) -> serde_json::Value {
    env.imgctl(["inspect", name]).ok().json()
}

fn config(env: &TestEnv, name: &str) -> serde_json::Value {
    env.config(name)["config"].clone()
}

/// The merged tree must be what copying the images one over the other gives.
fn same_as_copies(env: &TestEnv, merged: &str, images: &[&str]) {
    let copies: String = images.iter().map(|image| format!("COPY --from={image} / /\n")).collect();
    let reference = format!("reference-{}:v1", merged.replace(':', "-"));
    let context = env.context(
        &format!("reference-{}", merged.replace(':', "-")),
        &format!("FROM scratch\n{copies}"),
        &[],
    );
    env.build(&reference, &context);
    let left = env.export(merged, &format!("merged-{}", merged.replace(':', "-")));
    let right = env.export(&reference, &reference.replace(':', "-tree-"));
    let (left, right) = (tree::list(&left), tree::list(&right));
    let names = |tree: &tree::Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&left), names(&right));
    for (name, entry) in &left {
        assert_eq!(
            (entry.kind, entry.mode, &entry.content),
            (right[name].kind, right[name].mode, &right[name].content),
            "{name}"
        );
    }
}

#[test]
fn merging_reuses_layers_and_joins_settings() {
    let env = three();
    let id = env.imgctl(["merge", "-t", "all:v1", "base:v1", "app:v1"]).ok().stdout();
    assert_eq!(id.len(), 64, "{id}");
    let all = config(&env, "all:v1");
    assert_eq!(all["Labels"]["version"], "v2");
    assert_eq!(all["Labels"]["sealos.io.type"], "rootfs");
    assert_eq!(all["Labels"]["apps.sealos.io/type"], "rootfs");
    assert_eq!(all["Labels"]["init"], "init.sh $x");
    assert_eq!(all["Env"], serde_json::json!(["A=app", "B=1", "C=2"]));
    assert_eq!(all["Entrypoint"], serde_json::json!(["bash first.sh"]));
    assert_eq!(
        all["Cmd"],
        serde_json::json!(["bash install.sh", "kubectl apply -f manifests", "helm list"])
    );
    let digests = |name: &str| {
        let layers = env.imgctl(["inspect", "-t", "layer", name]).ok().json();
        let list = layers.as_array().unwrap().clone();
        list.iter().map(|layer| layer["digest"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(digests("all:v1"), [digests("base:v1"), digests("app:v1")].concat());
    same_as_copies(&env, "all:v1", &["base:v1", "app:v1"]);
    // The same again is the same image.
    let again = env.imgctl(["merge", "-t", "again:v1", "base:v1", "app:v1"]).ok().stdout();
    assert_eq!(id, again);
}

#[test]
fn layers_that_come_twice_are_kept_once_where_that_is_the_same() {
    let env = three();
    env.imgctl(["merge", "-t", "once:v1", "base:v1", "patch:v1"]).ok();
    let layers = |name: &str| {
        let layers = env.imgctl(["inspect", "-t", "layer", name]).ok().json();
        layers.as_array().unwrap().len()
    };
    assert_eq!(layers("once:v1"), layers("patch:v1"));
    same_as_copies(&env, "once:v1", &["base:v1", "patch:v1"]);
    // app changes a file of base; the base inside patch brings the old one back.
    env.imgctl(["merge", "-t", "back:v1", "base:v1", "app:v1", "patch:v1"]).ok();
    same_as_copies(&env, "back:v1", &["base:v1", "app:v1", "patch:v1"]);
}

#[test]
fn deletions_of_one_image_do_not_reach_another() {
    if !needs_root() {
        return;
    }
    let env = three();
    let kubefile = "FROM app:v1
COPY --from=docker.io/library/tools:v1 / /
RUN [\"/bin/busybox\", \"rm\", \"-r\", \"/etc/conf\", \"/bin\"]
";
    let tools = env.context("tools", "FROM scratch\nCOPY busybox /bin/busybox\n", &[]);
    std::fs::copy("/bin/busybox", tools.join("busybox")).unwrap();
    env.build("docker.io/library/tools:v1", &tools);
    env.build("gone:v1", &env.context("gone", kubefile, &[]));
    env.imgctl(["merge", "-t", "kept:v1", "base:v1", "gone:v1"]).ok();
    let tree = tree::list(&env.export("kept:v1", "kept"));
    for name in ["etc/conf", "bin/tool", "manifests/a.yaml"] {
        assert!(tree.contains_key(name), "{name} is missing");
    }
    same_as_copies(&env, "kept:v1", &["base:v1", "gone:v1"]);
}

#[test]
fn a_file_in_the_place_of_a_directory_is_an_error_that_names_both() {
    let env = three();
    let odd = env.context("odd", "FROM scratch\nCOPY etc /etc\n", &[("etc", "a file\n")]);
    env.build("odd:v1", &odd);
    let ran = env.imgctl(["merge", "-t", "x:v1", "base:v1", "odd:v1"]).fails(USAGE);
    let said = ran.stderr();
    for part in ["/etc", "base:v1", "odd:v1"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!env.imgctl(["inspect", "x:v1"]).success());
}

#[test]
fn a_merged_image_is_read_by_others() {
    let env = three();
    env.imgctl(["merge", "--compression", "gzip", "-t", "all:v1", "base:v1", "app:v1"]).ok();
    let docker = env.path("all.tar");
    let save = ["save", "--format", "docker-archive", "all:v1", "-o"];
    let mut command = env.command(save);
    command.arg(&docker);
    Ran::new(command).ok();
    let source = format!("docker-archive:{}", docker.display());
    let said = Ran::new(tool("skopeo", ["inspect", "--config", &source])).ok();
    assert_eq!(said.json()["config"]["Labels"]["version"], "v2");
}

#[test]
fn rebasing_exchanges_the_base_and_what_came_from_it() {
    let env = three();
    let newer = "FROM scratch
LABEL sealos.io.type=rootfs version=v9
ENV A=newer PATH=/bin D=4
COPY bin /bin
CMD [\"bash other.sh\"]
";
    let files = [("bin/tool", "tool 2\n"), ("bin/more", "more\n")];
    env.build("base:v2", &env.context("newer", newer, &files));
    env.imgctl(["rebase", "patch:v1", "--new-base", "base:v2", "-t", "moved:v1"]).ok();
    let moved = config(&env, "moved:v1");
    assert_eq!(moved["Labels"]["version"], "v9");
    assert_eq!(moved["Env"], serde_json::json!(["PATH=/bin", "A=newer", "D=4"]));
    assert_eq!(moved["Cmd"], serde_json::json!(["true"]));
    let names: Vec<String> = tree::list(&env.export("moved:v1", "moved")).into_keys().collect();
    assert_eq!(names, ["add", "add/x", "bin", "bin/more", "bin/tool"]);
    let ran = env
        .imgctl([
            "rebase",
            "app:v1",
            "--old-base",
            "base:v1",
            "--new-base",
            "base:v2",
            "-t",
            "x:v1",
        ])
        .fails(USAGE);
    assert!(ran.stderr().contains("not based on"), "{}", ran.stderr());
    let ran = env.imgctl(["rebase", "app:v1", "--new-base", "base:v2", "-t", "x:v1"]).fails(USAGE);
    assert!(ran.stderr().contains("--old-base"), "{}", ran.stderr());
}

#[test]
fn annotating_changes_documents_only() {
    let env = three();
    let before = inspect(&env, "app:v1");
    env.imgctl([
        "annotate",
        "app:v1",
        "-a",
        "who=we",
        "--label",
        "extra=no",
        "--remove-label",
        "version",
    ])
    .ok();
    let manifest = env.imgctl(["inspect", "-t", "manifest", "app:v1"]).ok().json();
    assert_eq!(manifest["annotations"]["who"], "we");
    let labels = &config(&env, "app:v1")["Labels"];
    assert_eq!(labels["extra"], "no");
    assert!(labels.get("version").is_none());
    let after = inspect(&env, "app:v1");
    assert_eq!(before["OCIv1"]["rootfs"], after["OCIv1"]["rootfs"]);
    env.imgctl(["annotate", "app:v1", "--remove", "who", "-t", "plain:v1"]).ok();
    let manifest = env.imgctl(["inspect", "-t", "manifest", "plain:v1"]).ok().json();
    assert!(manifest["annotations"].get("who").is_none());
    env.imgctl(["annotate", "nothing:v1", "-a", "a=b"]).fails(NOT_FOUND);
}

/// An image of a large layer and a small one, and the next version of it.
fn two_versions() -> TestEnv {
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY big /big\nCOPY small /small\n";
    let big = "x".repeat(1 << 20);
    for version in ["v1", "v2"] {
        let files = [("big/file", big.as_str()), ("small/version", version)];
        let context = env.context(version, kubefile, &files);
        let name = format!("c:{version}");
        let context = context.to_str().unwrap();
        let arguments =
            ["build", "--compression", "none", "--timestamp", "0", "-t", &name, context];
        env.imgctl(arguments).ok();
    }
    env
}

fn carry(env: &TestEnv, arguments: &[&str], file: &Path) -> Ran {
    let mut command = env.command(arguments);
    command.arg("-o").arg(file);
    Ran::new(command)
}

#[test]
fn a_bundle_carries_the_difference_and_needs_its_base() {
    let env = two_versions();
    let (file, whole) = (env.path("update.tar"), env.path("v1.tar"));
    carry(&env, &["bundle", "create", "c:v1", "c:v2"], &file).ok();
    carry(&env, &["save", "c:v1"], &whole).ok();
    let size = std::fs::metadata(&file).unwrap().len();
    assert!(size < 64 << 10, "the bundle has {size} bytes");

    let inspected = env.imgctl(["--json", "bundle", "inspect", file.to_str().unwrap()]).ok();
    let inspected = inspected.json();
    assert_eq!(inspected["base"]["name"], "localhost/c:v1");
    assert_eq!(inspected["image"]["name"], "localhost/c:v2");
    assert_eq!(inspected["assumed"].as_array().unwrap().len(), 1);

    let there = TestEnv::new();
    let path = file.to_str().unwrap();
    let ran = there.imgctl(["bundle", "apply", path]).fails(NOT_FOUND);
    assert!(ran.stderr().contains("localhost/c:v1"), "{}", ran.stderr());
    assert_eq!(there.imgctl(["images", "-q"]).ok().stdout(), "");
    there.imgctl(["load", "-i", whole.to_str().unwrap()]).ok();
    let ran = there.imgctl(["bundle", "apply", "--verify", path]).ok();
    assert_eq!(ran.stdout(), "Loaded image: localhost/c:v2");
    there.imgctl(["scrub"]).ok();
    let digest = |env: &TestEnv| {
        let ran = env.imgctl(["images", "--no-trunc", "--digests", "--json", "c:v2"]);
        ran.ok().json()[0]["digest"].clone()
    };
    assert_eq!(digest(&there), digest(&env));
    assert_eq!(std::fs::read(there.export("c:v2", "tree").join("small/version")).unwrap(), b"v2");
    // A whole archive is no bundle, and says so.
    let ran = there.imgctl(["bundle", "apply", whole.to_str().unwrap()]).fails(USAGE);
    assert!(ran.stderr().contains("imgctl load"), "{}", ran.stderr());
}

#[test]
fn a_damaged_base_is_found() {
    let env = two_versions();
    let (file, whole) = (env.path("update.tar.zst"), env.path("v1.tar"));
    carry(&env, &["diff", "--patch", "c:v1", "c:v2"], &file).ok();
    carry(&env, &["save", "c:v1"], &whole).ok();
    let there = TestEnv::new();
    there.imgctl(["load", "-i", whole.to_str().unwrap()]).ok();
    let path = file.to_str().unwrap();
    let inspected = env.imgctl(["--json", "bundle", "inspect", path]).ok().json();
    let assumed = inspected["assumed"][0]["digest"].as_str().unwrap().to_owned();
    let blob = there.root().join("store/blobs").join(assumed.replace(':', "/"));
    let mut content = std::fs::read(&blob).unwrap();
    content[700_000] ^= 1;
    std::fs::remove_file(&blob).unwrap();
    std::fs::write(&blob, content).unwrap();
    let ran = there.imgctl(["bundle", "apply", "--verify", path]).fails(BAD_CONTENT);
    assert!(ran.stderr().contains(&assumed), "{}", ran.stderr());
}

#[test]
fn what_is_not_here_is_pulled() {
    let env = three();
    let registry = crate::common::registry::Registry::start();
    let remote = format!("{}/team/app:v1", registry.host);
    env.imgctl(["push", "app:v1", &remote]).ok();
    env.imgctl(["rmi", "app:v1"]).ok();
    env.imgctl(["merge", "--pull=never", "-t", "all:v1", "base:v1", &remote]).fails(NOT_FOUND);
    env.imgctl(["merge", "-t", "all:v1", "base:v1", &remote]).ok();
    same_as_copies(&env, "all:v1", &["base:v1", &remote]);
}
