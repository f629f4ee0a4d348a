//! The commands of `docs/tutorials/6-in-place.md`, word for word and in their order, and what the tutorial
//! shows of their output.

use std::collections::VecDeque;

use regex::Regex;

use crate::common::repository;
use crate::inplace::cluster::{Cluster, image};

/// Images of the tutorial, and what stands in for them: the last one ends as soon as it is started.
const IMAGES: [(&str, &str); 4] = [
    ("docker.io/library/nginx:1.27", "1"),
    ("docker.io/library/nginx:1.28", "2"),
    ("docker.io/library/nginx:1.82", "bad"),
    ("docker.io/library/busybox:1.36", "crash"),
];

/// A command and the lines that are shown below it.
fn commands(document: &str) -> Vec<(String, VecDeque<String>)> {
    let mut found: Vec<(String, VecDeque<String>)> = Vec::new();
    let blocks = document.split("```console\n").skip(1);
    for line in blocks.flat_map(|block| block.split("```").next().unwrap().lines()) {
        if let Some(command) = line.strip_prefix("$ ") {
            found.push((command.to_owned(), VecDeque::new()));
        } else if line != "…" {
            found.last_mut().unwrap().1.push_back(line.to_owned());
        }
    }
    found.retain(|(command, _)| command.starts_with("imgctl inplace"));
    found
}

/// A line without what differs from run to run: times, digests, names of Pods, widths of columns.
fn comparable(line: &str) -> String {
    let mut line = line.to_owned();
    for (shown, real) in IMAGES {
        line = line.replace(shown, &image(real));
    }
    for (pattern, to) in [
        (r"sha256:[0-9a-f…]+", "DIGEST"),
        (r"\bweb-[a-z0-9]+-[a-z0-9]+\b", "POD"),
        (r"\b[0-9]+(\.[0-9]+)? ?(ms|s|m)\b", "TIME"),
        (r"\bn[0-9]\b", "NODE"),
        (r"\s+", " "),
    ] {
        line = Regex::new(pattern).unwrap().replace_all(&line, to).into_owned();
    }
    line.trim().to_owned()
}

#[test]
fn the_tutorial_can_be_followed() {
    let path = repository().join("docs/tutorials/6-in-place.md");
    let commands = commands(&std::fs::read_to_string(path).unwrap());
    assert!(commands.len() >= 6, "{commands:?}");
    let cluster = Cluster::start();
    cluster.workload("Deployment", 3);
    for (command, mut shown) in commands {
        let mut words: Vec<String> = command.split(' ').skip(2).map(str::to_owned).collect();
        for word in &mut words {
            for (name, real) in IMAGES {
                *word = word.replace(name, &image(real));
            }
        }
        let changes = ["apply", "rollback"].contains(&words[0].as_str());
        words.extend(changes.then(|| "--bake=0s".to_owned()));
        let ran = cluster.inplace(&words.iter().map(String::as_str).collect::<Vec<_>>());
        for line in ran.stdout().lines().chain(ran.stderr().lines()) {
            if shown.front().is_some_and(|shown| comparable(shown) == comparable(line)) {
                shown.pop_front();
            }
        }
        assert!(shown.is_empty(), "{command} does not print {shown:#?}\n{}", ran.report());
    }
}
