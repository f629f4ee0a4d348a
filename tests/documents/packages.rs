//! What the test bed needs from Debian is one list, `src/testbed/packages`: the program that starts hosts, the script that
//! prepares a machine, the messages and the documents agree with it.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::{pages, read, repository};

/// Packages without which no Debian is installed, or which `mkfs` and `losetup` of one bring.
const OF_EVERY_DEBIAN: [&str; 3] = ["util-linux", "mount", "e2fsprogs"];

fn list() -> String {
    read("src/testbed/packages").trim_end().to_owned()
}

/// The text between double quotes on a line such as `"nft": "nftables",`.
fn quoted(line: &str) -> Vec<&str> {
    line.split('"').skip(1).step_by(2).collect()
}

#[test]
fn every_tool_of_the_test_bed_comes_with_the_list() {
    let program = read("src/testbed/main.py");
    let table = program.split("TOOLS = {\n").nth(1).unwrap().split("\n}").next().unwrap();
    let mut wanted: BTreeSet<&str> =
        table.lines().filter_map(|line| quoted(line).last().copied()).collect();
    assert!(wanted.contains("nftables"), "{table}");
    wanted.insert("python3");
    let list = list();
    let known: BTreeSet<&str> = list.split(' ').chain(OF_EVERY_DEBIAN).collect();
    assert!(wanted.is_subset(&known), "{wanted:?} {known:?}");
}

#[test]
fn documents_and_messages_name_the_whole_list() {
    let list = list();
    let mut files = pages("docs");
    files.push("src/cli/commands/testbed.rs".into());
    let mut named = 0;
    for file in files {
        let text = read(&file);
        for line in text.lines().filter(|line| line.contains("systemd-container debootstrap")) {
            assert!(line.contains(&list), "{}: `{line}` lacks a part of `{list}`", file.display());
            named += 1;
        }
    }
    assert!(named >= 5, "{named} places name the packages");
}

/// Puts a program in the place of one that `scripts/setup` starts.
fn stand_in(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_setup_installs_it_where_nothing_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    stand_in(folder.path(), "dpkg-query", "exit 1");
    stand_in(folder.path(), "cargo", "exit 0");
    stand_in(folder.path(), "sudo", "exec \"$@\"");
    stand_in(folder.path(), "apt-get", "echo \"$@\" >>\"$0.log\"");
    for mode in ["--quickstart", "--all"] {
        let done = Command::new(repository().join("scripts/setup"))
            .args((mode == "--quickstart").then_some(mode))
            .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let log = folder.path().join("apt-get.log");
        let asked = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(log).unwrap();
        let installed: BTreeSet<&str> = asked.split_whitespace().collect();
        for package in list().split(' ').chain(OF_EVERY_DEBIAN).chain(["curl", "gcc", "file"]) {
            assert!(installed.contains(package), "{mode}: {package} is missing in {asked}");
        }
    }
}
