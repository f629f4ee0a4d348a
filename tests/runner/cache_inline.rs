//! `--cache-to type=inline`: an image carries the records of its own layers, keeps its digest from
//! build to build, and does not pass them on to images built on it. No cache replaces an image.

use std::process::Command;

use serde_json::Value;

use crate::build_cache::{build, filled, on, result, set_times};
use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, tool};

const USAGE: i32 = 2;
const MEMBER: &str = "io.imgctl.buildcache.v1";

/// Builds `context` on a machine under one name in a registry, and pushes it.
fn push(env: &TestEnv, machine: &str, name: &str, words: &[&str]) -> Ran {
    let mut command: Command = on(env, machine);
    command.args(["build", "--network=none", "--push", "-t", name]).args(words).arg("context");
    Ran::new(command).ok()
}

fn config(name: &str) -> Value {
    let name = format!("docker://{name}");
    Ran::new(tool("skopeo", ["inspect", "--tls-verify=false", "--config", "--raw", &name]))
        .ok()
        .json()
}

#[test]
fn an_image_brings_its_cache_and_keeps_its_digest() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/team/app:v1", registry.host);
    let inline = "--cache-to=type=inline";
    let (first, _) = result(push(&env, "one", &name, &[inline]));
    let (again, _) = result(push(&env, "two", &name, &[inline]));
    assert_eq!(again, first);
    registry.assert_serves("team/app:v1");
    assert!(config(&name)[MEMBER].is_string());
    set_times(&env.path("context"), 1_700_000_000);
    registry.blobs_read();
    let from = format!("--cache-from=type=registry,ref={name}");
    let (second, cached) = result(build(&env, "three", &[&from, inline]));
    assert_eq!((second, cached), (first, 3));
    let reads = registry.blobs_read();
    assert_eq!(reads.len(), 1, "only the config: {reads:?}");
    // Without it, the image has the same layers and no records.
    let plain = format!("{}/team/app:plain", registry.host);
    push(&env, "three", &plain, &[&from]);
    let (with, without) = (config(&name), config(&plain));
    assert_eq!(with["rootfs"], without["rootfs"]);
    assert!(without.get(MEMBER).is_none());
}

#[test]
fn what_builds_on_such_an_image_does_not_inherit_its_cache() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/team/base", registry.host);
    push(&env, "one", &name, &["--cache-to=type=inline", "--format=docker"]);
    assert!(config(&name)[MEMBER].is_string());
    env.context("upper", &format!("FROM {name}\nENV A=b\n"), &[]);
    let upper = format!("{}/team/upper", registry.host);
    let mut command = on(&env, "one");
    command.args(["build", "--push", "-t", &upper, "upper"]);
    Ran::new(command).ok();
    assert!(config(&upper).get(MEMBER).is_none());
}

#[test]
fn each_platform_carries_its_own_records() {
    let (env, registry) = (filled(), Registry::start());
    let kubefile = "FROM scratch\nARG TARGETARCH\nCOPY bin /bin-$TARGETARCH\nCOPY etc /etc\n";
    env.write("context/Kubefile", kubefile);
    set_times(&env.path("context"), 1_600_000_000);
    let name = format!("{}/team/app", registry.host);
    let both = "--platform=linux/amd64,linux/arm64";
    let ran = push(&env, "one", &name, &["--cache-to=type=inline", both]);
    set_times(&env.path("context"), 1_700_000_000);
    let from = format!("--cache-from={name}");
    let words = [&*from, "--cache-to=type=inline", "--platform=linux/arm64"];
    let (arm, cached) = result(build(&env, "two", &words));
    assert_eq!(cached, 2);
    let list = ran.json()["manifests"].clone();
    assert!(list.to_string().contains(&arm), "{arm} is not in {list}");
}

#[test]
fn no_cache_replaces_an_image() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/team/app", registry.host);
    let (digest, _) = result(push(&env, "one", &name, &["--cache-to=type=inline"]));
    let to = format!("--cache-to={name}");
    let ran = build(&env, "one", &[&to]).ok();
    assert!(ran.stderr().contains("is an image"), "{}", ran.report());
    let strict = format!("--cache-to=type=registry,ref={name},ignore-error=false");
    build(&env, "one", &[&strict, &format!("--cache-from={name}")]).fails(USAGE);
    // Its records are listed, and go with it alone.
    let cache = |words: &[&str]| {
        let mut command = on(&env, "one");
        command.arg("cache").args(words).arg(&name);
        Ran::new(command)
    };
    let listed = cache(&["ls"]).ok().json();
    assert_eq!(listed["caches"][0]["image"], true);
    assert_eq!(listed["caches"][0]["records"].as_array().unwrap().len(), 3);
    cache(&["prune", "-f"]).fails(USAGE);
    let remote = format!("docker://{name}");
    let words = ["inspect", "--tls-verify=false", "--format={{.Digest}}", &remote];
    assert_eq!(Ran::new(tool("skopeo", words)).ok().stdout(), digest);
}
