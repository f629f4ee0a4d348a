//! Whom a build believes: under the default, no cache changes the digest of an image, whatever its
//! records say and however consistent they are; a key's signature makes records of RUN usable.

use super::*;

/// A context whose image has a layer of each kind of step.
fn every_step(env: &TestEnv) {
    let kubefile = "FROM scratch\nCOPY --chmod=755 busybox /bin/sh\nCOPY --chmod=755 busybox /bin/cat\n\
        WORKDIR /made/here\nRUN cat /bin/sh /etc/none >/copy; cat /copy >/copies\nADD file /file\n";
    env.context("context", kubefile, &[("file", "1\n")]);
    std::fs::copy("/bin/busybox", env.path("context/busybox")).expect("no busybox: scripts/setup");
    set_times(&env.path("context"), 1_600_000_000);
}

fn keys(env: &TestEnv, name: &str) {
    let mut command = on(env, "keys");
    command.env("COSIGN_PASSWORD", "");
    command.args(["key", "generate", "--output-key-prefix", name]);
    Ran::new(command).ok();
}

/// Builds with the password of the keys.
fn build_with(env: &TestEnv, machine: &str, words: &[&str]) -> Ran {
    let mut command = on(env, machine);
    command.env("COSIGN_PASSWORD", "");
    command.args(["build", "--network=none", "-t", "app", "--timestamp=1700000000"]);
    command.args(words).arg("context");
    Ran::new(command)
}

#[test]
fn a_signed_cache_serves_commands_to_who_has_the_key() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY --chmod=755 busybox /bin/sh\nCOPY --chmod=755 busybox /bin/cat\n\
        RUN cat /proc/sys/kernel/random/uuid >/id\n";
    env.context("context", kubefile, &[]);
    std::fs::copy("/bin/busybox", env.path("context/busybox")).expect("no busybox: scripts/setup");
    keys(&env, "ours");
    keys(&env, "theirs");
    let to = "type=local,dest=cache,key=ours.key";
    let (first, _) = result(build_with(&env, "one", &["--cache-to", to]));
    let from = |key: &str| format!("type=local,src=cache,key={key}");
    let (second, cached) = result(build_with(&env, "two", &["--cache-from", &from("ours.pub")]));
    assert_eq!((&second, cached), (&first, 3));
    let (private, _) = result(build_with(&env, "three", &["--cache-from", &from("ours.key")]));
    assert_eq!(private, first);
    let (other, cached) = result(build_with(&env, "four", &["--cache-from", &from("theirs.pub")]));
    assert_eq!(cached, 2);
    assert_ne!(other, first);
    // Who writes without the key leaves the signatures of others alone, and its own record of a
    // command is not believed.
    result(build_with(&env, "two", &["--cache-to", "type=local,dest=cache"]));
    let (again, cached) = result(build_with(&env, "five", &["--cache-from", &from("ours.pub")]));
    assert_eq!((&again, cached), (&first, 3));
    result(build_with(&env, "four", &["--cache-to", "type=local,dest=cache"]));
    let (forged, cached) = result(build_with(&env, "six", &["--cache-from", &from("ours.pub")]));
    assert_eq!(cached, 2);
    assert_ne!(forged, other, "the command has run again");
    // A variable can hold the key; what is not a key is an error at once.
    let mut command = on(&env, "seven");
    let text = std::fs::read_to_string(env.path("ours.pub")).unwrap();
    command.env("CACHE_KEY", &text).args(["build", "--network=none", "--timestamp=1700000000"]);
    command.args(["--cache-from", &from("env://CACHE_KEY"), "context"]);
    Ran::new(command).ok();
    let mut command = on(&env, "seven");
    command.env("IMGCTL_CACHE_KEY", text).args([
        "build",
        "--network=none",
        "--timestamp=1700000000",
    ]);
    command.args([
        "--cache-from=type=local,src=cache",
        "--cache-to=type=local,dest=other",
        "context",
    ]);
    Ran::new(command).ok();
    build_with(&env, "eight", &["--cache-from", &from("env://NO_KEY")]).fails(USAGE);
}

/// A liar who makes everything fit: layers of other content, that the cache has, with right digests.
#[test]
fn a_consistent_lie_changes_no_image() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    every_step(&env);
    let (expected, _) = result(build_with(&env, "alone", &[]));
    // What the liar wants to have in the image.
    let evil = TestEnv::new();
    every_step(&evil);
    evil.write("context/file", "2\n");
    let kubefile = std::fs::read_to_string(evil.path("context/Kubefile")).unwrap();
    evil.write("context/Kubefile", kubefile.replace("/copies", "/evil"));
    set_times(&evil.path("context"), 1_500_000_000);
    result(build_with(&evil, "evil", &["--cache-to", "type=local,dest=cache"]));
    result(build_with(&env, "good", &["--cache-to", "type=local,dest=cache"]));
    let copy = |from: &Path, to: &Path| {
        Ran::new(crate::common::tool("cp", [Path::new("-aT"), from, to])).ok();
    };
    copy(&evil.path("cache/blobs"), &env.path("cache/blobs"));
    let lies = Layout { path: evil.path("cache") }.records();
    let layout = Layout { path: env.path("cache") };
    let good = layout.records();
    // Every record with every layer of the other image, for all bases.
    let other: Vec<Value> =
        lies["steps"].as_object().unwrap().values().map(|step| step["layers"].clone()).collect();
    for (at, layers) in other.iter().enumerate() {
        for basis in ["content", "run", "embedded"] {
            layout.change(|records| {
                *records = good.clone();
                for step in records["steps"].as_object_mut().unwrap().values_mut() {
                    step["layers"] = layers.clone();
                    step["basis"] = json!(basis);
                    step["signature"] = json!("AAAA");
                }
            });
            let machine = format!("{at}-{basis}");
            let ran = build_with(&env, &machine, &["--cache-from", "type=local,src=cache"]);
            assert_eq!(result(ran).0, expected, "layer {at} as {basis}");
        }
    }
    // The same content with other times: not even those, if the build says which.
    layout.change(|records| *records = good.clone());
    let old = TestEnv::new();
    every_step(&old);
    set_times(&old.path("context"), 1_400_000_000);
    result(build_with(&old, "old", &["--cache-to", "type=local,dest=cache"]));
    let ran = build_with(
        &env,
        "times",
        &["--cache-from", &format!("type=local,src={}", old.path("cache").display())],
    );
    assert_eq!(result(ran).0, expected);
}
