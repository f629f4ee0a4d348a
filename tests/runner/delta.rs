//! Bundles with deltas: what changed is carried as patches, and the same blobs come out, or an error
//! that names what is missing. zstd's own tool says how small a patch can be.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::common::{TestEnv, long};

/// Exit codes of docs/cli.md.
const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;

/// Text as programs have it: the same words again and again, none of it random.
fn program(length: usize, salt: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 64);
    let mut state = salt;
    while bytes.len() < length {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(
            format!("call {:x}; load {}\n", state >> 44, state >> 58).as_bytes(),
        );
    }
    bytes.truncate(length);
    bytes
}

/// A new version of a program: a few places differ, and what follows them has moved.
fn patched(old: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    for place in (1..20).rev() {
        let at = new.len() * place / 20;
        new.splice(at..at + 10, program(150, place as u64));
    }
    new
}

/// Sizes of the large program in bytes: longer than a segment of a patch (4 MiB), and just much larger than
/// the others.
const LARGE: usize = 5 << 20;
const SMALLER: usize = 3 << 19;

/// Builds `c:v1` and `c:v2`: two changed programs, an added file, and much that stays.
fn two_versions(compression: &str, large: usize) -> TestEnv {
    let env = TestEnv::new();
    let context = env.path("context");
    for directory in ["bin", "manifests", "charts"] {
        std::fs::create_dir_all(context.join(directory)).unwrap();
    }
    for number in 0..200 {
        let file = context.join(format!("manifests/{number}.yaml"));
        std::fs::write(file, program(3000, 1000 + number)).unwrap();
    }
    std::fs::write(context.join("Kubefile"), "FROM scratch\nCOPY . .\n").unwrap();
    std::fs::write(context.join("bin/large"), program(large, 1)).unwrap();
    std::fs::write(context.join("bin/small"), program(300_000, 2)).unwrap();
    std::fs::write(context.join("bin/other"), program(1 << 19, 3)).unwrap();
    let directory = context.to_str().unwrap().to_owned();
    let build = |tag: &str| {
        env.imgctl(["build", "--compression", compression, "-t", tag, &directory]).ok();
    };
    build("c:v1");
    for name in ["bin/large", "bin/small"] {
        let old = std::fs::read(context.join(name)).unwrap();
        std::fs::write(env.path(name.replace('/', "-")), &old).unwrap();
        std::fs::write(context.join(name), patched(&old)).unwrap();
    }
    std::fs::write(context.join("charts/new"), b"new").unwrap();
    build("c:v2");
    env
}

/// A machine with `c:v1` alone.
fn with_old(env: &TestEnv) -> TestEnv {
    let whole = env.path("v1.tar");
    if !whole.exists() {
        env.imgctl(["save", "c:v1", "-o", whole.to_str().unwrap()]).ok();
    }
    let there = TestEnv::new();
    there.imgctl(["load", "-i", whole.to_str().unwrap()]).ok();
    there
}

fn create(env: &TestEnv, options: &[&str], name: &str) -> String {
    let file = env.path(name).to_str().unwrap().to_owned();
    let mut arguments = vec!["bundle", "create"];
    arguments.extend(options);
    arguments.extend(["c:v1", "c:v2", "-o", &file]);
    env.imgctl(arguments).ok();
    file
}

fn digest(env: &TestEnv, name: &str) -> String {
    let ran = env.imgctl(["images", "--no-trunc", "--digests", "--json", name]).ok();
    ran.json()[0]["digest"].as_str().unwrap().to_owned()
}

fn size(path: &str) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// The size of zstd's patch from `old` to `new`.
fn zstd_patch(old: &Path, new: &Path) -> u64 {
    let output = Command::new("zstd")
        .args(["-19", "--long=27", "-q", "-c"])
        .arg(format!("--patch-from={}", old.display()))
        .arg(new)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.len() as u64
}

#[test]
fn a_bundle_with_deltas_carries_what_changed_and_yields_the_same_image() {
    for compression in ["zstd", "gzip", "none"] {
        let env = two_versions(compression, LARGE);
        let whole = create(&env, &[], "whole.tar");
        let delta = create(&env, &["--delta"], "delta.tar");
        let patches: u64 = ["bin/large", "bin/small"]
            .map(|name| {
                let old = env.path(name.replace('/', "-"));
                zstd_patch(&old, &env.path("context").join(name))
            })
            .iter()
            .sum();
        // Documents, headers and the frame list come on top.
        let most = patches * 13 / 10 + 40_000;
        assert!(size(&delta) < most, "{compression}: {} {patches}", size(&delta));
        assert!(size(&delta) < size(&whole) / 3, "{compression}");

        let inspected = env.imgctl(["--json", "bundle", "inspect", &delta]).ok().json();
        assert_eq!(inspected["version"], 2);
        let made = inspected["deltas"].as_array().unwrap();
        assert!(!made.is_empty());
        for delta in made {
            assert!(delta["recipe"]["size"].as_u64().unwrap() < delta["size"].as_u64().unwrap());
        }
        let shown = env.imgctl(["bundle", "inspect", &delta]).ok().stdout();
        assert!(shown.contains("as deltas"), "{shown}");
        assert_eq!(env.imgctl(["--json", "bundle", "inspect", &whole]).ok().json()["version"], 1);
        env.imgctl(["bundle", "verify", &delta]).ok();

        let there = with_old(&env);
        let ran = there.imgctl(["bundle", "apply", "--verify", &delta]).ok();
        assert_eq!(ran.stdout(), "Loaded image: localhost/c:v2");
        assert_eq!(digest(&there, "c:v2"), digest(&env, "c:v2"));
        there.imgctl(["scrub"]).ok();
        // Once more: nothing is left to do.
        there.imgctl(["bundle", "apply", &delta]).ok();
    }
}

#[test]
fn directories_compressed_archives_and_diff_carry_deltas_too() {
    let env = two_versions("zstd", SMALLER);
    let directory = create(&env, &["--delta", "--format", "oci-dir"], "layout");
    let packed = create(&env, &["--delta"], "delta.tar.zst");
    let patch = env.path("patch.tar").to_str().unwrap().to_owned();
    env.imgctl(["diff", "--patch", "--delta", "c:v1", "c:v2", "-o", &patch]).ok();
    let again = create(&env, &["--delta"], "again.tar");
    assert_eq!(std::fs::read(&patch).unwrap(), std::fs::read(&again).unwrap());
    for bundle in [&directory, &packed, &patch] {
        let there = with_old(&env);
        there.imgctl(["bundle", "apply", bundle]).ok();
        assert_eq!(digest(&there, "c:v2"), digest(&env, "c:v2"));
        there.imgctl(["scrub"]).ok();
    }
}

#[test]
fn another_base_is_an_error_that_names_it() {
    let env = two_versions("zstd", SMALLER);
    let delta = create(&env, &["--delta"], "delta.tar");
    let inspected = env.imgctl(["--json", "bundle", "inspect", &delta]).ok().json();
    // The largest one, of the programs.
    let deltas = inspected["deltas"].as_array().unwrap();
    let delta_of = deltas.iter().max_by_key(|delta| delta["size"].as_u64()).unwrap();
    let base = delta_of["bases"][0]["digest"].as_str().unwrap().to_owned();

    let there = TestEnv::new();
    let ran = there.imgctl(["bundle", "apply", &delta]).fails(NOT_FOUND);
    assert!(ran.stderr().contains("localhost/c:v1"), "{}", ran.stderr());
    assert!(ran.stderr().contains(&base), "{}", ran.stderr());
    let ran = there.imgctl(["load", "-i", &delta]).fails(NOT_FOUND);
    assert!(ran.stderr().contains("cannot be rebuilt from its delta"), "{}", ran.stderr());
    assert_eq!(there.imgctl(["images", "-q"]).ok().stdout(), "");
    // What is missing is asked for, and comes whole.
    let list = env.path("missing.json").to_str().unwrap().to_owned();
    there.imgctl(["bundle", "apply", "--request-missing", &list, &delta]).fails(NOT_FOUND);
    let more = create(&env, &["--request", &list], "more.tar");
    there.imgctl(["bundle", "apply", &delta, &more]).ok();
    assert_eq!(digest(&there, "c:v2"), digest(&env, "c:v2"));

    // A base that is damaged yields an error, never another image.
    let damaged = with_old(&env);
    let path = damaged.root().join("store/blobs").join(base.replace(':', "/"));
    let mut content = std::fs::read(&path).unwrap();
    let middle = content.len() / 2;
    content[middle..middle + 2000].fill(0);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, content).unwrap();
    let ran = damaged.imgctl(["bundle", "apply", &delta]).fails(BAD_CONTENT);
    assert!(ran.stderr().contains("scrub"), "{}", ran.stderr());
    assert!(!damaged.imgctl(["images"]).ok().stdout().contains("v2"));
}

#[test]
fn an_apply_that_is_killed_leaves_nothing_and_can_be_repeated() {
    let env = two_versions("zstd", SMALLER);
    let delta = create(&env, &["--delta"], "delta.tar");
    let there = with_old(&env);
    let begin = Instant::now();
    there.imgctl(["bundle", "apply", &delta]).ok();
    let whole = begin.elapsed();
    there.imgctl(["rmi", "c:v2"]).ok();
    let rounds = if long() { 200 } else { 6 };
    for round in 0..rounds {
        let mut command = there.command(["bundle", "apply", &delta]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(f64::from(round) / f64::from(rounds)));
        child.kill().unwrap();
        child.wait().unwrap();
        there.imgctl(["scrub"]).ok();
        // Either all of it is there, or nothing.
        if there.imgctl(["images"]).ok().stdout().contains("v2") {
            assert_eq!(digest(&there, "c:v2"), digest(&env, "c:v2"));
            there.imgctl(["rmi", "c:v2"]).ok();
        }
    }
    there.imgctl(["bundle", "apply", &delta]).ok();
    assert_eq!(digest(&there, "c:v2"), digest(&env, "c:v2"));
    there.imgctl(["scrub"]).ok();
}
