//! Trees on a host: what several images give together, rendered, switched, kept and found again.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::agent_tree::support::{act, finish, start};
use crate::common::tree::{Compare, assert_same, list};
use crate::common::{Ran, TestEnv, tool};

const BLOB: &str = "what a registry holds";

/// Path of a blob in a registry.
fn blob(content: &str) -> String {
    use sha2::Digest;
    let hex: String =
        sha2::Sha256::digest(content.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("registry/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2])
}

/// Builds `rootfs:1` (with a registry in its layers) and `patch:1`.
fn images(env: &TestEnv) {
    let blob = blob(BLOB);
    env.context(
        "rootfs",
        "FROM scratch\nENV port=5000 name=rootfs\nCOPY . /\n",
        &[
            ("bin/tool", "#!/bin/sh\necho tool\n"),
            ("etc/x.conf.tmpl", "port={{ .port }} name={{ .name }} host={{ .Host.name }}\n"),
            ("scripts/init.sh.tmpl", "#!/bin/bash\necho {{ .port }}\n"),
            ("etc/data.yaml", "# comment\na: 1 # one\nb: 2\n"),
            ("removed", "x"),
            ("big", &"0123456789".repeat(50_000)),
            (&blob, BLOB),
        ],
    );
    env.build("rootfs:1", &env.path("rootfs"));
    env.context(
        "patch",
        "FROM scratch\nENV name=patch\nCOPY . /\n",
        &[
            ("etc/y.conf.tera", "{{ name }} {{ Env.port }}\n"),
            ("etc/z.conf.tmpl", "{{ .name }} {{ env \"port\" }} {{ env \"HOME\" }}|\n"),
            ("bin/tool", "#!/bin/sh\necho patched\n"),
        ],
    );
    env.build("patch:1", &env.path("patch"));
}

/// A request for the tree of images.
fn request(env: &TestEnv, id: &str, names: &[&str]) -> Value {
    let mut layers = Vec::new();
    let mut inputs = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let config = env.config(name);
        let layout = env.path(format!("layout-{}", name.replace([':', '/'], "-")));
        let index = crate::common::json(&layout.join("index.json"));
        let digest = index["manifests"][0]["digest"].as_str().unwrap();
        let manifest = crate::common::json(&layout.join("blobs").join(digest.replace(':', "/")));
        let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
        for (layer, diff_id) in manifest["layers"].as_array().unwrap().iter().zip(diff_ids) {
            let kind = layer["annotations"].to_string();
            layers.push(json!({
                "descriptor": layer, "diff_id": diff_id, "image": number,
                "registry": kind.contains("\"registry\""),
            }));
        }
        let environment: serde_json::Map<String, Value> = config["config"]["Env"]
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(|variable| variable.as_str()?.split_once('='))
            .filter(|(name, _)| *name != "PATH")
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect();
        inputs.push(json!({"name": name, "environment": environment}));
    }
    json!({
        "root": env.path("data/c"), "tree": "rootfs", "id": id, "layers": layers,
        "registry": true, "keep": 1,
        "inputs": {
            "images": inputs, "environment": {"port": "6000"}, "strict": true,
            "facts": {"Host": {"name": "h1"}},
            "configs": [{"name": "m", "path": "etc/data.yaml", "image": null,
                "strategy": "merge", "data": "a: 5\nc: 3\n"}],
        },
    })
}

fn with(mut request: Value, member: &str, value: Value) -> Value {
    request[member] = value;
    request
}

#[test]
fn a_tree_is_made_rendered_switched_and_not_made_twice() {
    let env = TestEnv::new();
    images(&env);
    let request = request(&env, "one", &["rootfs:1", "patch:1"]);
    let made = act(&env, "checkout", &request);
    assert_eq!(made.last()["changed"], true);
    let root = env.path("data/c");
    let read = |path: &str| fs::read_to_string(root.join("rootfs").join(path)).unwrap();
    let mode = |path: &str| {
        fs::metadata(root.join("rootfs").join(path)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(fs::read_link(root.join("rootfs")).unwrap(), Path::new("rootfs.one"));
    assert_eq!(read("etc/x.conf"), "port=6000 name=rootfs host=h1\n");
    assert_eq!(read("etc/y.conf"), "patch 6000\n");
    assert_eq!(read("etc/z.conf"), "patch 6000 |\n");
    assert_eq!(read("etc/data.yaml"), "# comment\na: 5 # one\nb: 2\nc: 3\n");
    assert_eq!(read("bin/tool"), "#!/bin/sh\necho patched\n");
    assert_eq!(mode("scripts/init.sh"), 0o755);
    assert_eq!(mode("."), 0o755);
    assert_eq!(fs::read_link(root.join("rootfs/registry")).unwrap(), Path::new("../registry"));
    assert_eq!(fs::read_to_string(root.join(blob(BLOB))).unwrap(), BLOB);
    let rendered =
        json!(["etc/data.yaml", "etc/x.conf", "etc/y.conf", "etc/z.conf", "scripts/init.sh"]);
    assert_eq!(made.last()["rendered"], rendered);

    let stamp = |path: &Path| fs::symlink_metadata(path).unwrap().modified().unwrap();
    let before = (stamp(&root), stamp(&root.join("trees")));
    let again = act(&env, "checkout", &request);
    assert_eq!(again.last()["changed"], false);
    assert_eq!(before, (stamp(&root), stamp(&root.join("trees"))));

    let digests: Vec<&Value> = request["layers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|layer| layer["registry"] == true)
        .map(|layer| &layer["descriptor"]["digest"])
        .collect();
    assert_eq!(digests.len(), 1);
    let question = json!({"root": root, "blobs": [], "registry_layers": digests,
        "trees": ["rootfs", "applications/x/workdir"]});
    let inventory = act(&env, "inventory", &question);
    assert_eq!(inventory.last()["trees"], json!({"rootfs": "one"}));
    assert_eq!(inventory.last()["registry_layers"].as_array().unwrap().len(), digests.len());
    // Without the data the records say nothing.
    fs::remove_dir_all(root.join("registry")).unwrap();
    let inventory = act(&env, "inventory", &question);
    assert_eq!(inventory.last()["registry_layers"], json!([]));
}

#[test]
fn the_tree_is_what_others_unpack() {
    let env = TestEnv::new();
    images(&env);
    let mut request = request(&env, "plain", &["rootfs:1"]);
    request["inputs"]["configs"] = json!([]);
    request["registry"] = json!(false);
    assert!(act(&env, "checkout", &request).success);
    let layout = env.path("layout-rootfs-1");
    let index = crate::common::json(&layout.join("index.json"));
    let digest = index["manifests"][0]["digest"].as_str().unwrap().replace(':', "/");
    let manifest = crate::common::json(&layout.join("blobs").join(digest));
    let theirs = env.path("theirs");
    fs::create_dir(&theirs).unwrap();
    for layer in manifest["layers"].as_array().unwrap() {
        let blob = layout.join("blobs").join(layer["digest"].as_str().unwrap().replace(':', "/"));
        let tar =
            if layer["mediaType"].as_str().unwrap().ends_with("zstd") { "--zstd" } else { "-p" };
        let arguments = ["-x", "-p", tar, "--exclude=registry", "-C"].map(Path::new);
        let mut command = tool("tar", arguments);
        command.arg(&theirs).arg("-f").arg(blob);
        Ran::new(command).ok();
    }
    for made in ["etc/x.conf", "scripts/init.sh"] {
        fs::remove_file(env.path("data/c/rootfs").join(made)).unwrap();
    }
    let compare = Compare { times_before: i64::MAX, directory_times: false };
    assert_same("tar", &list(&env.path("data/c/rootfs.plain")), &list(&theirs), compare);
    assert!(!env.path("data/c/registry").exists());
}

#[test]
fn former_trees_are_kept_as_many_as_asked_and_foreign_ones_moved_aside() {
    let env = TestEnv::new();
    images(&env);
    let root = env.path("data/c");
    fs::create_dir_all(root.join("rootfs/etc")).unwrap();
    fs::write(root.join("rootfs/etc/theirs"), "x").unwrap();
    let base = request(&env, "a", &["rootfs:1"]);
    let first = act(&env, "checkout", &base);
    assert!(first.last()["notes"][0].as_str().unwrap().contains("rootfs.former"));
    for id in ["b", "c"] {
        assert!(act(&env, "checkout", &with(base.clone(), "id", json!(id))).success);
    }
    let exists = |name: &str| root.join(name).exists();
    assert!(exists("rootfs.c") && exists("rootfs.b") && !exists("rootfs.a"));
    assert!(exists("rootfs.former/etc/theirs"));
    // Back to the former one: a switch, no unpacking.
    let inode = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(root.join(name)).unwrap().ino()
    };
    let before = inode("rootfs.b");
    assert!(act(&env, "checkout", &with(base, "id", json!("b"))).success);
    assert_eq!(fs::read_link(root.join("rootfs")).unwrap(), Path::new("rootfs.b"));
    assert_eq!((inode("rootfs.b"), exists("rootfs.c")), (before, true));
    // The layers of both survive a prune, and each tree can be made again.
    Ran::new(env.command(["rmi", "rootfs:1", "patch:1"])).ok();
    Ran::new(env.command(["prune", "--yes"])).ok();
    fs::remove_dir_all(root.join("rootfs.c")).unwrap();
    let mut again = with(request_from(&env, &root), "registry", json!(false));
    again["layers"].as_array_mut().unwrap().retain(|layer| layer["registry"] == false);
    assert!(act(&env, "checkout", &again).success);
}

#[test]
fn a_staged_tree_lies_beside_the_current_one_until_the_switch() {
    let env = TestEnv::new();
    images(&env);
    let root = env.path("data/c");
    let base = request(&env, "a", &["rootfs:1"]);
    assert!(act(&env, "checkout", &base).success);
    let link = || fs::read_link(root.join("rootfs")).unwrap();
    let mut staged = with(base.clone(), "id", json!("b"));
    staged["stage"] = json!(true);
    for _ in 0..2 {
        assert!(act(&env, "checkout", &staged).success);
        assert_eq!(link(), Path::new("rootfs.a"));
        assert!(root.join("rootfs.b").is_dir());
    }
    let question = json!({
        "root": root, "blobs": [], "registry_layers": [], "trees": ["rootfs"],
    });
    let inventory = act(&env, "inventory", &question);
    assert_eq!(inventory.last()["trees"]["rootfs"], "a");
    assert_eq!(inventory.last()["made"]["rootfs"], json!(["a", "b"]));
    let switch = |id: &str| {
        let request = json!({"root": root, "tree": "rootfs", "id": id});
        act(&env, "switch-tree", &request)
    };
    for (id, other) in [("b", "a"), ("b", "a"), ("a", "b")] {
        assert!(switch(id).success);
        assert_eq!(link(), Path::new(&format!("rootfs.{id}")));
        assert!(root.join(format!("rootfs.{other}")).is_dir());
    }
    assert!(!switch("c").success);
    assert_eq!(link(), Path::new("rootfs.a"));
    // An ordinary checkout keeps one former tree, as ever.
    assert!(act(&env, "checkout", &with(base, "id", json!("d"))).success);
    assert!(root.join("rootfs.a").is_dir() && !root.join("rootfs.b").exists());
}

/// The request of [`images`]' `rootfs:1` again, from the layout that was saved before.
fn request_from(env: &TestEnv, root: &Path) -> Value {
    let layout = env.path("layout-rootfs-1");
    let index = crate::common::json(&layout.join("index.json"));
    let read = |digest: &Value| {
        let path = digest.as_str().unwrap().replace(':', "/");
        crate::common::json(&layout.join("blobs").join(path))
    };
    let manifest = read(&index["manifests"][0]["digest"]);
    let config = read(&manifest["config"]["digest"]);
    let layers: Vec<Value> = manifest["layers"]
        .as_array()
        .unwrap()
        .iter()
        .zip(config["rootfs"]["diff_ids"].as_array().unwrap())
        .map(|(layer, diff_id)| {
            let kind = layer["annotations"].to_string();
            json!({"descriptor": layer, "diff_id": diff_id, "image": 0,
                "registry": kind.contains("\"registry\"")})
        })
        .collect();
    json!({"root": root, "tree": "rootfs", "id": "again", "layers": layers, "registry": true,
        "keep": 1, "inputs": {"images": [{"name": "rootfs:1", "environment": {"port": "1", "name": "n"}}],
        "environment": {}, "facts": {}, "configs": [], "strict": false}})
}

#[test]
fn errors_name_all_templates_and_leave_the_current_tree() {
    let env = TestEnv::new();
    images(&env);
    let good = request(&env, "good", &["rootfs:1"]);
    assert!(act(&env, "checkout", &good).success);
    let mut bad = with(good, "id", json!("bad"));
    bad["inputs"]["images"][0]["environment"] = json!({});
    bad["inputs"]["environment"] = json!({});
    let answer = act(&env, "checkout", &bad);
    assert!(!answer.success);
    for says in ["2 of 2 templates", "etc/x.conf.tmpl:1", "scripts/init.sh.tmpl:2", "set `port`"] {
        assert!(answer.error.contains(says), "{says}: {}", answer.error);
    }
    let root = env.path("data/c");
    assert_eq!(fs::read_link(root.join("rootfs")).unwrap(), Path::new("rootfs.good"));
    assert!(!root.join("rootfs.bad").exists());
}

#[test]
fn applications_and_a_second_cluster_are_apart() {
    let env = TestEnv::new();
    images(&env);
    let base = request(&env, "a", &["patch:1"]);
    let mut base = with(base, "registry", json!(false));
    base["inputs"]["configs"] = json!([]);
    let tree = "applications/default-abcdefgh/workdir";
    let application = with(base.clone(), "tree", json!(tree));
    assert!(act(&env, "checkout", &application).success);
    let other = with(base, "root", json!(env.path("data/d")));
    assert!(act(&env, "checkout", &other).success);
    assert!(env.path("data/c").join(tree).join("bin/tool").exists());
    assert!(env.path("data/d/rootfs/bin/tool").exists());
    assert!(!env.path("data/c/rootfs").exists());
}

#[test]
fn killed_at_any_moment_the_next_call_converges() {
    let env = TestEnv::new();
    images(&env);
    let base = request(&env, "x", &["rootfs:1", "patch:1"]);
    // The kills are spread over what a whole call takes on this machine at this time.
    let started = std::time::Instant::now();
    let expected = {
        let done = with(base.clone(), "root", json!(env.path("data/whole")));
        assert!(act(&env, "checkout", &done).success);
        list(&env.path("data/whole/rootfs.x"))
    };
    let span = started.elapsed();
    let root = env.path("data/c");
    let rounds: u32 = if crate::common::long() { 200 } else { 25 };
    let mut whole = 0;
    for round in 0..rounds {
        let id = format!("r{}", round % 3);
        let request = with(base.clone(), "id", json!(id));
        let mut child = start(&env, "checkout", &request);
        // On a busy machine every kill may come before the first rename; some calls run to their end.
        if round % 5 < 4 {
            std::thread::sleep(span * (round * 17 % 130) / 100);
            let _ = child.kill();
        }
        let _ = child.wait();
        // Whatever is current is whole.
        if let Ok(target) = fs::read_link(root.join("rootfs")) {
            let compare = Compare { times_before: 0, directory_times: false };
            assert_same("killed", &list(&root.join(target)), &expected, compare);
            whole += 1;
        }
    }
    let done = act(&env, "checkout", &with(base, "id", json!("end")));
    assert_eq!(done.last()["changed"], true);
    let names: Vec<String> = fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        !names.iter().any(|name| name.contains(".partial") || name.contains(".link")),
        "{names:?}"
    );
    assert!(names.iter().filter(|name| name.starts_with("rootfs.")).count() <= 2, "{names:?}");
    assert_eq!(fs::read_to_string(root.join(blob(BLOB))).unwrap(), BLOB);
    assert!(whole >= rounds / 5, "{whole} of {rounds}");
}

#[test]
fn two_at_once_make_one_tree() {
    let env = TestEnv::new();
    images(&env);
    let request = request(&env, "x", &["rootfs:1"]);
    let both = [start(&env, "checkout", &request), start(&env, "checkout", &request)];
    let changed: Vec<bool> =
        both.into_iter().map(|child| finish(child).last()["changed"] == true).collect();
    assert_eq!(changed.iter().filter(|changed| **changed).count(), 1);
}

#[test]
fn no_space_and_no_write_are_told_before_anything_changes() {
    let env = TestEnv::new();
    images(&env);
    let mut big = request(&env, "x", &["rootfs:1"]);
    big["layers"][0]["descriptor"]["size"] = json!(1_u64 << 60);
    let answer = act(&env, "checkout", &big);
    for says in ["not enough space", "are free", "SEALOS_DATA_ROOT"] {
        assert!(answer.error.contains(says), "{}", answer.error);
    }
    assert!(!env.path("data/c/rootfs.x.partial").exists());
}

/// A real file system that is too small, found out only while unpacking.
#[test]
fn a_disk_that_fills_while_unpacking_is_told() {
    if !crate::common::needs_root() {
        return;
    }
    let env = TestEnv::new();
    images(&env);
    let small = env.path("small");
    fs::create_dir(&small).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=256k tmpfs {0} && {1} --root {2} host-action checkout",
        small.display(),
        crate::common::IMGCTL,
        env.root().display()
    );
    let mut full = request(&env, "x", &["rootfs:1"]);
    full["root"] = json!(small.join("c"));
    for layer in full["layers"].as_array_mut().unwrap() {
        assert!(layer["descriptor"]["size"].as_u64().unwrap() < 200_000);
    }
    fs::write(env.path("full.json"), full.to_string()).unwrap();
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .stdin(fs::File::open(env.path("full.json")).unwrap())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("not enough space") && error.contains("small"), "{error}");
}

#[test]
fn a_damaged_registry_blob_is_refused() {
    let env = TestEnv::new();
    env.context("bad", "FROM scratch\nCOPY . /\n", &[(&blob("one thing"), "another thing")]);
    env.build("bad:1", &env.path("bad"));
    let mut request = request(&env, "x", &["bad:1"]);
    request["inputs"]["configs"] = json!([]);
    let answer = act(&env, "checkout", &request);
    assert!(!answer.success && answer.error.contains("damaged"), "{}", answer.error);
    assert!(!env.path("data/c/rootfs").exists());
}

#[test]
fn links_in_the_tree_lead_nowhere_outside() {
    let env = TestEnv::new();
    let context = env.context("evil", "FROM scratch\nCOPY . /\n", &[("scripts/keep", "x")]);
    fs::create_dir(env.path("outside")).unwrap();
    symlink(env.path("outside"), context.join("etc")).unwrap();
    symlink("/etc/hostname", context.join("scripts/x.tmpl")).unwrap();
    symlink(env.path("outside/file"), context.join("scripts/y")).unwrap();
    fs::write(context.join("scripts/y.tmpl"), "rendered").unwrap();
    env.build("evil:1", &context);
    let mut request = request(&env, "x", &["evil:1"]);
    request["inputs"]["configs"] = json!([]);
    let answer = act(&env, "checkout", &request);
    assert!(answer.error.contains("not in the image"), "{}", answer.error);
    fs::remove_file(context.join("scripts/x.tmpl")).unwrap();
    env.build("evil:2", &context);
    let mut request = self::request(&env, "y", &["evil:2"]);
    request["inputs"]["configs"] = json!([]);
    assert!(act(&env, "checkout", &request).success);
    assert_eq!(fs::read_dir(env.path("outside")).unwrap().count(), 0);
    let y = env.path("data/c/rootfs/scripts/y");
    assert!(!fs::symlink_metadata(&y).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(y).unwrap(), "rendered");
}
