//! How much memory commands take for a small image with very many files: so little for each that a million fit
//! into 256 MiB, however the commands show them.

use crate::common::registry::Registry;
use crate::common::{TestEnv, peak};
use crate::unpacking::image::{Member, TAG, layout, tar, tar_of};

/// Exit code of docs/cli.md.
const BAD_CONTENT: i32 = 4;

/// Where the images are named; nothing is there.
const HOST: &str = "reg.example.com";

/// Two images in a store: `many:v1` of `files` empty files, and `some:v1` of a quarter of them.
fn with_images(files: u64) -> TestEnv {
    let env = TestEnv::new();
    let empty = |number: u64| Member::parse(&format!("f directory/file{number:07}"));
    for (name, files) in [("some", files / 4), ("many", files)] {
        let members: Vec<Member> = (0..files).map(empty).collect();
        let layout = layout(&env.path(name), &[tar(&members)]);
        env.imgctl(["load".as_ref(), "-t".as_ref(), name_of(name).as_ref(), layout.as_os_str()])
            .ok();
        std::fs::remove_dir_all(layout).unwrap();
    }
    env
}

fn name_of(image: &str) -> String {
    format!("{HOST}/{image}:{TAG}")
}

/// Checks that each of `files` takes at most `most` bytes. What a quarter of them takes shows what the rest of
/// the program takes: a command on one file would end before it is measured.
#[track_caller]
fn assert_small(env: &TestEnv, line: &str, files: u64, most: u64) {
    let [some, all] = ["some", "many"].map(|image| {
        let line = line.replace("IMAGE", &name_of(image)).replace("OTHER", &name_of("some"));
        let line = line.replace("NAME", image);
        peak(env, line.split(' '))
    });
    let each = all.saturating_sub(some) * 1024 / (files - files / 4);
    println!("{line}: {all} KiB, {each} bytes for each file");
    // What was not measured proves nothing.
    assert!(each > 50, "{line}: {some} and {all} KiB");
    assert!(each <= most, "{line}: {some} and {all} KiB, {each} bytes for each file");
}

#[test]
fn lists_of_files_take_little_memory_for_each() {
    const FILES: u64 = 60_000;
    let env = with_images(FILES);
    for line in [
        "ls IMAGE:/directory",
        "ls -R --json IMAGE",
        "diff IMAGE",
        "diff OTHER IMAGE",
        "diff --json OTHER IMAGE",
    ] {
        assert_small(&env, line, FILES, 260);
    }
}

#[test]
fn documents_take_little_memory_for_each_file() {
    const FILES: u64 = 20_000;
    let env = with_images(FILES);
    let small = |line: &str| assert_small(&env, line, FILES, 400);
    small("sbom IMAGE");
    small("sbom IMAGE -o sbom.json");
    env.write("context/Kubefile", "ARG BASE\nFROM $BASE\nLABEL a=b\n");
    small("build --pull=never --build-arg BASE=IMAGE --attest type=sbom -t made:v1 context");
    small("build --pull=never --build-arg BASE=IMAGE --sbom=sbom.json -t made:v1 context");
    let registry = Registry::start();
    for image in ["some", "many"].map(name_of) {
        let there = image.replace(HOST, &registry.host);
        env.imgctl(["tag", &image, &there]).ok();
        env.imgctl(["push", "--tls-verify=false", &there]).ok();
    }
    small(&format!("sbom --tls-verify=false --attach {}/NAME:{TAG}", registry.host));
}

#[test]
fn too_many_entries_in_all_layers_are_refused_by_name() {
    let env = TestEnv::new();
    let layers = [["f a", "f b", "f c"], ["f c", "f d", "f e"]].map(|lines| tar_of(&lines));
    let layout = layout(&env.path("layout"), &layers);
    let name = name_of("layers");
    env.imgctl(["load".as_ref(), "-t".as_ref(), name.as_ref(), layout.as_os_str()]).ok();
    for verb in [&["ls"][..], &["sbom"], &["diff"], &["report", "image"]] {
        let with = |most| [&["--max-entries", most][..], verb, &[&name]].concat();
        let said = env.imgctl(with("5")).fails(BAD_CONTENT).stderr();
        assert!(said.contains(&format!("the layers of {name} have more than 5 entries")), "{said}");
        assert!(said.contains("--max-entries"), "{said}");
        env.imgctl(with("6")).ok();
    }
}
