//! Mounting as a user sees it: the same tree whichever way, equal to what umoci unpacks; nothing
//! left behind by a killed process; an ordinary user gets the files too.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::common::tree::{Compare, assert_same, list};
use crate::common::{IMGCTL, Ran, TestEnv, long, needs_root, tool};

/// Everything mounted by this thread and its children goes with it, even if the test panics.
fn private_mounts() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS | nix::sched::CloneFlags::CLONE_FS)
        .expect("these tests mount: run them as root (scripts/test)");
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .unwrap();
}

/// All times count, those of directories too.
const ALL: Compare = Compare { times_before: i64::MAX, directory_times: true };

/// An image of three layers with modes, owners, links and times of its own.
fn three_layers(env: &TestEnv) -> &'static str {
    let context = env.context(
        "context",
        "FROM scratch AS base\nCOPY base /\nFROM base\nCOPY middle /\nCOPY --chown=7:8 top /opt/\n",
        &[
            ("base/etc/hosts", "hosts"),
            ("base/usr/bin/tool", "tool"),
            ("base/var/data", "data"),
            ("middle/etc/hosts", "changed"),
            ("middle/usr/lib/a", "a"),
            ("top/x", "x"),
        ],
    );
    let at = |path: &str| context.join(path);
    fs::set_permissions(at("base/usr/bin/tool"), PermissionsExt::from_mode(0o4755)).unwrap();
    fs::set_permissions(at("base/var"), PermissionsExt::from_mode(0o1770)).unwrap();
    fs::hard_link(at("base/usr/bin/tool"), at("base/usr/bin/alias")).unwrap();
    symlink("/usr/bin/tool", at("middle/link")).unwrap();
    // umoci reads no zstd.
    let mut build = env.command(["build", "--compression", "gzip", "-t", "localhost/three:v1"]);
    build.arg(&context);
    Ran::new(build).ok();
    "localhost/three:v1"
}

/// What umoci makes of an image of ours.
fn unpacked_by_umoci(env: &TestEnv, image: &str, name: &str) -> PathBuf {
    let layout = env.path(format!("{name}.layout"));
    let bundle = env.path(format!("{name}.bundle"));
    let arguments = ["save", "--format", "oci-dir", "-o"];
    let mut save = env.command(arguments);
    save.arg(&layout).arg(image);
    Ran::new(save).ok();
    let tag = image.rsplit(':').next().unwrap();
    let names = fs::read_to_string(layout.join("index.json")).unwrap();
    let reference = if names.contains(&format!("\"{image}\"")) { image } else { tag };
    let mut umoci = tool("umoci", ["unpack", "--image"]);
    umoci.arg(format!("{}:{reference}", layout.display())).arg(&bundle);
    Ran::new(umoci).ok();
    bundle.join("rootfs")
}

fn mounted(env: &TestEnv, arguments: &[&str]) -> PathBuf {
    let ran = env.imgctl(["mount"].iter().chain(arguments)).ok();
    PathBuf::from(ran.stdout())
}

#[test]
fn every_way_shows_what_umoci_unpacks() {
    if !needs_root() {
        return;
    }
    private_mounts();
    let env = TestEnv::new();
    let image = three_layers(&env);
    let expected = list(&unpacked_by_umoci(&env, image, "ours"));
    assert!(expected.len() >= 11, "{expected:?}");
    for backend in ["overlay", "erofs", "checkout", "auto"] {
        let path = mounted(&env, &["--backend", backend, image]);
        assert_same(backend, &expected, &list(&path), ALL);
    }
    let exported = env.export(image, "exported");
    assert_same("export", &expected, &list(&exported), ALL);
    let tar = env.export(image, "exported.tar");
    fs::create_dir(env.path("untarred")).unwrap();
    let mut untar = tool("tar", ["-xpf"]);
    untar.arg(&tar).arg("-C").arg(env.path("untarred"));
    Ran::new(untar).ok();
    assert_same("export to a tar", &expected, &list(&env.path("untarred")), ALL);
}

/// An image of umoci's whose second layer deletes and replaces what the first has.
fn changed_by_umoci(env: &TestEnv) -> PathBuf {
    let layout = env.path("foreign");
    let image = format!("{}:v1", layout.display());
    let bundle = env.path("bundle");
    let rootfs = bundle.join("rootfs");
    let umoci = |arguments: &[&str]| Ran::new(tool("umoci", arguments)).ok();
    umoci(&["init", "--layout", layout.to_str().unwrap()]);
    umoci(&["new", "--image", &image]);
    umoci(&["unpack", "--image", &image, bundle.to_str().unwrap()]);
    for directory in ["gone/deep", "kept", "becomes-file", "emptied"] {
        fs::create_dir_all(rootfs.join(directory)).unwrap();
    }
    for file in
        ["gone/deep/x", "kept/one", "kept/two", "becomes-file/x", "becomes-dir", "emptied/x"]
    {
        fs::write(rootfs.join(file), file).unwrap();
    }
    chown(rootfs.join("kept"), Some(12), Some(34)).unwrap();
    fs::set_permissions(rootfs.join("kept"), PermissionsExt::from_mode(0o2750)).unwrap();
    umoci(&["repack", "--refresh-bundle", "--image", &image, bundle.to_str().unwrap()]);
    fs::remove_dir_all(rootfs.join("gone")).unwrap();
    fs::remove_file(rootfs.join("kept/one")).unwrap();
    fs::remove_dir_all(rootfs.join("becomes-file")).unwrap();
    fs::write(rootfs.join("becomes-file"), "now").unwrap();
    fs::remove_file(rootfs.join("becomes-dir")).unwrap();
    fs::create_dir(rootfs.join("becomes-dir")).unwrap();
    fs::remove_file(rootfs.join("emptied/x")).unwrap();
    fs::write(rootfs.join("new"), "new").unwrap();
    fs::hard_link(rootfs.join("new"), rootfs.join("new-too")).unwrap();
    umoci(&["repack", "--image", &image, bundle.to_str().unwrap()]);
    layout
}

#[test]
fn deletions_of_foreign_layers_are_seen_by_every_back_end() {
    if !needs_root() {
        return;
    }
    private_mounts();
    let env = TestEnv::new();
    let layout = changed_by_umoci(&env);
    let again = env.path("again");
    let mut umoci = tool("umoci", ["unpack", "--image"]);
    umoci.arg(format!("{}:v1", layout.display())).arg(&again);
    Ran::new(umoci).ok();
    let expected = list(&again.join("rootfs"));
    assert!(!expected.contains_key("gone") && expected.contains_key("new-too"));
    let mut load = env.command(["load", "-i"]);
    load.arg(&layout);
    let loaded = Ran::new(load).ok().stdout();
    let image = loaded.split_whitespace().last().unwrap().to_owned();
    for backend in ["overlay", "erofs", "checkout"] {
        let path = mounted(&env, &["--read-only", "--backend", backend, &image]);
        assert_same(backend, &expected, &list(&path), ALL);
    }
}

#[test]
fn mistakes_have_their_exit_codes() {
    if !needs_root() {
        return;
    }
    private_mounts();
    let env = TestEnv::new();
    let image = three_layers(&env);
    env.imgctl(["mount", "localhost/nothing:v1"]).fails(3);
    env.imgctl(["umount", "nothing"]).fails(3);
    env.imgctl(["umount", "--all"]).ok();
    let file = env.write("file", "x");
    env.imgctl(["mount", image, file.to_str().unwrap()]).fails(2);
    let path = mounted(&env, &["--backend", "overlay", image]);
    let held = fs::File::open(path.join("etc/hosts")).unwrap();
    let busy = env.imgctl(["umount", path.to_str().unwrap()]).fails(6);
    assert!(busy.stderr().contains("fuser"), "{}", busy.report());
    env.imgctl(["umount", "--lazy", path.to_str().unwrap()]).ok();
    assert!(!path.exists());
    drop(held);
}

#[test]
fn a_mount_keeps_its_layers_from_prune() {
    if !needs_root() {
        return;
    }
    private_mounts();
    let env = TestEnv::new();
    let image = three_layers(&env);
    let path = mounted(&env, &["--backend", "overlay", image]);
    let before = list(&path);
    env.imgctl(["rmi", "--force", image]).ok();
    env.imgctl(["prune", "--all"]).ok();
    assert_same("after prune", &before, &list(&path), ALL);
    env.imgctl(["umount", "--all"]).ok();
    env.imgctl(["prune", "--all"]).ok();
    let left = fs::read_dir(env.root().join("store/snapshots")).unwrap().count();
    assert_eq!(left, 0, "snapshots of an image that is gone");
}

#[test]
fn a_killed_mount_leaves_nothing_that_cannot_be_cleaned() {
    if !needs_root() {
        return;
    }
    private_mounts();
    let env = TestEnv::new();
    let files: Vec<(String, String)> = (0..2000)
        .map(|number| (format!("d{}/f{number}", number % 50), "x".repeat(number)))
        .collect();
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, content)| (name.as_str(), content.as_str())).collect();
    let context = env.context("many", "FROM scratch\nCOPY . /\n", &files);
    env.build("localhost/many:v1", &context);
    let rounds = if long() { 200 } else { 25 };
    for round in 0..rounds {
        // Every other round has to unpack.
        if round % 2 == 0 {
            let snapshots = env.root().join("store/snapshots");
            env.imgctl(["umount", "--all", "--lazy"]).ok();
            let _ = fs::remove_dir_all(&snapshots);
            fs::create_dir(&snapshots).unwrap();
        }
        let mut mount = env
            .command(["mount", "--backend", "overlay", "localhost/many:v1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(u64::from(round % 50_u32) * 2_500));
        mount.kill().unwrap();
        mount.wait().unwrap();
        env.imgctl(["mounts"]).ok();
    }
    let path = mounted(&env, &["--backend", "overlay", "localhost/many:v1"]);
    assert_eq!(list(&path).len(), 2000 + 50 + 1);
    env.imgctl(["umount", "--all"]).ok();
    let mounts = fs::read("/proc/thread-self/mountinfo").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    let root = env.root().canonicalize().unwrap();
    let ours: Vec<&str> =
        mounts.lines().filter(|line| line.contains(root.to_str().unwrap())).collect();
    assert_eq!(ours, [""; 0]);
    let left: Vec<_> = fs::read_dir(root.join("store/mounts"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != ".lock")
        .collect();
    assert_eq!(left, [""; 0]);
    env.imgctl(["scrub"]).ok();
}

#[test]
fn an_ordinary_user_gets_a_copy_and_is_told_so() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let image = three_layers(&env);
    let archive = env.path("three.tar");
    let mut save = env.command(["save", "-o"]);
    save.arg(&archive).arg(image);
    Ran::new(save).ok();
    fs::set_permissions(&archive, PermissionsExt::from_mode(0o644)).unwrap();
    let (binary, root) = (env.path("imgctl"), env.path("nobody"));
    fs::copy(IMGCTL, &binary).unwrap();
    fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(&root).unwrap();
    let nobody = 65534;
    chown(&root, Some(nobody), Some(nobody)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = tool("runuser", ["-u", "nobody", "--"]);
        command.arg(&binary).arg("--root").arg(&root).args(arguments);
        command.current_dir("/");
        Ran::new(command)
    };
    as_nobody(&["load", "-i", archive.to_str().unwrap()]).ok();
    let ran = as_nobody(&["mount", image]).ok();
    assert!(ran.stderr().contains("CAP_SYS_ADMIN"), "{}", ran.report());
    let path = PathBuf::from(ran.stdout());
    assert_eq!(fs::read(path.join("etc/hosts")).unwrap(), b"changed");
    assert_eq!(fs::metadata(path.join("opt/x")).unwrap().uid(), nobody);
    assert_eq!(tree_names(&path), tree_names(&env.export(image, "as-root")));
    as_nobody(&["umount", image]).ok();
    assert!(!path.exists());
    as_nobody(&["mount", "--backend", "overlay", image]).fails(5);
    let left = as_nobody(&["mounts", "-q"]).ok();
    assert_eq!(left.stdout(), "", "{}", left.report());
}

fn tree_names(root: &Path) -> Vec<String> {
    list(root).into_keys().collect()
}
