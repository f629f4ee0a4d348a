//! The mounts of a step, and that they leave no trace.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::needs_root;
use crate::sandbox::harness::{Root, run};

fn mount(target: &str, kind: &Value) -> Value {
    json!([{"target": target, "kind": kind}])
}

#[test]
fn a_bare_root_gets_what_is_needed_and_loses_it_again() {
    if !needs_root() {
        return;
    }
    let root = Root::bare();
    let before = root.listing();
    let ran =
        run(&root.script("ls -d /proc/self /sys/class /dev/null; cat /etc/resolv.conf /etc/hosts"));
    assert_eq!(
        ran.ok(),
        "/dev/null\n/proc/self\n/sys/class\nnameserver 192.0.2.1\n127.0.0.1 localhost\n"
    );
    let stubs = ["proc", "sys", "dev", "etc", "etc/resolv.conf", "etc/hosts"];
    assert_eq!(ran.stubs(), stubs);
    assert_eq!(root.listing(), before);
}

#[test]
fn a_failed_sandbox_leaves_no_trace_either() {
    if !needs_root() {
        return;
    }
    let root = Root::bare();
    let before = root.listing();
    for (mounts, message) in [
        (
            mount("/x", &json!({"Bind": {"source": "/no/such", "read_only": true, "inode": null}})),
            "/no/such",
        ),
        (
            mount("/x", &json!({"Bind": {"source": "etc", "read_only": true, "inode": null}})),
            "absolute",
        ),
        (
            mount("/x", &json!({"Bind": {"source": "/etc", "read_only": true, "inode": [1, 1]}})),
            "replaced",
        ),
        (
            mount("/proc/sys", &json!({"Tmpfs": {"size": null, "mode": 493}})),
            "belong to the kernel",
        ),
        (
            mount("/bin/../proc", &json!({"Tmpfs": {"size": null, "mode": 493}})),
            "belong to the kernel",
        ),
        (mount("/", &json!({"Tmpfs": {"size": null, "mode": 493}})), "the root directory"),
    ] {
        let mut spec = root.script("true");
        spec["mounts"] = mounts;
        let failure = run(&spec).failure();
        assert!(failure.contains(message), "{failure}");
        assert_eq!(root.listing(), before);
    }
}

#[test]
fn files_in_etc_are_read_only_and_follow_links_inside() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    fs::remove_file(root.path.join("etc/resolv.conf")).unwrap();
    symlink("../run/systemd/resolve/stub.conf", root.path.join("etc/resolv.conf")).unwrap();
    let before = root.listing();
    let script = "cat /etc/resolv.conf; for f in resolv.conf hosts; do \
        echo x 2>/dev/null >>/etc/$f && echo wrote; rm /etc/hosts 2>/dev/null && echo removed; done; true";
    let ran = root.sh(script);
    assert_eq!(ran.ok(), "nameserver 192.0.2.1\n");
    assert_eq!(ran.stubs().last(), Some(&"run/systemd/resolve/stub.conf"));
    assert_eq!(root.listing(), before);
}

#[test]
fn links_for_proc_sys_and_dev_are_refused() {
    if !needs_root() {
        return;
    }
    for name in ["proc", "sys", "dev"] {
        let root = Root::new();
        fs::remove_dir(root.path.join(name)).unwrap();
        symlink("tmp", root.path.join(name)).unwrap();
        assert!(root.sh("true").failure().contains("symbolic link"), "{name}");
    }
}

#[test]
fn binds_are_writable_or_not_and_carry_no_devices() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let source = root.beside().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content\n").unwrap();
    for read_only in [true, false] {
        let mut spec = root.script(
            "cat /a/b/file; echo new 2>/dev/null >/a/b/new && echo wrote; grep ' /a/b ' /proc/self/mountinfo | cut -d' ' -f6",
        );
        let bind = json!({"Bind": {"source": source, "read_only": read_only, "inode": null}});
        spec["mounts"] = mount("/a/b", &bind);
        let ran = run(&spec);
        let wrote = if read_only { "" } else { "wrote\n" };
        assert!(ran.ok().starts_with(&format!("content\n{wrote}")), "{}", ran.out);
        assert!(ran.out.contains("nosuid,nodev"), "{}", ran.out);
        assert_eq!(ran.stubs(), ["a", "a/b"]);
        assert!(!root.path.join("a").exists());
        assert_eq!(source.join("new").exists(), !read_only);
    }
}

#[test]
fn a_source_may_not_go_through_links() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    symlink("/etc", root.beside().join("link")).unwrap();
    for source in ["link", "link/hosts"] {
        let mut spec = root.script("true");
        let source = root.beside().join(source);
        spec["mounts"] =
            mount("/x", &json!({"Bind": {"source": source, "read_only": true, "inode": null}}));
        assert!(run(&spec).failure().contains("symbolic links"));
    }
}

#[test]
fn a_target_that_is_a_link_to_the_host_stays_inside() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    symlink("/../../../../../../etc/imgctl-test-target", root.path.join("link")).unwrap();
    let mut spec = root.script("ls -d /etc/imgctl-test-target");
    spec["mounts"] = mount("/link", &json!({"Tmpfs": {"size": 65536, "mode": 0o700}}));
    assert_eq!(run(&spec).ok(), "/etc/imgctl-test-target\n");
    assert!(!std::path::Path::new("/etc/imgctl-test-target").exists());
}

#[test]
fn tmpfs_has_the_asked_size_and_mode() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let mut spec =
        root.script("stat -c %a /t; df -k /t | tail -n 1 | awk '{print $2}'; echo x >/t/x");
    spec["mounts"] = mount("/t", &json!({"Tmpfs": {"size": 65536, "mode": 0o1777}}));
    assert_eq!(run(&spec).ok(), "1777\n64\n");
}

#[test]
fn a_secret_is_a_read_only_file_in_memory_for_its_owner() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let content = "line\n\u{0}\u{ff}";
    let mut spec = root.script(
        "stat -c '%a %u %g %s' /run/secrets/key; echo x 2>/dev/null >>/run/secrets/key && echo wrote; \
         chmod 777 /run/secrets/key 2>/dev/null && echo changed; od -An -tx1 /run/secrets/key",
    );
    let secret = json!({"File": {"content": content, "mode": 0o400, "uid": 5, "gid": 6}});
    spec["mounts"] = mount("/run/secrets/key", &secret);
    let ran = run(&spec);
    assert_eq!(ran.ok(), "400 5 6 7\n 6c 69 6e 65 0a 00 ff\n");
    assert_eq!(ran.stubs(), ["run", "run/secrets", "run/secrets/key"]);
    assert!(!root.path.join("run").exists());
}

#[test]
fn what_is_made_inside_another_mount_is_no_stub_of_the_root() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let mut spec = root.script("ls /t/in /dev/shm/x");
    let tmpfs = json!({"Tmpfs": {"size": null, "mode": 0o755}});
    spec["mounts"] = json!([
        {"target": "/t", "kind": tmpfs}, {"target": "/t/in/ner", "kind": tmpfs},
        {"target": "/dev/shm/x/y", "kind": tmpfs},
    ]);
    let ran = run(&spec);
    assert_eq!(ran.ok(), "/dev/shm/x:\ny\n\n/t/in:\nner\n");
    assert_eq!(ran.stubs(), ["t"]);
}

#[test]
fn a_step_that_swaps_a_stubs_parent_for_a_link_hurts_nobody() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let victim = root.beside().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("file"), "").unwrap();
    let mut spec = root.script(&format!("mv /m /n && ln -s {} /m", victim.display()));
    spec["mounts"] =
        mount("/m/file", &json!({"File": {"content": "", "mode": 0o400, "uid": 0, "gid": 0}}));
    run(&spec).ok();
    assert!(victim.join("file").exists());
}

/// As a build does it: an overlay whose upper directory becomes the layer.
#[test]
fn an_overlays_upper_directory_holds_only_the_steps_changes() {
    if !needs_root() {
        return;
    }
    let root = Root::bare();
    let base = root.beside();
    // An upper directory needs a file system that overlay takes; the host's root may be one itself.
    let stage = base.join("stage");
    fs::create_dir(&stage).unwrap();
    let shell = |script: &str| {
        let status = Command::new("sh").arg("-ec").arg(script).current_dir(base).status().unwrap();
        assert!(status.success(), "{script}");
    };
    shell(
        "mkdir root/etc root/opt; touch -d 2001-01-01 root/etc; mount -t tmpfs stage stage; cd stage; mkdir upper work merged; \
           mount -t overlay overlay -o lowerdir=../root,upperdir=upper,workdir=work merged",
    );
    let mut spec = root.script("echo new >/opt/new; rm /bin/yes");
    spec["rootfs"] = json!(stage.join("merged"));
    spec["mounts"] = mount(
        "/run/secrets/key",
        &json!({"File": {"content": "k", "mode": 0o400, "uid": 0, "gid": 0}}),
    );
    let ran = run(&spec);
    let listing = Command::new("find")
        .args([".", "-mindepth", "1"])
        .current_dir(stage.join("upper"))
        .output()
        .unwrap();
    let etc = fs::metadata(stage.join("merged/etc")).unwrap().mtime();
    shell("umount stage/merged stage");
    assert_eq!(ran.ok(), "");
    let mut paths: Vec<String> =
        String::from_utf8(listing.stdout).unwrap().lines().map(str::to_owned).collect();
    paths.sort();
    // `etc` was copied up to hold mount points; it is as it was.
    assert_eq!(paths, ["./bin", "./bin/yes", "./etc", "./opt", "./opt/new"]);
    assert_eq!(etc, fs::metadata(root.path.join("etc")).unwrap().mtime());
}
