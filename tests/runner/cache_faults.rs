//! Build caches in registries that have lost layers or want a login.

use crate::build_cache::{build, filled, result};
use crate::common::registry::{PASSWORD, Registry, USER};
use crate::common::{TestEnv, needs_root, noise};

const DENIED: i32 = 5;

#[test]
fn a_layer_that_the_registry_has_lost_is_made_and_sent_again() {
    if !needs_root() {
        return;
    }
    let (env, registry) = (TestEnv::new(), Registry::start());
    let kubefile = "FROM scratch\nCOPY --chmod=755 busybox /bin/sh\nCOPY --chmod=755 busybox /bin/cat\n\
        COPY large /large\n\
        RUN cat /proc/sys/kernel/random/uuid /large >/made\n";
    env.context("context", kubefile, &[]);
    env.write("context/large", noise(3, 3 << 20));
    std::fs::copy("/bin/busybox", env.path("context/busybox")).expect("no busybox: scripts/setup");
    let cache = format!("{}/team/cache", registry.host);
    let from = format!("type=registry,ref={cache},trust=all");
    let both = ["--cache-from", &from, "--cache-to", &cache];
    let (first, _) = result(build(&env, "one", &both));
    assert_eq!(result(build(&env, "two", &both)), (first.clone(), 4));
    // The layer that was copied, and that of the command.
    let blobs = registry.data().join("docker/registry/v2/blobs/sha256");
    let mut lost = 0;
    for entry in walkdir::WalkDir::new(blobs) {
        let entry = entry.unwrap();
        if entry.file_name() == "data" && entry.metadata().unwrap().len() > 2 << 20 {
            std::fs::remove_file(entry.path()).unwrap();
            lost += 1;
        }
    }
    assert_eq!(lost, 2);
    let ran = build(&env, "three", &both).ok();
    assert!(ran.stderr().contains("is not used"), "{}", ran.report());
    let (second, cached) = result(ran);
    assert_eq!(cached, 3, "the command runs again");
    assert_ne!(second, first);
    assert_eq!(result(build(&env, "four", &both)), (second, 4));
}

#[test]
fn a_cache_behind_a_login_needs_the_right_one() {
    let (env, registry) = (filled(), Registry::with_login());
    let cache = format!("{}/team/cache", registry.host);
    let both = ["--cache-from", &cache, "--cache-to", &cache];
    let with = |machine: &str, password: &str| {
        let creds = format!("--creds={USER}:{password}");
        build(&env, machine, &[&*creds, both[0], both[1], both[2], both[3]])
    };
    let (expected, _) = result(with("one", PASSWORD));
    assert_eq!(result(with("two", PASSWORD)), (expected.clone(), 3));
    let ran = with("three", "wrong-s3cret").ok();
    let said = ran.stderr();
    assert!(said.contains("cannot be used") && said.contains(&registry.host), "{said}");
    assert!(said.contains("cannot write the build cache"), "{said}");
    assert!(!said.contains("wrong-s3cret"), "{said}");
    assert_eq!(result(ran), (expected, 0));
    build(&env, "four", &both).ok();
    let strict = format!("--cache-to=type=registry,ref={cache},ignore-error=false");
    build(&env, "five", &[&strict]).fails(DENIED);
}
