//! `imgctl cache ls` and `cache prune`: the store's build cache, and those in registries and directories.

use serde_json::Value;

use crate::build_cache::{build, filled, on, result};
use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

fn cache(env: &TestEnv, words: &[&str]) -> Ran {
    let mut command = on(env, "one");
    command.arg("cache").args(words);
    Ran::new(command)
}

fn list(env: &TestEnv, name: &str) -> Value {
    cache(env, &["ls", name]).ok().json()["caches"][0].clone()
}

/// Three builds of other content: records of each, of which some are shared.
fn grown(env: &TestEnv, to: &str) {
    for number in 0..3 {
        env.write("context/etc/conf", format!("a={number}\n"));
        result(build(env, "one", &["--cache-to", to]));
    }
}

#[test]
fn a_cache_in_a_registry_is_listed_and_shortened() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/team/cache:main", registry.host);
    cache(&env, &["ls", &name]).fails(NOT_FOUND);
    cache(&env, &["prune", "--yes", &name]).fails(NOT_FOUND);
    grown(&env, &name);
    let before = list(&env, &name);
    let records = before["records"].as_array().unwrap();
    assert_eq!(records.len(), 5, "{before}");
    assert_eq!((&before["place"], &before["image"]), (&Value::from(name.clone()), &false.into()));
    assert!(records.iter().all(|record| record["kind"] == "content"));
    assert!(records[0]["used"].as_str().unwrap().ends_with("T00:00:00Z"));
    // A trial changes nothing.
    let trial = cache(&env, &["prune", "--dry-run", "--keep=2", &name]).ok().json();
    assert_eq!((&trial["kept"], trial["removed"].as_array().unwrap().len()), (&2.into(), 3));
    assert_eq!(list(&env, &name)["digest"], before["digest"]);
    // Everything is younger than a day.
    let young = cache(&env, &["prune", "--max-age=1d", &name]).ok().json();
    assert_eq!((&young["kept"], &young["bytes"]), (&5.into(), &0.into()));
    let pruned = cache(&env, &["prune", "--keep=2", &name]).ok().json();
    assert_eq!(pruned["removed"], trial["removed"]);
    let after = list(&env, &name);
    assert_eq!(after["records"].as_array().unwrap().len(), 2);
    assert_eq!(
        before["size"].as_u64().unwrap() - after["size"].as_u64().unwrap(),
        pruned["bytes"].as_u64().unwrap()
    );
    // The manifest that was replaced is gone; builds read what is left.
    let old = format!("{}/team/cache@{}", registry.host, before["digest"].as_str().unwrap());
    cache(&env, &["ls", &old]).fails(NOT_FOUND);
    let (_, cached) = result(build(&env, "two", &["--cache-from", &name]));
    assert!(cached <= 2);
    cache(&env, &["prune", "--yes", &name]).ok();
    assert_eq!(list(&env, &name)["records"], Value::Array(Vec::new()));
    // A tag that refers to the same manifest keeps it.
    let copy = format!("{}/team/cache:copy", registry.host);
    result(build(&env, "one", &["--cache-to", &name, "--cache-to", &copy]));
    let digest = list(&env, &copy)["digest"].clone();
    assert_eq!(list(&env, &name)["digest"], digest);
    cache(&env, &["prune", "--keep=1", &name]).ok();
    assert_eq!(list(&env, &copy)["digest"], digest);
}

#[test]
fn a_cache_in_a_directory_loses_its_layers_too() {
    let env = filled();
    grown(&env, "type=local,dest=cache");
    let blobs = || std::fs::read_dir(env.path("cache/blobs/sha256")).unwrap().count();
    let before = blobs();
    assert_eq!(list(&env, "./cache")["records"].as_array().unwrap().len(), 5);
    // The layer of /bin does not compress: with it, nothing else is kept.
    let pruned = cache(&env, &["prune", "--max-size=100kB", "./cache"]).ok().json();
    assert_eq!(pruned["removed"].as_array().unwrap().len(), 1, "{pruned}");
    assert!(pruned["bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(blobs(), before - 1);
    let table = env.imgctl(["cache", "ls", "type=local,src=cache"]).ok().stdout();
    assert!(table.starts_with("ID ") && table.contains("content"), "{table}");
    let ids = ["cache", "du", "--format={{.ID}} {{.Kind}}", "./cache"];
    assert_eq!(env.imgctl(ids).ok().stdout().lines().count(), 4);
    cache(&env, &["ls", "./nothing"]).fails(NOT_FOUND);
    cache(&env, &["ls", "type=s3"]).fails(USAGE);
}

#[test]
fn the_cache_of_the_store_gives_back_what_only_it_needs() {
    let env = filled();
    grown(&env, "type=local,dest=cache");
    let store = || cache(&env, &["ls"]).ok().json()["caches"][0].clone();
    let before = store();
    let records = before["records"].as_array().unwrap().len();
    assert!(records >= 6, "{before}");
    let reclaimable = before["reclaimable"].as_u64().unwrap();
    assert!(reclaimable > 0 && reclaimable < before["size"].as_u64().unwrap(), "{before}");
    let pruned = cache(&env, &["prune", "--keep=3"]).ok().json();
    assert_eq!(pruned["kept"], 3);
    assert_eq!(store()["records"].as_array().unwrap().len(), 3);
    // As with `docker buildx prune -f`; the image stays, and so does what it shares with the cache.
    cache(&env, &["prune", "-f", "--filter=until=1h"]).ok();
    cache(&env, &["prune", "-f"]).ok();
    assert_eq!(store()["records"], Value::Array(Vec::new()));
    let mut command = on(&env, "one");
    command.args(["scrub", "--deep"]);
    Ran::new(command).ok();
}
