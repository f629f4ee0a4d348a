//! Layers of embedded images in a build cache: another machine fetches them from there, and what
//! they should not be does not get into the image.

use std::path::Path;

use crate::build_cache::{on, result};
use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv};
use crate::embed::support::{Upstream, listing};

fn build(env: &TestEnv, machine: &str, context: &Path, flag: &str) -> Ran {
    let mut command = on(env, machine);
    command.args(["build", "--timestamp=0", "-t", "cluster", flag]).arg(context);
    Ran::new(command)
}

#[test]
fn another_machine_takes_them_from_the_cache_and_examines_them() {
    let (upstream, registry, env) = (Upstream::new(), Registry::start(), TestEnv::new());
    let names: Vec<String> = ["a:v1", "b:v1"].map(|name| upstream.name(name)).to_vec();
    upstream.image("a:v1", "base", "a");
    upstream.image("b:v1", "base", "b");
    let context = listing(&env, "context", &names);
    let cache = format!("{}/team/cache", registry.host);
    let (first, _) = result(build(&env, "one", &context, &format!("--cache-to={cache}")));
    upstream.registry.blobs_read();
    registry.blobs_read();
    let from = format!("--cache-from={cache}");
    assert_eq!(result(build(&env, "two", &context, &from)).0, first);
    let layers = |registry: &Registry| registry.blobs_read().len();
    // Two layers for each image and one for what they share would be read from the upstream.
    let (fresh, cached) = (layers(&upstream.registry), layers(&registry));
    assert!(fresh < 3, "{fresh} blobs were read from the upstream");
    assert!(cached >= 3, "{cached} blobs were read from the cache");
    // Layers that the registry has lost, or that have other content, are made again.
    let blobs = registry.data().join("docker/registry/v2/blobs/sha256");
    for entry in walkdir::WalkDir::new(blobs) {
        let entry = entry.unwrap();
        if entry.file_name() == "data" && entry.metadata().unwrap().len() > 2048 {
            std::fs::write(entry.path(), b"other").unwrap();
        }
    }
    let ran = build(&env, "three", &context, &from).ok();
    assert!(ran.stderr().contains("is not used"), "{}", ran.report());
    assert_eq!(result(ran).0, first);
}
