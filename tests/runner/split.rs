//! Archives in parts: `save --split`, `load` of parts in any order, what is said of missing and
//! damaged ones, `bundle verify`, and lists of what is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use crate::common::{Ran, TestEnv, json, long, noise, tool};

const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;
const CHECK_FAILED: i32 = 10;

/// An environment with the image `big:v1` of 3.5 MiB that do not compress.
fn with_image() -> TestEnv {
    let env = TestEnv::new();
    env.write("context/noise", noise(7, 7 << 19));
    let context = env.context("context", "FROM scratch\nCOPY noise /\n", &[]);
    env.build("big:v1", &context);
    env
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Saves `big:v1` in parts of 1 MiB; gives the path of the archive, which does not exist.
fn split(env: &TestEnv, directory: &str) -> PathBuf {
    let path = env.path(directory).join("big.tar");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    env.imgctl(["save", "--split", "1MiB", "big:v1", "-o", text(&path)]).ok();
    path
}

fn part(path: &Path, number: usize) -> PathBuf {
    path.with_file_name(format!("big.tar.{number:03}"))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn loads(paths: &[&Path]) {
    let env = TestEnv::new();
    let arguments = ["load"].into_iter().chain(paths.iter().map(|path| text(path)));
    let ran = env.imgctl(arguments).ok();
    assert_eq!(ran.stdout(), "Loaded image: localhost/big:v1");
    env.imgctl(["scrub"]).ok();
}

#[test]
fn parts_are_the_archive_and_load_from_any_of_them() {
    let env = with_image();
    let path = split(&env, "parts");
    let expected =
        ["big.tar.001", "big.tar.002", "big.tar.003", "big.tar.004", "big.tar.parts.json"];
    assert_eq!(names(path.parent().unwrap()), expected);
    let whole = env.path("whole.tar");
    env.imgctl(["save", "big:v1", "-o", text(&whole)]).ok();
    let script = format!(
        "cat {0}.[0-9]* | cmp - {1} && cat {0}.[0-9]* | tar t",
        path.display(),
        whole.display()
    );
    let listed = Ran::new(tool("sh", ["-c", &script])).ok();
    assert!(listed.stdout().contains("index.json"), "{}", listed.report());
    let list = json(&path.with_file_name("big.tar.parts.json"));
    assert_eq!(list["size"], fs::metadata(&whole).unwrap().len());
    let sums = Ran::new(tool("sha256sum", [part(&path, 2)])).ok();
    assert!(list["parts"][1]["digest"].as_str().unwrap().ends_with(&sums.stdout()[..64]));

    loads(&[&path]);
    loads(&[&part(&path, 3)]);
    loads(&[path.parent().unwrap()]);
    loads(&[&path.with_file_name("big.tar.parts.json")]);
    loads(&[&part(&path, 4), &part(&path, 1), &part(&path, 3), &part(&path, 2)]);
    // On two media, one of them with other names; the list on the second.
    let (one, two) = (env.path("one"), env.path("two"));
    fs::create_dir_all(&one).unwrap();
    fs::create_dir_all(&two).unwrap();
    fs::rename(part(&path, 1), two.join("big.tar.001")).unwrap();
    fs::rename(part(&path, 4), two.join("last")).unwrap();
    fs::rename(part(&path, 2), one.join("B")).unwrap();
    fs::rename(part(&path, 3), one.join("A")).unwrap();
    fs::rename(path.with_file_name("big.tar.parts.json"), two.join("big.tar.parts.json")).unwrap();
    loads(&[&one, &two]);
    loads(&[&two, &one.join("A"), &one.join("B")]);
}

#[test]
fn a_second_save_leaves_no_part_of_the_first() {
    let env = with_image();
    let path = split(&env, "parts");
    env.imgctl(["save", "--split", "2MiB", "big:v1", "-o", text(&path)]).ok();
    let expected = ["big.tar.001", "big.tar.002", "big.tar.parts.json"];
    assert_eq!(names(path.parent().unwrap()), expected);
    loads(&[&path]);
    let docker = env.path("parts/docker.tar.gz");
    let format = ["save", "--format", "docker-archive", "--split=1MiB", "big:v1", "-o"];
    env.imgctl(format.into_iter().chain([text(&docker)])).ok();
    assert!(env.path("parts/docker.tar.gz.004").exists());
    loads(&[&env.path("parts/docker.tar.gz.002")]);
    let both = env.imgctl(["load", text(path.parent().unwrap())]).fails(2);
    assert!(both.stderr().contains("several archives"), "{}", both.report());
    env.imgctl(["save", "--split=1kB", "big:v1", "-o", text(&path)]).fails(2);
    env.imgctl(["save", "--split=1MiB", "--format=oci-dir", "big:v1", "-o", text(&path)]).fails(2);
}

#[test]
fn missing_and_damaged_parts_are_asked_for_by_name() {
    let env = with_image();
    let path = split(&env, "parts");
    let good = fs::read(part(&path, 3)).unwrap();
    let other = TestEnv::new();
    let list = other.path("missing.json");
    let load = ["load", text(&path), "--request-missing", text(&list)];

    fs::remove_file(part(&path, 3)).unwrap();
    let said = other.imgctl(load).fails(NOT_FOUND).stderr();
    assert!(said.contains("part 3 of 4, big.tar.003, is missing"), "{said}");
    assert!(said.contains("--request"), "{said}");
    assert_eq!(json(&list)["parts"][0]["name"], "big.tar.003");
    let found = other.imgctl(["--json", "bundle", "verify", text(&path)]).fails(CHECK_FAILED);
    let found = found.json();
    assert_eq!(found[0]["problems"][0]["subject"], "part 3 of 4, big.tar.003");

    let mut bad = good.clone();
    bad[500_000] ^= 1;
    fs::write(part(&path, 3), &bad).unwrap();
    fs::write(part(&path, 2), b"short").unwrap();
    let said = other.imgctl(load).fails(BAD_CONTENT).stderr();
    assert!(said.contains("part 2 of 4, big.tar.002, is damaged"), "{said}");
    assert_eq!(json(&list)["parts"].as_array().unwrap().len(), 2, "{said}");
    assert_eq!(other.imgctl(["images", "-q"]).ok().stdout(), "");

    // The other side writes these two and nothing else.
    let again = env.path("again");
    fs::create_dir(&again).unwrap();
    let to = again.join("big.tar");
    let request = ["save", "--split", "1MiB", "--request", text(&list), "big:v1", "-o", text(&to)];
    env.imgctl(request).ok();
    assert_eq!(names(&again), ["big.tar.002", "big.tar.003", "big.tar.parts.json"]);
    let parts = path.parent().unwrap();
    other.imgctl(["load", text(&again), text(parts)]).ok();
    assert_eq!(fs::read(again.join("big.tar.003")).unwrap(), good);
    // With other parts the list cannot be fulfilled.
    let request = ["save", "--split", "2MiB", "--request", text(&list), "big:v1", "-o", text(&to)];
    env.imgctl(request).fails(NOT_FOUND);

    fs::copy(again.join("big.tar.002"), part(&path, 2)).unwrap();
    let damaged = env.imgctl(["load", text(&path)]).fails(BAD_CONTENT);
    assert!(
        damaged.stderr().contains("part 3 of 4, big.tar.003, is damaged"),
        "{}",
        damaged.report()
    );
    fs::remove_file(path.with_file_name("big.tar.parts.json")).unwrap();
    let lost = other.imgctl(["load", text(&part(&path, 1))]).fails(BAD_CONTENT);
    assert!(lost.stderr().contains("big.tar.parts.json"), "{}", lost.report());
}

#[test]
fn what_the_base_lacks_is_carried_in_a_second_bundle() {
    let env = with_image();
    let more = env.context("more", "FROM big:v1\nCOPY more /\n", &[("more", "more")]);
    env.build("big:v2", &more);
    let update = env.path("update.tar");
    env.imgctl(["bundle", "create", "big:v1", "big:v2", "-o", text(&update)]).ok();
    env.imgctl(["bundle", "verify", text(&update)]).ok();

    let other = TestEnv::new();
    let list = other.path("missing.json");
    let apply = ["bundle", "apply", text(&update), "--request-missing", text(&list)];
    other.imgctl(apply).fails(NOT_FOUND);
    assert_eq!(json(&list)["blobs"].as_array().unwrap().len(), 1);
    let rest = env.path("rest.tar");
    let create = ["bundle", "create", "--request", text(&list), "big:v1", "big:v2", "-o"];
    env.imgctl(create.into_iter().chain([text(&rest)])).ok();
    other.imgctl(["bundle", "apply", text(&rest)]).fails(NOT_FOUND);
    other.imgctl(["bundle", "apply", text(&update), text(&rest)]).ok();
    other.imgctl(["scrub", "--deep"]).ok();

    // The same with load: a bundle is an archive with blobs missing.
    let third = TestEnv::new();
    let list = third.path("missing.json");
    third.imgctl(["load", text(&update), "--request-missing", text(&list)]).fails(BAD_CONTENT);
    let blobs = env.path("blobs.tar");
    env.imgctl(["save", "--request", text(&list), "big:v2", "-o", text(&blobs)]).ok();
    third.imgctl(["load", text(&update), text(&blobs)]).ok();
    third.imgctl(["scrub", "--deep"]).ok();
    env.imgctl([
        "save",
        "--request",
        text(&list),
        "big:v2",
        "-o",
        text(&blobs),
        "--format=docker-archive",
    ])
    .fails(2);
    let wrong = env.context("wrong", "FROM scratch\nCOPY more /\n", &[("more", "x")]);
    env.build("wrong:v1", &wrong);
    env.imgctl(["save", "--request", text(&list), "wrong:v1", "-o", text(&blobs)]).fails(NOT_FOUND);
}

#[test]
fn every_form_of_archive_is_verified_without_a_store() {
    let env = with_image();
    let reader = TestEnv::new();
    for (format, name) in [
        ("oci-archive", "a.tar"),
        ("oci-archive", "a.tar.gz"),
        ("docker-archive", "d.tar.zst"),
        ("oci-dir", "layout"),
    ] {
        let path = env.path(name);
        env.imgctl(["save", "--format", format, "big:v1", "-o", text(&path)]).ok();
        let found = reader.imgctl(["--json", "bundle", "verify", text(&path)]).ok().json();
        assert_eq!(found[0]["problems"].as_array().unwrap().len(), 0, "{found}");
        assert_eq!(found[0]["images"].as_array().unwrap().len(), 1, "{found}");
    }
    assert!(!reader.root().exists());
    let mut bytes = fs::read(env.path("a.tar")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let bad = env.write("bad.tar", &bytes);
    let found = reader.imgctl(["bundle", "verify", text(&bad)]).fails(CHECK_FAILED);
    assert!(found.stdout().contains("its content has the digest"), "{}", found.report());
    let half = env.write("half.tar", &bytes[..middle]);
    reader.imgctl(["bundle", "verify", text(&half)]).fails(CHECK_FAILED);
    let text_file = env.write("text", "no archive at all");
    reader.imgctl(["bundle", "verify", text(&text_file)]).fails(CHECK_FAILED);
    let blobs = env.path("layout/blobs/sha256");
    let largest = fs::read_dir(&blobs)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    fs::remove_file(largest).unwrap();
    let found = reader.imgctl(["bundle", "verify", text(&env.path("layout"))]).fails(CHECK_FAILED);
    assert!(found.stdout().contains("is missing"), "{}", found.report());
    reader.imgctl(["bundle", "verify", "/nonexistent"]).fails(NOT_FOUND);
}

#[test]
fn a_split_save_killed_at_any_moment_leaves_nothing_that_looks_complete() {
    let env = with_image();
    let begin = Instant::now();
    split(&env, "whole");
    let whole = begin.elapsed();
    let rounds = if long() { 200 } else { 12 };
    for round in 0..rounds {
        let directory = env.path(format!("killed-{round}"));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("big.tar");
        let arguments = ["save", "--split", "128KiB", "big:v1", "-o", text(&path)];
        let mut command = env.command(arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(f64::from(round) / f64::from(rounds)));
        child.kill().unwrap();
        child.wait().unwrap();
        let list = directory.join("big.tar.parts.json");
        if list.exists() {
            loads(&[&list]);
        } else {
            let ran = env.imgctl(["load", text(&path)]).fails(NOT_FOUND);
            assert!(ran.stderr().contains("big.tar"), "{}", ran.report());
        }
        env.imgctl(arguments).ok();
        env.imgctl(["bundle", "verify", text(&path)]).ok();
        fs::remove_dir_all(directory).unwrap();
    }
}
