//! Layers that stay in the registry of the cache: a fresh machine's push only names them there, and
//! fetches what a step has to read.

use super::*;

/// Builds `context` on a machine and pushes it to `image`.
fn push(env: &TestEnv, machine: &str, image: &str, words: &[&str]) -> Ran {
    let mut command = on(env, machine);
    command.args(["build", "--network=none", "--push", "-t", image]).args(words).arg("context");
    Ran::new(command)
}

/// Blobs of layers in the store of a machine.
fn stored(env: &TestEnv, machine: &str) -> usize {
    let blobs = env.path(machine).join("store/blobs/sha256");
    let entries = std::fs::read_dir(blobs).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().metadata().unwrap().len() > 100_000).count()
}

fn bytes_sent(proxy: &Proxy) -> u64 {
    let length = |request: crate::common::proxy::Request| {
        request.header("content-length").and_then(|text| text.parse::<u64>().ok())
    };
    proxy.requests().into_iter().filter_map(length).sum()
}

#[test]
fn an_unchanged_push_from_a_fresh_machine_moves_no_layer() {
    let (env, registry) = (filled(), Registry::start());
    let image = format!("{}/team/app:v1", registry.host);
    let cache = format!("{}/team/cache", registry.host);
    let (first, _) = result(push(&env, "one", &image, &["--cache-to", &cache]));
    set_times(&env.path("context"), 1_700_000_000);
    registry.blobs_read();
    for (machine, image, trust) in [
        ("two", "team/app:v1", "content"),
        ("three", "team/app:v2", "all"),
        ("four", "team/other:v1", "all"),
        ("five", "team/third:v1", "content"),
    ] {
        let name = format!("{}/{image}", registry.host);
        let from = format!("type=registry,ref={cache},trust={trust}");
        let ran = push(&env, machine, &name, &["--cache-from", &from, "--cache-to", &cache]).ok();
        assert_eq!(ran.json()["stored"], trust == "content");
        assert!(ran.json()["pushed"][0]["bytesCopied"].as_u64().unwrap() < 10_000);
        assert_eq!(result(ran), (first.clone(), 3), "{machine}");
        let reads = registry.blobs_read();
        assert_eq!(reads.len(), 1, "only the records: {reads:?}");
        // What is verified is made again; what is trusted stays where it is.
        assert_eq!(stored(&env, machine), usize::from(trust == "content"), "{machine}");
        registry.assert_serves(image);
        registry.blobs_read();
    }
    // An image that is used on this machine is whole.
    let from = format!("type=registry,ref={cache},trust=all");
    let ran = push(&env, "six", &image, &["--load", "--cache-from", &from]);
    assert_eq!(result(ran).0, first);
    assert_eq!(stored(&env, "six"), 1);
    let mut exported = on(&env, "six");
    exported.args(["save", "-o", "saved.tar", &image]);
    Ran::new(exported).ok();
}

#[test]
fn a_changed_file_moves_its_layer_and_little_else() {
    let (env, registry) = (filled(), Registry::start());
    let proxy = Proxy::start(&registry.host);
    let (image, cache) = (format!("{}/team/app", proxy.host), format!("{}/team/cache", proxy.host));
    env.write("context/etc/noise", noise(7, 300_000));
    set_times(&env.path("context"), 1_600_000_000);
    let from = format!("type=registry,ref={cache},trust=all");
    let both = ["--cache-from", &*from, "--cache-to", &cache];
    result(push(&env, "one", &image, &both));
    env.write("context/etc/conf", "a=c\n");
    proxy.requests();
    let (changed, cached) = result(push(&env, "two", &image, &both));
    assert_eq!(cached, 2);
    // The layer of /etc has a single small file in the result.
    let sent = bytes_sent(&proxy);
    assert!(sent < 65_536, "{sent} bytes were sent");
    let read = registry.blobs_read();
    assert!(read.len() <= 4, "records, and nothing of a layer: {read:?}");
    registry.assert_serves("team/app:latest");
    let (again, cached) = result(push(&env, "three", &image, &both));
    assert_eq!((again, cached), (changed, 3));
}

#[test]
fn a_step_that_reads_a_layer_has_it_fetched() {
    if !needs_root() {
        return;
    }
    let (env, registry) = (TestEnv::new(), Registry::start());
    let kubefile = |text: &str| {
        format!(
            "FROM scratch AS made\nCOPY --chmod=755 busybox /bin/sh\nCOPY --chmod=755 busybox /bin/cat\n\
             RUN cat /proc/sys/kernel/random/uuid >/id\n\
             FROM scratch\nCOPY --from=made /id /id\nCOPY file /data/file\nWORKDIR /data/{text}\n"
        )
    };
    env.context("context", &kubefile("one"), &[("file", "1\n")]);
    std::fs::copy("/bin/busybox", env.path("context/busybox")).expect("no busybox: scripts/setup");
    let (image, cache) = (format!("{}/team/app", registry.host), format!("{}/c", registry.host));
    let to = format!("type=registry,ref={cache},mode=max");
    let from = format!("type=registry,ref={cache},trust=all");
    let both = ["--cache-from", &*from, "--cache-to", &to];
    let (first, _) = result(push(&env, "one", &image, &both));
    registry.blobs_read();
    // The result of RUN has to be known to copy from it; the layers below it have not.
    assert_eq!(result(push(&env, "two", &image, &both)), (first.clone(), 6));
    let reads = registry.blobs_read();
    assert_eq!(reads.len(), 2, "{reads:?}");
    // A command that runs needs what is below it.
    env.write("context/Kubefile", kubefile("two").replace(">/id", ">/id; cat /bin/sh >/copy"));
    let (second, cached) = result(push(&env, "three", &image, &both));
    assert_ne!(second, first);
    assert_eq!(cached, 3);
    assert!(registry.blobs_read().len() >= 3);
    registry.assert_serves("team/app:latest");
}

#[test]
fn what_a_registry_has_lost_is_made_again() {
    let (env, registry) = (filled(), Registry::start());
    let (image, cache) = (format!("{}/team/app", registry.host), format!("{}/c", registry.host));
    let (first, _) = result(push(&env, "one", &image, &["--cache-to", &cache]));
    let manifest = env.path("one/store/blobs/sha256").join(&first["sha256:".len()..]);
    let layers = json(&manifest)["layers"].clone();
    let lose = || {
        for layer in layers.as_array().unwrap() {
            let hex = &layer["digest"].as_str().unwrap()["sha256:".len()..];
            let blob = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
            std::fs::remove_file(registry.data().join(blob)).unwrap();
        }
    };
    lose();
    let other = format!("{}/team/other", registry.host);
    let from = format!("type=registry,ref={cache},trust=all");
    let ran = push(&env, "two", &other, &["--cache-from", &from, "--cache-to", &cache]).ok();
    assert!(ran.stderr().contains("has lost layer"), "{}", ran.report());
    assert_eq!(result(ran).0, first);
    registry.assert_serves("team/other:latest");
    // The export has repaired the cache.
    let ran = push(&env, "three", &other, &["--cache-from", &from]).ok();
    assert!(!ran.stderr().contains("has lost"), "{}", ran.report());
    assert_eq!(result(ran).0, first);
    assert_eq!(stored(&env, "three"), 0);
}

#[test]
fn another_registry_gets_the_layers_of_the_cache() {
    let (env, here, there) = (filled(), Registry::start(), Registry::start());
    let cache = format!("{}/team/cache", here.host);
    let (first, _) = result(build(&env, "one", &["--cache-to", &cache]));
    set_times(&env.path("context"), 1_700_000_000);
    let from = format!("type=registry,ref={cache},trust=all");
    let to = format!("{}/team/cache", there.host);
    let image = format!("{}/team/app", there.host);
    let ran = push(&env, "two", &image, &["--cache-from", &from, "--cache-to", &to]);
    assert_eq!(result(ran), (first.clone(), 3));
    there.assert_serves("team/app:latest");
    let (second, cached) = result(build(&env, "three", &["--cache-from", &to]));
    assert_eq!((second, cached), (first, 3), "the cache went along");
}
