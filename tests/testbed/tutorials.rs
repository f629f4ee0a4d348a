//! Follows the tutorials of `docs/tutorials` word for word: writes each file, runs each command, and expects the
//! output that the tutorial shows. Hosts of this test's bed replace those of the tutorial.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::common::testbed::{Bed, agent};
use crate::common::tutorial::{Act, acts, without};
use crate::common::{IMGCTL, Ran, long, needs_root, repository, tool};

/// Begins the output of a command.
const MARK: &str = "=== output of command ";

/// Returns the acts as a bash script, with lines `before` them. Each prompt stands for a machine with its own store.
fn script(acts: &[Act], before: &str) -> String {
    let mut script = format!("exec 2>&1\ncd ~\n{before}");
    let mut at = None;
    for (number, act) in acts.iter().enumerate() {
        match act {
            Act::File { path, content } => {
                writeln!(script, "cat >{path} <<'END OF FILE'\n{content}END OF FILE").unwrap();
            }
            Act::Command { prompt, text, .. } => {
                if at.replace(prompt) != Some(prompt) {
                    writeln!(script, "export IMGCTL_ROOT=~/{prompt}store").unwrap();
                }
                writeln!(script, "echo; echo '{MARK}{number}'\n{text}\necho \"=== $?\"").unwrap();
            }
        }
    }
    // Ends what runs in the background.
    script + "kill $(jobs -p) 2>/dev/null; wait\n"
}

/// A line without what differs from run to run: digests, sizes, times, names of journals, widths of columns.
fn comparable(line: &str) -> String {
    without(
        line,
        &[
            (r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z-([a-z]+)-[0-9a-f]{8}", "RUN-$1"),
            (r"sha256:[0-9a-f]+…?", "DIGEST"),
            (r"\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b", "DIGEST"),
            (r"\b[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}\b", "DATE"),
            (r"-[0-9a-f]{8}\b", "-ID"),
            (r"([0-9]+|Less than a) seconds? ago", "AGO"),
            (r"\b[0-9]+(\.[0-9]+)? [kMG]?B\b", "SIZE"),
            (r"\b[0-9]+(\.[0-9]+)? s\b", "TIME"),
        ],
    )
}

/// Returns whether the line is what the tutorial shows, where `…` stands for anything.
pub(crate) fn is_shown(shown: &str, line: &str) -> bool {
    let mut rest = line;
    shown.split('…').all(|piece| match rest.find(piece.trim()) {
        Some(place) => {
            rest = &rest[place + piece.trim().len()..];
            true
        }
        None => false,
    }) && (shown.contains('…') || rest.is_empty())
}

/// Follows a tutorial.
fn follow(bed: &Bed, name: &str) {
    let document = std::fs::read_to_string(repository().join("docs/tutorials").join(name)).unwrap();
    let key = bed.key().to_str().unwrap().to_owned();
    // The bed is up already, and Debian's packages are installed.
    let document = document
        .replace("/var/lib/imgctl-testbed/default/key", &key)
        .replace("/root/", &format!("{}/", bed.env.path("home").display()))
        .replace("10.77.0.", bed.ip(1).trim_end_matches(|digit: char| digit.is_ascii_digit()));
    let mut acts = acts(&document);
    acts.retain(|act| {
        let Act::Command { text, .. } = act else { return true };
        !text.starts_with("apt-get ") && !text.starts_with("imgctl testbed ")
    });
    carry_out(bed, name, &acts, "");
}

/// Does what the reader does, and expects what the tutorial shows. `before` are lines of bash that its reader has no need of.
pub(crate) fn carry_out(bed: &Bed, name: &str, acts: &[Act], before: &str) {
    let file = bed.env.write("follow.sh", script(acts, before));
    let ran = Ran::new(shell(bed, &file)).ok().stdout();
    let outputs: BTreeMap<usize, &str> = ran
        .split(MARK)
        .skip(1)
        .filter_map(|part| part.split_once('\n'))
        .map(|(first, output)| (first.parse().unwrap(), output))
        .collect();
    let mut problems = Vec::new();
    for (number, act) in acts.iter().enumerate() {
        let Act::Command { text, shown, .. } = act else { continue };
        let output = outputs[&number];
        let fails = shown.iter().any(|line| line.starts_with("error: "));
        if output.lines().any(|line| line == "=== 0") == fails {
            problems.push(format!("{text}\nends with another exit code\n{output}"));
        }
        let mut printed: Vec<String> = output.lines().map(comparable).collect();
        for line in shown.iter().filter(|line| line.trim() != "…") {
            let line = comparable(line);
            match printed.iter().position(|printed| is_shown(&line, printed)) {
                Some(place) => drop(printed.remove(place)),
                None => problems.push(format!("{text}\ndoes not print: {line}\n{output}")),
            }
        }
    }
    assert!(problems.is_empty(), "{name}: {}", problems.join("\n"));
}

/// Returns bash as a user has it after installing imgctl: with a new home, and `imgctl` on the search path.
pub(crate) fn shell(bed: &Bed, file: &Path) -> std::process::Command {
    let home = bed.env.path("home");
    let programs = bed.env.path("programs");
    if !programs.exists() {
        std::fs::create_dir_all(&programs).unwrap();
        std::fs::create_dir_all(&home).unwrap();
        std::os::unix::fs::symlink(IMGCTL, programs.join("imgctl")).unwrap();
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut bash = tool("bash", [file]);
    for (name, value) in [("HOME", &*home), ("IMGCTL_AGENT", agent())] {
        bash.env(name, value);
    }
    for name in ["SEALOS_RUNTIME_ROOT", "http_proxy", "HTTP_PROXY"] {
        bash.env_remove(name);
    }
    bash.env("PATH", path).env("no_proxy", "*").env("GIT_CONFIG_COUNT", "2");
    for (number, (key, value)) in
        [("user.name", "A"), ("user.email", "a@example.com")].iter().enumerate()
    {
        bash.env(format!("GIT_CONFIG_KEY_{number}"), key)
            .env(format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    bash
}

#[test]
fn the_tutorials_can_be_followed() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(if long() { 4 } else { 1 });
    follow(&bed, "1-first-image.md");
    if !long() {
        return;
    }
    for name in ["2-air-gap.md", "3-ci.md", "4-your-own-cluster.md", "5-upgrade.md"] {
        follow(&bed, name);
    }
}
