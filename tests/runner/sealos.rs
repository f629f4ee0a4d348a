//! The flags, commands and variables of sealos (users of buildah's among them) that once were answered
//! differently: each works, has no effect and says so, or is refused by a sentence of its own.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv};

const USAGE: i32 = 2;

/// What is expected of a command line.
enum Expect {
    /// It succeeds, and prints this.
    Works(&'static str),
    /// It succeeds with a note.
    Notes(&'static str),
    /// It fails with this exit code and sentence.
    Refused(i32, &'static str),
}

use Expect::{Notes, Refused, Works};

/// An image, a second one, a list, a cluster without hosts that answer.
fn site() -> TestEnv {
    let env = TestEnv::new();
    let kubefile = "FROM scratch AS unused\nCOPY etc /unused\nFROM scratch\nLABEL sealos.io.type=rootfs sealos.io.version=v1beta1 version=v1.31.4\nCOPY etc /etc\n";
    let context = env.context("context", kubefile, &[("etc/conf", "a=b\n")]);
    env.build("localhost/x:v1", &context);
    let second = env.context("second", "FROM scratch\nCOPY f /f\n", &[("f", "f\n")]);
    env.build("localhost/y:v1", &second);
    env.write("args", "A=1\n");
    env.write("values.yaml", "a: 1\n");
    env.write(
        "Clusterfile",
        "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: default\nspec:\n  image: [localhost/x:v1]\n  ssh:\n    user: stored\n    passwd: stored-secret\n  hosts:\n  - ips: [192.0.2.7:22]\n    roles: [master, amd64]\n",
    );
    env
}

#[test]
fn every_row_of_the_comparison_has_its_answer() {
    let env = site();
    env.write(".sealos/default/Clusterfile", std::fs::read(env.path("Clusterfile")).unwrap());
    let build = |flag: &'static str| vec!["build", "-q", "-t", "z:v1", flag, "context"];
    let noted = |flag: &'static str| vec!["build", "-t", "z:v1", flag, "context"];
    let rows: Vec<(Vec<&str>, Expect)> = vec![
        // Commands.
        (vec!["from", "x:v1"], Works("x-working-container")),
        (vec!["containers"], Works("localhost/x:v1")),
        (vec!["list"], Works("localhost/x:v1")),
        (vec!["ps"], Works("localhost/x:v1")),
        (vec!["mount"], Works("localhost/x:v1")),
        (vec!["rm", "x-working-container"], Works("")),
        (vec!["unshare", "id"], Refused(USAGE, "no user namespace that lasts")),
        (vec!["docs", "-p", "reference"], Works("")),
        (vec!["options"], Works("--root")),
        (vec!["ls", "x:v1:/etc"], Works("conf")),
        // build.
        (build("--blob-cache=/x"), Works("")),
        (build("--build-arg-file=args"), Works("")),
        (noted("--cap-drop=all"), Notes("--cap-drop has no effect")),
        (noted("--cni-config-dir=/x"), Notes("--cni-config-dir has no effect")),
        (noted("--cni-plugin-path=/x"), Notes("--cni-plugin-path has no effect")),
        (noted("--compress"), Notes("--compress has no effect")),
        (noted("--cpp-flag=-DX"), Notes("--cpp-flag has no effect")),
        (build("--decryption-key=x"), Refused(USAGE, "skopeo copy --decryption-key")),
        (build("--from=localhost/y:v1"), Works("")),
        (noted("--group-add=x"), Notes("--group-add has no effect")),
        (noted("--hooks-dir=/x"), Notes("--hooks-dir has no effect")),
        (noted("--log-rusage"), Notes("--log-rusage has no effect")),
        (noted("--logsplit"), Notes("--logsplit has no effect")),
        (build("--manifest=listed:v1"), Works("")),
        (noted("--no-hosts"), Notes("--no-hosts has no effect")),
        (build("--omit-history"), Works("")),
        (build("--os-feature=x"), Works("")),
        (build("--os-version=1"), Works("")),
        (build("--output=type=local,dest=out"), Works("")),
        (build("--all-platforms"), Refused(USAGE, "takes the platforms from base images")),
        (noted("--rusage-logfile=/x"), Notes("--rusage-logfile has no effect")),
        (noted("--skip-unused-stages"), Notes("--skip-unused-stages has no effect")),
        (noted("--userns-uid-map-user=x"), Notes("--userns-uid-map-user has no effect")),
        (noted("--userns-gid-map-group=x"), Notes("--userns-gid-map-group has no effect")),
        (build("--cap-add=all"), Refused(USAGE, "--cap-add is not supported")),
        (build("--device=/dev/x"), Refused(USAGE, "--device is not supported")),
        (build("--volume=/a:/b"), Refused(USAGE, "--build-context")),
        (build("--security-opt=x"), Refused(USAGE, "--security-opt is not supported")),
        (build("--annotation=manifest:a=b"), Works("")),
        (build("--annotation=a=b:c"), Works("")),
        (build("--annotation=index:a=b"), Refused(USAGE, "manifest annotate --index")),
        // Images.
        (vec!["merge", "-t", "m:v1", "--isolation=chroot", "x:v1", "y:v1"], Notes("no effect")),
        (vec!["merge", "-t", "m:v1", "--jobs=2", "--no-cache", "x:v1", "y:v1"], Notes("no effect")),
        (vec!["pull", "--decryption-key=x", "y"], Refused(USAGE, "skopeo copy")),
        (vec!["push", "--sign-by=x", "x:v1"], Refused(USAGE, "imgctl sign")),
        (vec!["push", "--encryption-key=x", "x:v1"], Refused(USAGE, "does not encrypt")),
        (vec!["push", "--encrypt-layer=0", "x:v1"], Refused(USAGE, "does not encrypt")),
        (
            vec!["push", "--blob-cache=/x", "x:v1", "dir:pushed"],
            Notes("--blob-cache has no effect"),
        ),
        (
            vec!["manifest", "create", "--insecure", "--os=linux", "--arch=amd64", "l:v1", "x:v1"],
            Works(""),
        ),
        (vec!["manifest", "add", "--insecure", "l:v1", "y:v1"], Works("")),
        (
            vec!["manifest", "push", "--insecure", "--sign-by=x", "l:v1"],
            Refused(USAGE, "imgctl sign"),
        ),
        (vec!["inspect", "--arch=amd64", "--os=linux", "x:v1"], Works("rootfs")),
        (vec!["diff", "--arch=amd64", "--diff-type=image", "x:v1", "y:v1"], Works("")),
        (vec!["diff", "--json", "x:v1", "y:v1"], Works("{")),
        (vec!["diff", "--tag=a:v1", "x:v1", "y:v1"], Refused(USAGE, "diff makes no images")),
        (vec!["diff", "--save", "x:v1", "y:v1"], Refused(USAGE, "diff")),
        (vec!["images", "-f", "dangling=false,reference=x"], Works("localhost/x")),
        // Clusters.
        (vec!["run", "-f", "Clusterfile"], Refused(USAGE, "imgctl apply -f Clusterfile")),
        (vec!["gen", "-o", "stdout", "x:v1", "--masters", "192.0.2.7"], Works("kind: Cluster")),
        (vec!["cert", "--groups", "a,b"], Refused(USAGE, "--groups a,b is not supported")),
        (vec!["version"], Works("imgctl ")),
        (vec!["version", "-o", "yaml"], Works("storeFormat:")),
        (
            vec!["registry", "passwd", "-c", "default", "-p", "users", "-f", "shim"],
            Refused(USAGE, "--file cannot be used with --cluster"),
        ),
        // Flags of every command.
        (vec!["images", "--default-mounts-file=/x"], Notes("--default-mounts-file has no effect")),
        (vec!["images", "--cpu-profile=/x"], Notes("--cpu-profile has no effect")),
        (vec!["images", "--memory-profile=/x"], Notes("--memory-profile has no effect")),
        (vec!["images", "--log-level=fatal"], Works("localhost/x")),
        (vec!["images", "--log-level=panic"], Works("localhost/x")),
        (vec!["images", "--storage-driver=vfs"], Notes("--storage-driver has no effect")),
    ];
    let mut wrong = Vec::new();
    for (words, expect) in rows {
        let ran = env.imgctl(&words);
        let good = match expect {
            Works(prints) => ran.success() && ran.stdout().contains(prints),
            Notes(says) => ran.success() && ran.stderr().contains(says),
            Refused(code, says) => {
                let report = ran.report();
                report.contains(&format!("exit status: {code}\n")) && ran.stderr().contains(says)
            }
        };
        if !good {
            wrong.push(ran.report());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Lists with commas, in the flags where sealos has them.
#[test]
fn lists_with_commas_are_several_values() {
    let env = site();
    let apply = |more: &[&str]| {
        let words =
            ["apply", "-f", "Clusterfile", "--dry-run", "--values", "values.yaml,values.yaml"];
        env.imgctl(words.iter().chain(more))
    };
    // The cluster cannot be reached; its Clusterfile was understood.
    for more in [&["--set", "a=1,b=2"][..], &[]] {
        let ran = apply(more);
        assert!(!ran.stderr().contains("values.yaml,"), "{}", ran.report());
        assert!(!ran.report().contains("exit status: 2"), "{}", ran.report());
    }
}

#[test]
fn variables_of_buildah_and_sealos_are_read_or_named() {
    let env = site();
    let run = |variables: &[(&str, &str)], words: &[&str]| {
        let mut command = env.command(words);
        command.envs(variables.iter().copied());
        Ran::new(command)
    };
    for (name, says) in [
        ("CONTAINERS_STORAGE_CONF", "one store"),
        ("BUILDAH_ISOLATION", "their own namespaces"),
        ("BUILDAH_LAYERS", "each step is a layer"),
        ("SEALOS_SEALCTL_PATH", "its own agent"),
    ] {
        let quiet = run(&[(name, "x")], &["images"]).ok();
        assert!(!quiet.stderr().contains(name), "{}", quiet.report());
        let told = run(&[(name, "x")], &["-v", "images"]).ok();
        assert!(told.stderr().contains(name) && told.stderr().contains(says), "{}", told.report());
    }
    let told = run(&[("BUILDAH_LOG_LEVEL", "info"), ("BUILDAH_LAYERS", "true")], &["images"]);
    assert!(told.ok().stderr().contains("BUILDAH_LAYERS"));
    run(&[("BUILDAH_FORMAT", "docker")], &["build", "-q", "-t", "d:v1", "context"]).ok();
    let manifest = env.imgctl(["inspect", "-t", "manifest", "d:v1"]).ok().json();
    assert_eq!(manifest["mediaType"], "application/vnd.docker.distribution.manifest.v2+json");
    run(&[("BUILDAH_FORMAT", "x")], &["build", "context"]).fails(USAGE);
    let missing = run(&[("REGISTRY_AUTH_FILE", "/nonexistent/auth.json")], &["images"]);
    missing.ok();
}

#[test]
fn the_flags_for_registries_conf_count() {
    let env = site();
    let registry = Registry::start();
    registry.fill(&env.root(), "x:v1");
    let there = TestEnv::new();
    let conf = |host: &str| {
        format!("unqualified-search-registries = [\"{host}\"]\nshort-name-mode = \"permissive\"\n")
    };
    let conf = there.write("registries.conf", conf(&registry.host));
    there.imgctl(["pull", "x:v1"]).fails(7);
    there.imgctl(["--registries-conf", conf.to_str().unwrap(), "pull", "x:v1"]).ok();
    there.imgctl(["pull", "x:v1", "--registries-conf=/nonexistent"]).fails(3);
    let drop_in = format!("[[registry]]\nlocation = \"{}\"\nblocked = true\n", registry.host);
    there.write("conf.d/blocked.conf", drop_in);
    let words = ["pull", "--registries-conf-dir", "conf.d"];
    let image = format!("{}/x:v1", registry.host);
    let blocked = there.imgctl(words.iter().copied().chain([&*image])).fails(5);
    assert!(blocked.stderr().contains("block"), "{}", blocked.report());
}

#[test]
fn a_registry_in_memory_goes_with_its_process() {
    let env = site();
    let mut command =
        env.command(["registry", "serve", "inmem", "--addr", "127.0.0.1:0", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut text = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said = loop {
        text += &lines.next().expect("it says where it listens");
        if let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) {
            break value;
        }
    };
    let image = format!("{}/team/x:v1", said["address"].as_str().unwrap());
    env.imgctl(["push", "x:v1", &image]).ok();
    env.imgctl(["pull", &image]).ok();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!env.path("inmem").exists());
    let left = std::fs::read_dir(env.root().join("store/ingest")).unwrap().count();
    assert_eq!(left, 0, "the temporary registry stays");
}
