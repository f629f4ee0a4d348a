//! Which cluster a command means, and what this machine says of its clusters without asking a host.

use serde_json::json;

use crate::common::{Ran, TestEnv};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CHECK_FAILED: i32 = 10;

fn clusterfile(name: &str) -> String {
    format!(
        "apiVersion: apps.sealos.io/v1beta1
kind: Cluster
metadata:
  name: {name}
  creationTimestamp: \"2026-01-01T00:00:00Z\"
spec:
  image: [localhost/base:1]
  hosts:
  - ips: [\"127.0.0.1:1\"]
    roles: [master, amd64]
  - ips: [\"127.0.0.1:3\"]
    roles: [node, amd64]
status:
  phase: ClusterSuccess
  mounts:
  - name: {name}-1
    type: rootfs
    imageName: localhost/base:1
    mountPoint: \"\"
    labels:
      version: v7.1
"
    )
}

/// A machine that knows these clusters, whose hosts do not answer.
fn machine(clusters: &[&str]) -> TestEnv {
    let env = TestEnv::new();
    let labels = "sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script \
                  init=i join=j version=v7.1";
    let kubefile = format!("FROM scratch\nENV webPort=80\nLABEL {labels}\nCOPY f /f\n");
    let context = env.context("base", &kubefile, &[("f", "x")]);
    env.build("localhost/base:1", &context);
    for name in clusters {
        env.write(format!(".sealos/{name}/Clusterfile"), clusterfile(name));
    }
    env
}

fn with_variable(env: &TestEnv, words: &[&str]) -> Ran {
    let mut command = env.command(words);
    command.env("IMGCTL_CLUSTER", "b");
    Ran::new(command)
}

#[test]
fn clusters_are_listed_in_every_form() {
    let env = machine(&["b", "a"]);
    env.write(".sealos/broken/Clusterfile", "kind: [");
    env.write(".sealos/logs/Clusterfile", "not a cluster");
    env.write(
        ".sealos/a/journal/20260102T030405.678Z-run-1a2b3c4d.jsonl",
        "{\"record\":\"start\",\"time\":\"2026-01-02T03:04:05Z\",\"verb\":\"run\",\"cluster\":\"a\",\
         \"intent\":\"i\",\"plan\":\"p\",\"arguments\":[],\"version\":\"1\",\"controller\":\"me\"}\n\
         {\"record\":\"finish\",\"time\":\"2026-01-02T03:04:06Z\",\"outcome\":\"failed\"}\n",
    );
    let list = env.imgctl(["clusters"]).ok();
    let rows: Vec<Vec<&str>> =
        list.stdout().leak().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "VERSION", "HOSTS", "STATE", "LAST", "RUN"]);
    assert_eq!(rows[1][..6], ["a", "v7.1", "2", "run", "failed", "run"], "{rows:?}");
    assert_eq!(rows[2], ["b", "v7.1", "2", "created"]);
    assert_eq!(rows[3], ["broken", "0", "unreadable"]);
    assert_eq!(rows.len(), 4);
    assert!(list.stderr().contains("note: broken: "), "{}", list.report());

    let objects = env.imgctl(["clusters", "--json"]).ok().json();
    assert_eq!(objects[0]["state"], "run failed");
    assert_eq!(objects[0]["lastRun"]["verb"], "run");
    assert_eq!(objects[1]["hosts"], json!(["127.0.0.1:1", "127.0.0.1:3"]));
    assert_eq!(objects[1]["lastRun"], json!(null));
    let names = env.imgctl(["clusters", "--format", "{{.Name}}={{.State}}"]).ok();
    assert_eq!(names.stdout(), "a=run failed\nb=created\nbroken=unreadable");
    assert_eq!(env.imgctl(["clusters", "-q"]).ok().stdout(), "a\nb\nbroken");

    let none = TestEnv::new();
    let empty = none.imgctl(["clusters", "--json"]).ok();
    assert_eq!(empty.json(), json!([]));
    let empty = none.imgctl(["clusters"]).ok();
    assert!(empty.stderr().contains("imgctl run IMAGE --masters HOSTS"), "{}", empty.report());
}

#[test]
fn the_only_cluster_is_meant_and_several_are_named() {
    let one = machine(&["b"]);
    assert_eq!(one.imgctl(["state", "show", "--json"]).ok().json()["cluster"], "b");
    one.imgctl(["journal"]).ok();
    // Which cluster is removed is never guessed.
    let reset = one.imgctl(["reset", "--yes", "--force"]).fails(NOT_FOUND);
    assert!(reset.stderr().contains("there is no cluster `default`"), "{}", reset.report());
    assert!(one.path(".sealos/b/Clusterfile").exists());

    let two = machine(&["a", "b"]);
    for words in [&["status"][..], &["state", "show"], &["upgrade", "status"], &["reset"]] {
        let ran = two.imgctl(words).fails(NOT_FOUND);
        assert!(ran.stderr().contains(": a, b; name one with --cluster"), "{}", ran.report());
    }
    let show = ["state", "show", "--json"];
    assert_eq!(with_variable(&two, &show).ok().json()["cluster"], "b");
    let flag = ["state", "show", "--json", "-c", "a"];
    assert_eq!(with_variable(&two, &flag).ok().json()["cluster"], "a");

    two.write(".sealos/default/Clusterfile", clusterfile("default"));
    assert_eq!(two.imgctl(show).ok().json()["cluster"], "default");
}

#[test]
fn status_begins_with_what_is_unfinished() {
    let env = machine(&["a"]);
    let journal = ".sealos/a/journal/20260102T030405.678Z-run-1a2b3c4d.jsonl";
    let start = "{\"record\":\"start\",\"time\":\"2026-01-02T03:04:05Z\",\"verb\":\"run\",\"cluster\":\"a\",\
         \"intent\":\"i\",\"plan\":\"p\",\"arguments\":[],\"version\":\"1\",\"controller\":\"me\"}\n";
    let finish = |outcome: &str| {
        format!(
            "{start}{{\"record\":\"finish\",\"time\":\"2026-01-02T03:04:06Z\",\"outcome\":\"{outcome}\"}}\n"
        )
    };
    env.write(journal, finish("failed"));
    let ran = env.imgctl(["status"]).fails(CHECK_FAILED);
    let text = ran.stdout();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("unfinished: the last run, `imgctl run`, failed"));
    assert_eq!(lines.next(), Some("  imgctl journal last --failed --cluster a"));
    assert!(text.contains("\ncluster a: run failed (ClusterSuccess)\n"), "{text}");
    let json = env.imgctl(["status", "--json"]).fails(CHECK_FAILED).json();
    assert_eq!(json["state"], "run failed");
    assert_eq!(json["unfinished"]["next"][0], "imgctl journal last --failed --cluster a");

    // The process was killed.
    env.write(journal, start);
    let text = env.imgctl(["status"]).fails(CHECK_FAILED).stdout();
    assert!(text.starts_with("unfinished: the last run, `imgctl run`, interrupted\n"), "{text}");

    env.write(journal, finish("done"));
    let text = env.imgctl(["status"]).fails(CHECK_FAILED).stdout();
    assert!(text.starts_with("cluster a: created (ClusterSuccess)\n"), "{text}");

    // A cluster that was never complete goes on with its images.
    let never = clusterfile("a").replace("  creationTimestamp: \"2026-01-01T00:00:00Z\"\n", "");
    env.write(".sealos/a/Clusterfile", never);
    env.write(journal, finish("failed"));
    let text = env.imgctl(["status"]).fails(CHECK_FAILED).stdout();
    assert!(text.contains("the cluster is incomplete: `imgctl run` failed"), "{text}");
    assert!(text.contains("\n  imgctl run localhost/base:1 --cluster a\n"), "{text}");
}

#[test]
fn this_machine_becomes_a_cluster_only_if_that_is_meant() {
    let env = machine(&["other"]);
    for more in [&[][..], &["--json"]] {
        let ran = env.imgctl([&["run", "base:1"], more].concat()).fails(USAGE);
        let told = ran.report();
        assert!(told.contains("no host is named: this machine, "), "{told}");
        assert!(told.contains("would become cluster default"), "{told}");
        assert!(told.contains("--local or --masters localhost"), "{told}");
        assert!(told.contains("imgctl clusters"), "{told}");
    }
    assert!(!env.path(".sealos/default").join("Clusterfile").exists());
    let local = env.imgctl(["run", "base:1", "--local", "--masters", "127.0.0.1"]);
    assert!(local.fails(USAGE).stderr().contains("cannot be used with"));
    // A preview changes nothing.
    for words in [&["run", "base:1"][..], &["run", "base:1", "--masters", "localhost"]] {
        let ran = env.imgctl([words, &["--dry-run"]].concat());
        assert!(
            ran.stderr().contains("cluster default consists of this machine, "),
            "{}",
            ran.report()
        );
    }
}

#[test]
fn variables_that_nearly_fit_are_told() {
    let env = machine(&[]);
    let words =
        |variable| ["run", "base:1", "--masters", "127.0.0.1:1", "--dry-run", "-e", variable];
    let ran = env.imgctl(words("webport=81"));
    assert!(
        ran.stderr().contains("the image has no variable webport; it has webPort"),
        "{}",
        ran.report()
    );
    for fits in ["webPort=81", "SOMETHING=1"] {
        let ran = env.imgctl(words(fits));
        assert!(!ran.stderr().contains("no variable"), "{}", ran.report());
    }
}
