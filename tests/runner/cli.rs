//! The command line as scripts depend on it: help, exit codes, errors, JSON, formats, notes.

use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use crate::common::{Ran, TestEnv, json};
use serde_json::Value;

const KUBEFILE: &str = "FROM scratch\n\
    LABEL version=v1.29.9 sealos.io.type=rootfs\n\
    ENV registryPort=5000\n\
    COPY etc /etc\n\
    COPY registry /registry\n\
    CMD [\"kubectl apply -f manifests\"]\n";

/// An environment with one image, `etcd:v1`, whose times are all the same.
fn with_image() -> TestEnv {
    let env = TestEnv::new();
    let files = [("etc/hosts", "127.0.0.1 localhost\n"), ("registry/x", "blob\n")];
    let context = env.context("context", KUBEFILE, &files);
    std::os::unix::fs::symlink("hosts", context.join("etc/link")).unwrap();
    env.imgctl(["build", "-q", "--timestamp", "1700000000", "-t", "etcd:v1", "context"]).ok();
    env
}

#[test]
fn help_of_every_verb() {
    let env = TestEnv::new();
    insta::assert_snapshot!("help", env.imgctl(["help-all"]).ok().stdout());
    // The short and the long way give the same verbs.
    assert!(env.imgctl(["--help"]).ok().stdout().contains("Global options"));
    assert!(env.imgctl(["help", "build"]).ok().stdout().contains("--build-arg"));
}

#[test]
fn flags_of_sealos_do_what_scripts_expect() {
    let env = with_image();
    let before = env.imgctl(["--show-path", "images"]).ok();
    assert_eq!(env.imgctl(["images", "--show-path"]).ok().stdout(), before.stdout());
    for format in ["oci-archive", "docker-archive"] {
        let file = format!("file-of-{format}");
        env.imgctl(["save", "-q", "--format", format, "-o", &file, "etcd:v1"]).ok();
        for line in [["-t", format, "-i", &file], ["-i", &file, "--transport", format]] {
            env.imgctl(["rmi", "etcd:v1"]).ok();
            let loaded = env.imgctl([&["load"], &line[..]].concat()).ok();
            assert_eq!(loaded.stdout(), "Loaded image: localhost/etcd:v1");
        }
    }
    let named = env.imgctl(["load", "-t", "other:v1", "file-of-oci-archive"]).ok();
    assert_eq!(named.stdout(), "Loaded image: localhost/other:v1");
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let env = with_image();
    env.write("bad/Kubefile", "FROM scratch\nCOPPY a b\n");
    env.write("lint/Kubefile", "# check=error=true\nFROM scratch as x\nCOPY a b\n");
    env.write("broken.tar", "not a tar at all");
    let cases: &[(&[&str], i32)] = &[
        (&["images"], 0),
        (&["--version"], 0),
        (&[], 2),
        (&["images", "--nonsense"], 2),
        (&["imags"], 2),
        (&["tag", "etcd:v1", "UPPER/Case"], 2),
        (&["images", "--filter", "what=x"], 2),
        (&["images", "--format", "{{.ID"], 2),
        (&["inspect", "absent"], 3),
        (&["cat", "etcd:v1:/etc/absent"], 3),
        (&["rmi", "absent"], 3),
        (&["build", "absent-directory"], 3),
        (&["load", "-i", "broken.tar"], 4),
        (&["build", "bad"], 2),
        (&["build", "--check", "lint"], 10),
        (&["cat", "etcd:v1:/etc"], 2),
    ];
    for (arguments, code) in cases {
        env.imgctl(*arguments).fails(*code);
    }
}

#[test]
fn errors_name_cause_and_way_out() {
    let env = with_image();
    let error = env.imgctl(["cat", "etcd:v1:/etc/hostz"]).fails(3).stderr();
    assert_eq!(
        error,
        "error: /etc/hostz does not exist in etcd:v1\nhint: /etc contains hosts, link"
    );
    let ran = env.imgctl(["--json", "cat", "etcd:v1:/etc/hostz"]).fails(3);
    let object: Value = serde_json::from_str(&ran.stderr()).unwrap();
    assert_eq!(object["error"]["kind"], "not-found");
    assert_eq!(object["error"]["hints"][0], "/etc contains hosts, link");
    // The parser's own errors are JSON, too.
    let ran = env.imgctl(["images", "--json", "--nonsense"]).fails(2);
    let object: Value = serde_json::from_str(&ran.stderr()).unwrap();
    assert_eq!(object["error"]["kind"], "usage");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let env = with_image();
    let mut command = env.command(["help-all"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn global_flags_and_variables_mean_the_same() {
    let env = with_image();
    // Before or after the verb; the one nearer to it counts.
    let elsewhere = env.path("elsewhere");
    let mut command = env.command(["images", "--noheading"]);
    command.arg("--root").arg(&elsewhere);
    assert_eq!(Ran::new(command).ok().stdout(), "");
    assert!(elsewhere.join("store/oci-layout").exists());

    let mut command = std::process::Command::new(crate::common::IMGCTL);
    command.env_clear().env("IMGCTL_ROOT", env.root()).env("IMGCTL_JSON", "1").arg("images");
    let images = Ran::new(command).ok().json();
    assert_eq!(images[0]["names"][0], "localhost/etcd:v1");

    let mut command = env.command(["images"]);
    command.env("IMGCTL_PROGRESS", "loud");
    assert!(Ran::new(command).fails(2).stderr().contains("IMGCTL_PROGRESS"));
}

#[test]
fn flags_of_buildah_scripts_are_taken_with_a_note() {
    let env = with_image();
    let arguments = [
        "build",
        "--isolation=chroot",
        "--layers",
        "--rm",
        "--storage-driver",
        "vfs",
        "-t",
        "etcd:v2",
        "context",
    ];
    let notes = env.imgctl(arguments).ok().stderr();
    for flag in ["--isolation", "--layers", "--rm", "--storage-driver"] {
        let notes = notes.lines().filter(|line| line.starts_with(&format!("note: {flag} ")));
        assert_eq!(notes.count(), 1, "{flag}");
    }
    let quiet = env.imgctl(["bud", "-q", "--isolation=chroot", "-t", "etcd:v2", "context"]).ok();
    assert_eq!(quiet.stderr(), "");
    assert_eq!(quiet.stdout().len(), 64, "the image's ID alone");
}

#[test]
fn images_in_every_form() {
    let env = with_image();
    env.imgctl(["tag", "etcd:v1", "registry.example.com/team/etcd:stable"]).ok();
    let images = env.imgctl(["images", "--json"]).ok().json();
    let image = &images[0];
    assert_eq!(images.as_array().unwrap().len(), 1, "one object an image, not a name");
    assert_eq!(image["names"].as_array().unwrap().len(), 2);
    assert_eq!(image["labels"]["version"], "v1.29.9");
    assert_eq!(image["created"], 1_700_000_000);
    let id = image["id"].as_str().unwrap();

    assert_eq!(env.imgctl(["images", "-q"]).ok().stdout(), id[..12]);
    assert_eq!(env.imgctl(["images", "-q", "--no-trunc"]).ok().stdout(), format!("sha256:{id}"));
    let lines = |arguments: &[&str]| env.imgctl(arguments).ok().stdout();
    assert_eq!(
        lines(&["images", "--format", "{{.Name}}:{{.Tag}} {{.ID}}"]),
        format!("localhost/etcd:v1 {0}\nregistry.example.com/team/etcd:stable {0}", &id[..12])
    );
    assert_eq!(
        lines(&["images", "--format", r"table {{.Name}}\t{{.Tag}}", "localhost/etcd"]),
        "NAME             TAG\nlocalhost/etcd   v1"
    );
    for (filter, count) in [
        ("label=version", 2),
        ("label=version=v1", 0),
        ("reference=team/*", 1),
        ("reference=*:stable", 1),
        ("dangling=true", 0),
        ("before=etcd:v1", 0),
    ] {
        let found = lines(&["images", "-n", "--filter", filter]);
        assert_eq!(found.lines().count(), count, "{filter}");
    }
}

#[test]
fn inspect_answers_the_templates_of_scripts() {
    let env = with_image();
    let inspect = |template: &str| env.imgctl(["inspect", "-f", template, "etcd:v1"]).ok().stdout();
    assert_eq!(inspect("{{.OCIv1.Config.Labels}}"), "map[sealos.io.type:rootfs version:v1.29.9]");
    assert_eq!(inspect("{{index .OCIv1.Config.Labels \"version\"}}"), "v1.29.9");
    assert_eq!(inspect("{{index .OCIv1.Config.Labels \"absent\"}}"), "");
    assert_eq!(inspect("{{json .OCIv1.Config.Cmd}}"), r#"["kubectl apply -f manifests"]"#);
    assert_eq!(
        inspect("{{.OCIv1.Architecture}}/{{.OCIv1.OS}}"),
        inspect("{{.Docker.Architecture}}/{{.Docker.OS}}")
    );
    assert_eq!(inspect("{{range .OCIv1.Config.Cmd}}{{.}};{{end}}"), "kubectl apply -f manifests;");
    let whole = env.imgctl(["inspect", "etcd:v1"]).ok().json();
    assert_eq!(inspect("{{json .}}"), env.imgctl(["inspect", "etcd:v1"]).ok().stdout());
    assert_eq!(inspect("{{.FromImageDigest}}"), whole["FromImageDigest"].as_str().unwrap());
    let config: Value = serde_json::from_str(whole["Config"].as_str().unwrap()).unwrap();
    assert_eq!(config, whole["OCIv1"]);
    let manifest = env.imgctl(["inspect", "-t", "manifest", "etcd:v1"]).ok().json();
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
    let layers = env.imgctl(["inspect", "-t", "layer", "etcd:v1"]).ok().json();
    assert_eq!((&layers[0]["kind"], &layers[1]["kind"]), (&"rootfs".into(), &"registry".into()));
    let both = env.imgctl(["inspect", "etcd:v1", "etcd:v1"]).ok().json();
    assert_eq!(both.as_array().unwrap().len(), 2);
}

#[test]
fn files_are_seen_without_a_mount() {
    let env = with_image();
    assert_eq!(env.imgctl(["ls", "etcd:v1"]).ok().stdout(), "etc\nregistry");
    assert_eq!(env.imgctl(["ls", "-R", "etcd:v1:/etc"]).ok().stdout(), "/etc/hosts\n/etc/link");
    assert_eq!(
        env.imgctl(["ls", "-l", "etcd:v1:/etc"]).ok().stdout(),
        "-rw-r--r-- 0:0 20 2023-11-14 22:13:20 hosts\nlrwxrwxrwx 0:0  0 2023-11-14 22:13:20 link -> hosts"
    );
    let listed = env.imgctl(["ls", "--json", "etcd:v1:/etc"]).ok().json();
    assert_eq!((&listed[0]["type"], &listed[0]["mode"]), (&"file".into(), &"0644".into()));
    assert_eq!(listed[1]["target"], "hosts");
    // Through the link, and several at once.
    let both = env.imgctl(["cat", "etcd:v1:/etc/link", "etcd:v1:/registry/x"]).ok();
    assert_eq!(both.bytes(), b"127.0.0.1 localhost\nblob\n");
}

#[test]
fn names_that_are_not_utf8_stay_as_they_are() {
    let env = TestEnv::new();
    let context = env.context("context", "FROM scratch\nCOPY d /d\n", &[("d/a", "")]);
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    std::fs::write(context.join("d").join(odd), "x").unwrap();
    env.build("odd:v1", &context);
    assert_eq!(env.imgctl(["ls", "odd:v1:/d"]).ok().bytes(), b"a\nodd\xff\n");
    assert!(env.imgctl(["ls", "-l", "odd:v1:/d"]).ok().stdout().ends_with("odd\\xff"));
    let listed = env.imgctl(["ls", "--json", "odd:v1:/d"]).ok().json();
    assert_eq!(listed[1]["pathBase64"], "L2Qvb2Rk/w==");
    let path = std::ffi::OsStr::from_bytes(b"odd:v1:/d/odd\xff");
    assert_eq!(env.imgctl([std::ffi::OsStr::new("cat"), path]).ok().bytes(), b"x");
}

#[test]
fn histories_trees_and_differences() {
    let env = with_image();
    let history = env.imgctl(["history", "--json", "etcd:v1"]).ok().json();
    assert_eq!(history[0]["createdBy"], "CMD [\"kubectl apply -f manifests\"]");
    assert_eq!(history[0]["emptyLayer"], true);
    let tree = env.imgctl(["tree", "--json", "etcd:v1"]).ok().json();
    assert_eq!(tree["layers"][1]["kind"], "registry");

    env.write("context/etc/hosts", "changed\n");
    env.write("context/etc/new", "");
    std::fs::remove_file(env.path("context/etc/link")).unwrap();
    let build = ["build", "--timestamp", "1700000000", "-t", "etcd:v2", "context"];
    env.imgctl(build).ok();
    assert_eq!(
        env.imgctl(["diff", "--files", "etcd:v1", "etcd:v2"]).ok().stdout(),
        "C /etc/hosts\nD /etc/link\nA /etc/new"
    );
    let last = env.imgctl(["diff", "--json", "etcd:v1"]).ok().json();
    assert_eq!(last["added"], serde_json::json!(["/registry", "/registry/x"]));
    let tree = env.imgctl(["tree", "--json", "etcd:v2"]).ok().json();
    assert_eq!(tree["layers"][1]["sharedWith"], serde_json::json!(["localhost/etcd:v1"]));
}

#[test]
fn names_come_and_go() {
    let env = with_image();
    env.imgctl(["tag", "etcd:v1", "etcd:v2", "other"]).ok();
    let id = env.imgctl(["images", "-q"]).ok().stdout();
    env.imgctl(["rmi", &id]).fails(6);
    assert_eq!(env.imgctl(["rmi", "etcd:v2"]).ok().stdout(), "untagged: localhost/etcd:v2");
    // All or nothing.
    env.imgctl(["rmi", "other", "absent"]).fails(3);
    assert_eq!(env.imgctl(["images", "-n"]).ok().stdout().lines().count(), 2);
    let removed = env.imgctl(["rmi", "--json", "-f", &id]).ok().json();
    assert_eq!(removed["untagged"].as_array().unwrap().len(), 2);
    assert_eq!(removed["deleted"].as_array().unwrap().len(), 1);
    env.imgctl(["prune", "--all"]).ok();
    let blobs = std::fs::read_dir(env.root().join("store/blobs/sha256")).unwrap();
    assert_eq!(blobs.count(), 0, "nothing is left of an image without a name");
}

#[test]
fn archives_through_files_and_pipes() {
    let env = with_image();
    let before = env.imgctl(["images", "--digests", "--format", "{{.Digest}}"]).ok().stdout();
    env.imgctl(["save", "etcd:v1", "-o", "etcd.tar.gz"]).ok();
    assert_eq!(std::fs::read(env.path("etcd.tar.gz")).unwrap()[..2], [0x1f, 0x8b]);
    let archive = env.imgctl(["save", "etcd:v1"]).ok();
    env.imgctl(["rmi", "etcd:v1"]).ok();
    let mut child = env
        .command(["load", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(archive.bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let loaded: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(loaded[0]["digest"], before);
    assert_eq!(
        env.imgctl(["load", "-i", "etcd.tar.gz", "-t", "renamed:v1"]).ok().stdout(),
        "Loaded image: localhost/renamed:v1"
    );
    env.imgctl(["save", "--format", "oci-dir", "etcd:v1"]).fails(2);
}

#[test]
fn files_are_checked_out_to_directories_and_tars() {
    let env = with_image();
    let hosts = std::fs::read(env.export("etcd:v1", "rootfs").join("etc/hosts")).unwrap();
    assert_eq!(hosts, b"127.0.0.1 localhost\n");
    env.imgctl(["export", "etcd:v1", "-o", "rootfs.tar"]).ok();
    let streamed = env.imgctl(["export", "etcd:v1", "-o", "-"]).ok();
    assert_eq!(streamed.bytes(), std::fs::read(env.path("rootfs.tar")).unwrap());
    let listed =
        Ran::new(crate::common::tool("tar", ["tf", env.path("rootfs.tar").to_str().unwrap()]));
    let listed = listed.ok().stdout();
    assert!(listed.lines().any(|name| name.trim_start_matches("./") == "etc/link"), "{listed}");
}

#[test]
fn mounts_are_made_listed_and_ended() {
    if !crate::common::needs_root() {
        return;
    }
    let env = with_image();
    let path = env.imgctl(["mount", "--name", "mine", "etcd:v1"]).ok().stdout();
    assert!(std::path::Path::new(&path).join("etc/hosts").exists());
    let mounts = env.imgctl(["mounts", "--json"]).ok().json();
    assert_eq!((&mounts[0]["name"], &mounts[0]["path"]), (&"mine".into(), &path.into()));
    env.imgctl(["rmi", "etcd:v1"]).fails(6);
    let created = env.imgctl(["create", "--json", "-e", "A=b", "etcd:v1"]).ok().json();
    assert!(created["script"].as_str().unwrap().contains("kubectl apply -f manifests"));
    let gone = env.imgctl(["umount", "--json", "--all"]).ok().json();
    assert_eq!(gone.as_array().unwrap().len(), 2);
    assert_eq!(env.imgctl(["mounts", "-q"]).ok().stdout(), "");
}

#[test]
fn builds_report_to_files_and_streams() {
    let env = with_image();
    let ran = env
        .imgctl([
            "build",
            "--iidfile",
            "id",
            "--metadata-file",
            "meta.json",
            "-t",
            "a:1",
            "context",
        ])
        .ok();
    let id = std::fs::read_to_string(env.path("id")).unwrap();
    assert_eq!(id, format!("sha256:{}", ran.stdout()));
    let metadata = json(&env.path("meta.json"));
    assert_eq!(metadata["containerimage.config.digest"], id);
    assert_eq!(metadata["image.name"], "localhost/a:1");
    let object = env.imgctl(["build", "--json", "-t", "a:2", "context"]).ok();
    assert_eq!(object.stderr(), "");
    assert_eq!(object.json()["names"], serde_json::json!(["localhost/a:2"]));
    let events = env.imgctl(["build", "--progress", "json", "--no-cache", "context"]).ok().stderr();
    for line in events.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(event["event"].is_string(), "{line}");
    }
    assert!(events.lines().count() > 3, "{events}");
}

#[test]
fn completion_and_manual_know_every_verb() {
    let env = TestEnv::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = env.imgctl(["completion", shell]).ok().stdout();
        let expected =
            if matches!(shell, "elvish" | "powershell") { "inspect" } else { "complete" };
        assert!(script.contains(expected), "{shell}");
    }
    assert!(env.imgctl(["man"]).ok().stdout().contains(".TH imgctl 1"));
    env.imgctl(["man", "pages"]).ok();
    let page = std::fs::read_to_string(env.path("pages/imgctl-build.1")).unwrap();
    assert!(page.contains("SOURCE_DATE_EPOCH"));
    assert!(!env.path("pages/imgctl-help-all.1").exists());
}

#[test]
fn versions_in_every_form() {
    let env = TestEnv::new();
    let number = env!("CARGO_PKG_VERSION");
    assert_eq!(env.imgctl(["--version"]).ok().stdout(), format!("imgctl {number}"));
    assert_eq!(env.imgctl(["version", "--short"]).ok().stdout(), number);
    assert_eq!(env.imgctl(["version", "-o", "json"]).ok().json()["version"], number);
    assert!(env.imgctl(["version", "-o", "yaml"]).ok().stdout().starts_with("version: "));
    assert!(!env.root().exists(), "no store is opened for that");
}

#[test]
fn room_and_rot_are_told() {
    let env = with_image();
    let usage = env.imgctl(["df", "--json"]).ok().json();
    assert_eq!(usage["images"][0]["names"][0], "localhost/etcd:v1");
    assert!(env.imgctl(["df", "-v"]).ok().stdout().contains("localhost/etcd:v1"));
    assert!(env.imgctl(["scrub"]).ok().stdout().ends_with("all good"));
    let manifest = env.imgctl(["inspect", "-t", "manifest", "etcd:v1"]).ok().json();
    let digest = manifest["layers"][0]["digest"].as_str().unwrap();
    let blob = env.root().join("store/blobs").join(digest.replace(':', "/"));
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[20] ^= 1;
    std::fs::remove_file(&blob).unwrap();
    std::fs::write(&blob, bytes).unwrap();
    let found = env.imgctl(["scrub", "--json"]).fails(10);
    assert!(found.json()["problems"].as_array().is_some_and(|problems| !problems.is_empty()));
    let plan = env.imgctl(["prune", "--all", "--dry-run", "--json"]).ok().json();
    assert_eq!(plan["dryRun"], true);
}
