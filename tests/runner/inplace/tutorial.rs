//! The commands of `docs/tutorials/6-in-place.md`, word for word and in their order, and what the tutorial
//! shows of their output.

use std::collections::VecDeque;

use crate::common::repository;
use crate::common::tutorial::{Act, acts, without};
use crate::inplace::cluster::{Cluster, image};

/// Images of the tutorial, and what stands in for them: the last one ends as soon as it is started.
const IMAGES: [(&str, &str); 4] = [
    ("docker.io/library/nginx:1.27", "1"),
    ("docker.io/library/nginx:1.28", "2"),
    ("docker.io/library/nginx:1.82", "bad"),
    ("docker.io/library/busybox:1.36", "crash"),
];

/// The commands of imgctl, and the lines that are shown below each.
fn commands(document: &str) -> Vec<(String, VecDeque<String>)> {
    let of_imgctl = |act| match act {
        Act::Command { text, shown, .. } if text.starts_with("imgctl inplace") => {
            Some((text, shown.into_iter().filter(|line| line != "…").collect()))
        }
        _ => None,
    };
    acts(document).into_iter().filter_map(of_imgctl).collect()
}

/// A line without what differs from run to run: times, digests, names of Pods, widths of columns.
fn comparable(line: &str) -> String {
    let replace = |line: String, (shown, real): (&str, &str)| line.replace(shown, &image(real));
    without(
        &IMAGES.into_iter().fold(line.to_owned(), replace),
        &[
            (r"sha256:[0-9a-f…]+", "DIGEST"),
            (r"\bweb-[a-z0-9]+-[a-z0-9]+\b", "POD"),
            (r"\b[0-9]+(\.[0-9]+)? ?(ms|s|m)\b", "TIME"),
            (r"\bn[0-9]\b", "NODE"),
        ],
    )
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
