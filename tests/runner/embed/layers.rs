//! One layer for each image: what is fetched, what is written, what stays the same.

use std::collections::BTreeSet;

use crate::common::TestEnv;
use crate::embed::support::{Upstream, build, listing, registry_layers};

/// Twenty images over eight base layers.
fn twenty(upstream: &Upstream) -> Vec<String> {
    let names: Vec<String> = (0..20).map(|n| format!("team/app{n:02}:v1")).collect();
    for (n, name) in names.iter().enumerate() {
        upstream.image(name, &format!("base {}", n % 8), &format!("own {n}"));
    }
    names.iter().map(|name| upstream.name(name)).collect()
}

#[test]
fn each_blob_is_fetched_once_and_a_changed_image_changes_its_layer_alone() {
    let upstream = Upstream::new();
    let names = twenty(&upstream);
    let env = TestEnv::new();
    let context = listing(&env, "context", &names);
    upstream.registry.blobs_read();
    build(&env, "cluster:v1", &context, &[]).ok();
    let digests = |paths: Vec<String>| -> Vec<String> {
        let digests = paths.iter().map(|path| path.rsplit('/').next().unwrap());
        let mut digests: Vec<String> = digests.map(str::to_owned).collect();
        digests.sort();
        digests
    };
    let read = digests(upstream.registry.blobs_read());
    let distinct: BTreeSet<&String> = read.iter().collect();
    // Eight bases, twenty layers, twenty configs.
    assert_eq!((read.len(), distinct.len()), (48, 48), "{read:?}");
    let first = registry_layers(&env, "cluster:v1");
    assert!((21..=28).contains(&first.len()), "{first:?}");

    build(&env, "cluster:again", &context, &[]).ok();
    assert_eq!(upstream.registry.blobs_read(), [""; 0]);
    assert_eq!(registry_layers(&env, "cluster:again"), first);

    upstream.image("team/app07:v1", "base 7", "changed");
    upstream.registry.blobs_read();
    build(&env, "cluster:v2", &context, &[]).ok();
    // The new layer and the new config; the base is here already.
    assert_eq!(upstream.registry.blobs_read().len(), 2);
    let second = registry_layers(&env, "cluster:v2");
    let changed: Vec<&String> = first
        .iter()
        .filter(|(title, digest)| second.get(*title) != Some(digest))
        .map(|(title, _)| title)
        .collect();
    assert_eq!(changed, [&names[7]]);
    assert_eq!(second.len(), first.len());
}

#[test]
fn the_same_images_give_the_same_digest_in_any_store() {
    let upstream = Upstream::new();
    upstream.image("a:v1", "base", "a");
    upstream.index("b:v1", "base", "b");
    let names = [upstream.name("a:v1"), upstream.name("b:v1")];
    let ids: Vec<String> = (0..2)
        .map(|n| {
            let env = TestEnv::new();
            let context = listing(&env, "context", &names);
            let procs = format!("--max-pull-procs={}", 1 + 4 * n);
            build(&env, "cluster", &context, &[&procs]).ok().stdout()
        })
        .collect();
    assert_eq!(ids[0], ids[1]);
}

#[test]
fn a_registry_that_lies_is_found_out() {
    let upstream = Upstream::new();
    upstream.image("a:v1", "base", "a");
    let blobs = upstream.registry.data().join("docker/registry/v2/blobs/sha256");
    let find = ["-type", "f", "-size", "+0", "-name", "data"];
    let arguments = std::iter::once(blobs.to_str().unwrap()).chain(find);
    let files = crate::common::Ran::new(crate::common::tool("find", arguments)).ok();
    // A layer (it starts as zstd does) with one bit turned over.
    let layer = files.stdout().lines().map(str::to_owned).find(|file| {
        let bytes = std::fs::read(file).unwrap();
        bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
    });
    let layer = layer.expect("there is no zstd layer");
    let mut bytes = std::fs::read(&layer).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&layer, bytes).unwrap();
    let env = TestEnv::new();
    let context = listing(&env, "context", &[upstream.name("a:v1")]);
    let error = build(&env, "cluster", &context, &[]).fails(4).stderr();
    assert!(error.contains("cannot embed"), "{error}");
    assert!(error.contains("digest"), "{error}");
    env.imgctl(["scrub"]).ok();
}

#[test]
fn the_label_lists_what_the_base_has_as_well() {
    let upstream = Upstream::new();
    let env = TestEnv::new();
    for (name, own) in [("a:v1", "a"), ("b:v1", "b")] {
        upstream.image(name, "base", own);
    }
    let [a, b] = ["a:v1", "b:v1"].map(|name| upstream.name(name));
    let lower = listing(&env, "lower", std::slice::from_ref(&a));
    build(&env, "lower:v1", &lower, &[]).ok();
    let upper = listing(&env, "upper", std::slice::from_ref(&b));
    env.write("upper/Kubefile", "FROM lower:v1\nCOPY Kubefile /x\n");
    build(&env, "upper:v1", &upper, &[]).ok();
    let config = env.config("upper:v1");
    let label = config["config"]["Labels"]["io.imgctl.images"].as_str().unwrap();
    let list: serde_json::Value = serde_json::from_str(label).unwrap();
    assert_eq!(list[&a], upstream.digest("a:v1"), "{label}");
    assert_eq!(list[&b], upstream.digest("b:v1"), "{label}");
}
