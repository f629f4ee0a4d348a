//! A program tries each known way out of the sandbox (`probe.c`): as root, as another user of the
//! image, and as an ordinary user of this machine, with each network and each kind of mount.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{IMGCTL, Ran, TestEnv, needs_root, tool};
use crate::sandbox::harness::{Root, chmod, imgctl, run_by};

const NOBODY: u32 = 65_534;

/// Compiles the program to `path`; it needs nothing of the root that it runs in.
fn compile(path: &Path) {
    let mut compiler = tool("cc", ["-O1", "-static", "-o"]);
    compiler
        .arg(path)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runner/sandbox/probe.c"));
    Ran::new(compiler).ok();
    chmod(path, 0o755);
}

/// Mounts one file system of each kind below the directories that are bound, and the cgroups where
/// the machine has none, then becomes `$2…`. Everything ends with this mount namespace.
const MOUNT: &str = r#"
mount --make-rprivate /
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
here=$1; shift
for at in $(cat "$here/bound"); do
    mkdir -p "$at/sub" "$at/proc" "$at/sys" "$at/host" "$at/cgroup" "$at/a b"; : >"$at/file"; : >"$at/null"
    mount -t tmpfs -o mode=1777 t "$at/sub"; mkdir -m 1777 "$at/sub/deep"
    mount -t tmpfs -o mode=1777,noexec,noatime t "$at/sub/deep"
    mount -t tmpfs -o mode=1777,nosuid,nodiratime t "$at/a b"; echo seen >"$at/a b/content"
    # Covers one of its own mounts.
    mount -t tmpfs -o mode=1777 t "$at/sub"
    mount -t proc p "$at/proc"; mount -t sysfs s "$at/sys"; mount --bind /dev/null "$at/null"
    mount -t cgroup2 cgroup2 "$at/cgroup"; mkdir -p "$at/cgroups"; mount --rbind /sys/fs/cgroup "$at/cgroups"
    mount --bind "$here/host" "$at/host"; mount --bind "$here/host/file" "$at/file"
done
exec "$@"
"#;

/// A command that makes the mounts below the directories listed in `bound`, and then runs what
/// follows.
fn with_mounts(here: &Path, bound: &[&Path]) -> Command {
    let list: Vec<&str> = bound.iter().map(|path| path.to_str().unwrap()).collect();
    fs::write(here.join("bound"), list.join("\n")).unwrap();
    let host = here.join("host");
    if !host.exists() {
        fs::create_dir(&host).unwrap();
        fs::write(host.join("file"), "the host's").unwrap();
        chmod(&host, 0o777);
        chmod(&host.join("file"), 0o666);
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", MOUNT, "sh"]).arg(here);
    command
}

/// The directory of the host that was mounted below each source is as it was.
fn host_is_untouched(here: &Path) {
    let names: Vec<_> =
        fs::read_dir(here.join("host")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"]);
    assert_eq!(fs::read_to_string(here.join("host/file")).unwrap(), "the host's");
    assert_eq!(fs::metadata(here.join("host/file")).unwrap().mode() & 0o7777, 0o666);
}

#[test]
fn no_way_out_is_open_whoever_runs_a_command_with_any_network_and_mount() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let here = root.beside();
    compile(&root.path.join("bin/probe"));
    for name in ["ro", "rw"] {
        fs::create_dir(here.join(name)).unwrap();
        chmod(&here.join(name), 0o777);
    }
    let _agent = UnixListener::bind(here.join("agent")).unwrap();
    chmod(&root.path.join("tmp"), 0o1777);
    let binary = here.join("imgctl");
    fs::copy(imgctl().get_program(), &binary).unwrap();
    chmod(&binary, 0o755);
    let bind = |name: &str, read_only: bool| json!({"Bind": {"source": here.join(name), "read_only": read_only, "inode": null}});
    let mounts = json!([
        {"target": "/ro", "kind": bind("ro", true)},
        {"target": "/rw", "kind": bind("rw", false)},
        {"target": "/t", "kind": {"Tmpfs": {"size": 65536, "mode": 0o1777}}},
        {"target": "/secret", "kind": {"File": {"content": "s", "mode": 0o444, "uid": 0, "gid": 0}}},
        {"target": "/agent", "kind": bind("agent", false)},
    ]);
    for (who, uid) in [("root", 0), ("root", 1000), ("ordinary", 0)] {
        if who == "ordinary" {
            // The user's own tree, as a store of theirs is.
            let owned = Command::new("chown").args(["-R", "65534:65534"]).arg(here).status();
            assert!(owned.unwrap().success());
        }
        for network in ["None", "Host", "Default"] {
            let mut spec = root.script("");
            spec["argv"] = json!(["/bin/probe", "/rw", "/t", "/agent"]);
            spec["network"] = json!(network);
            spec["mounts"] = mounts.clone();
            spec["user"] = json!({"uid": uid, "gid": uid, "groups": [7]});
            if who == "ordinary" {
                spec["user"]["groups"] = json!([]);
            }
            let mut command = with_mounts(here, &[&here.join("ro"), &here.join("rw")]);
            if who == "ordinary" {
                command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
            }
            command.arg(&binary);
            let ran = run_by(&spec, &mut command);
            assert_eq!(
                (ran.code(), ran.out.as_str()),
                (0, ""),
                "{who} {uid} {network}\n{}",
                ran.err
            );
            host_is_untouched(here);
        }
    }
}

/// What is mounted below a source is part of it, with the flags that it has; views of the kernel are
/// not.
#[test]
fn mounts_below_a_source_can_be_read_but_not_written() {
    if !needs_root() {
        return;
    }
    for who in ["root", "ordinary"] {
        let root = Root::new();
        let here = root.beside();
        fs::create_dir(here.join("ro")).unwrap();
        let binary = here.join("imgctl");
        fs::copy(imgctl().get_program(), &binary).unwrap();
        chmod(&binary, 0o755);
        let owned = Command::new("chown").args(["-R", "65534:65534"]).arg(here).status();
        assert!(owned.unwrap().success());
        let script = "cat '/x/a b/content' /x/file; echo; ls -A /x/proc /x/sys /x/cgroup; wc -c </x/null; \
            for f in /x/file /x/host/file /x/sub/new '/x/a b/content'; do echo no 2>/dev/null >\"$f\" && echo wrote $f; done; \
            while read -r line; do set -- $line; case $5 in /x*) echo $5 $6; esac; done </proc/self/mountinfo";
        let mut spec = root.script(script);
        spec["mounts"] = json!([{"target": "/x", "kind": {"Bind": {
            "source": here.join("ro"), "read_only": true, "inode": null,
        }}}]);
        let mut command = with_mounts(here, &[&here.join("ro")]);
        if who == "ordinary" {
            command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command.arg(&binary);
        let ran = run_by(&spec, &mut command);
        let seen = "seen\nthe host's\n/x/cgroup:\n\n/x/proc:\n\n/x/sys:\n0\n";
        let flags = ran.ok().strip_prefix(seen).unwrap_or_else(|| panic!("{who}: {}", ran.out));
        let line = |path: &str| {
            let mut found = flags.lines().filter_map(|line| line.strip_prefix(&format!("{path} ")));
            found.next_back().unwrap_or_else(|| panic!("{who} {path}: {flags}")).to_owned()
        };
        for (path, kept) in [
            ("/x", ""),
            ("/x/sub", ""),
            ("/x/a\\040b", "nodiratime"),
            ("/x/host", ""),
            ("/x/file", ""),
        ] {
            let options = line(path);
            for wanted in
                ["ro", "nosuid", "nodev"].into_iter().chain(Some(kept).filter(|k| !k.is_empty()))
            {
                assert!(
                    options.split(',').any(|option| option == wanted),
                    "{who} {path}: {options}"
                );
            }
        }
        host_is_untouched(here);
    }
}

/// The same with a Kubefile: each type of `--mount`, each network, as root and as an ordinary user.
#[test]
fn no_kind_of_mount_in_a_kubefile_opens_a_way_out() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let kubefile = "FROM scratch AS stage\nCOPY probe /probe\nCOPY probe /files/probe\n\
        FROM scratch\nCOPY probe /probe\n\
        RUN --mount=type=bind,target=/context --mount=type=bind,rw,target=/copy \
        --mount=type=bind,from=stage,source=/files,target=/stage \
        --mount=type=cache,target=/cache --mount=type=cache,from=stage,source=/files,id=other,target=/filled \
        --mount=type=tmpfs,target=/memory --mount=type=secret,id=key,target=/secret --mount=type=ssh,target=/agent \
        [\"/probe\", \"/copy\", \"/cache\", \"/filled\", \"/memory\", \"/agent\"]\n";
    let context = env.context("context", kubefile, &[("top", "x")]);
    compile(&context.join("probe"));
    let binary = env.path("imgctl");
    fs::copy(IMGCTL, &binary).unwrap();
    chmod(&binary, 0o755);
    env.write("key", "hush");
    let _agent = UnixListener::bind(env.path("agent")).unwrap();
    for who in ["root", "ordinary"] {
        let store = env.path(format!("store-{who}"));
        fs::create_dir(&store).unwrap();
        if who == "ordinary" {
            for path in [&store, &env.path("key"), &env.path("agent")] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        for network in ["none", "host", "default"] {
            // Only a small tree below the context: `rw` copies it.
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-ec"]);
            command.arg(
                "mount --make-rprivate /; mountpoint -q /sys/fs/cgroup || mount -t cgroup2 c /sys/fs/cgroup; \
                 mkdir -p \"$1/sub\"; mount -t tmpfs -o mode=1777 t \"$1/sub\"; echo x >\"$1/sub/file\"; \
                 chmod 666 \"$1/sub/file\"; shift; exec \"$@\"",
            );
            command.arg("sh").arg(&context);
            if who == "ordinary" {
                command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
            }
            command.args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent"]);
            command.arg(&binary).arg("--root").arg(&store).args(["build", "--no-cache", "-t", "x"]);
            command.arg("--progress=plain").arg(format!("--network={network}"));
            command.arg(format!("--secret=id=key,src={}", env.path("key").display()));
            command.arg(format!("--ssh=default={}", env.path("agent").display()));
            command.arg(&context).current_dir("/");
            let ran = Ran::new(command);
            let said = format!("{who} {network}: {}", ran.report());
            assert!(ran.success() && !said.contains("OPEN:"), "{said}");
        }
    }
}

/// A probe that sees nothing anywhere would prove nothing.
#[test]
fn without_confinement_the_probe_finds_ways_out() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    compile(&root.path.join("bin/probe"));
    let mut spec = root.script("");
    spec["argv"] = json!(["/bin/probe"]);
    spec["security"] = Value::from("Insecure");
    let ran = crate::sandbox::harness::run(&spec);
    assert_eq!(ran.code(), 1, "{}", ran.err);
    for way in ["system call mount", "system call keyctl", "NoNewPrivs", "CapBnd"] {
        assert!(ran.out.contains(way), "{way}: {}", ran.out);
    }
}
