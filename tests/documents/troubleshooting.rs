//! `docs/troubleshooting.md`: below what is written by hand, every message that has a hint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::hints::{self, Found};
use crate::markdown::escaped;
use crate::{compare, read, up_to_date};

const PAGE: &str = "docs/troubleshooting.md";
/// Everything below this line is written by the test.
const MARK: &str = "<!-- Written from the source below this line; do not edit. -->\n";

/// What a message is about, by the beginning of its file's path: the longest one counts.
const AREAS: &[(&str, &str)] = &[
    ("crates/age", "Encrypted state"),
    ("crates/bake", "Building images"),
    ("crates/base", "Images on this machine"),
    ("crates/build", "Building images"),
    ("crates/console", "Reports"),
    ("crates/describe", "Moving images"),
    ("crates/embed", "Building images"),
    ("crates/frontend", "The command line"),
    ("crates/frontend/src/cache_spec", "Building images"),
    ("crates/frontend/src/inplace_view", "Changing Pods in place"),
    ("crates/frontend/src/registry_options", "Registries"),
    ("crates/frontend/src/signed_images", "Signatures and trust"),
    ("crates/frontend/src/signing_options", "Signatures and trust"),
    ("crates/frontend/src/ssh_options", "Hosts: SSH and sudo"),
    ("crates/frontend/src/upgrade_", "Upgrades and rollbacks"),
    ("crates/host", "Hosts: the agent"),
    ("crates/host/src/agent", "Hosts: the agent"),
    ("crates/host/src/host", "Hosts: SSH and sudo"),
    ("crates/host/src/render", "Templates and variables"),
    ("crates/inplace", "Changing Pods in place"),
    ("crates/journal", "Running clusters"),
    ("crates/kube", "The Kubernetes API"),
    ("crates/kubefile", "Kubefiles"),
    ("crates/layer", "Images on this machine"),
    ("crates/model", "Clusterfiles and the state of clusters"),
    ("crates/model/src/backup", "Running clusters"),
    ("crates/model/src/state_", "Encrypted state"),
    ("crates/ops", "Running clusters"),
    ("crates/ops/src/adopt", "Adopting clusters"),
    ("crates/ops/src/apps", "Applications"),
    ("crates/ops/src/backup", "Backup and restore"),
    ("crates/ops/src/inplace", "Changing Pods in place"),
    ("crates/ops/src/rehearsal", "Upgrades and rollbacks"),
    ("crates/ops/src/renewal", "Certificates"),
    ("crates/ops/src/restore", "Backup and restore"),
    ("crates/ops/src/state", "Encrypted state"),
    ("crates/ops/src/upgrade", "Upgrades and rollbacks"),
    ("crates/recipe", "Building images"),
    ("crates/registry", "Registries"),
    ("crates/report", "Reports"),
    ("crates/runtime", "Running clusters"),
    ("crates/runtime/src/certificates", "Certificates"),
    ("crates/runtime/src/k3s/upgrade", "Upgrades and rollbacks"),
    ("crates/runtime/src/kubeadm/backup", "Backup and restore"),
    ("crates/runtime/src/kubeadm/upgrade", "Upgrades and rollbacks"),
    ("crates/runtime/src/renewal", "Certificates"),
    ("crates/runtime/src/script/upgrade", "Upgrades and rollbacks"),
    ("crates/sandbox", "Building images"),
    ("crates/store", "Images on this machine"),
    ("crates/template", "Templates and variables"),
    ("crates/transfer", "Moving images"),
    ("crates/transfer/src/backup", "Backup and restore"),
    ("crates/trust", "Signatures and trust"),
    ("crates/ui", "The command line"),
    ("crates/upgrade", "Upgrades and rollbacks"),
    ("crates/upgrade/src/adopt", "Adopting clusters"),
    ("crates/workflow", "Running clusters"),
    ("crates/workflow/src/apps", "Applications"),
    ("crates/workflow/src/pipeline", "Running clusters"),
    ("crates/workflow/src/pipeline/backup", "Backup and restore"),
    ("crates/workflow/src/pipeline/renumber", "Changing addresses"),
    ("crates/workflow/src/pipeline/restore", "Backup and restore"),
    ("src", "The command line"),
    ("src/cli/commands/attach", "Signatures and trust"),
    ("src/cli/commands/backup", "Backup and restore"),
    ("src/cli/commands/build", "Building images"),
    ("src/cli/commands/inplace", "Changing Pods in place"),
    ("src/cli/commands/keys", "Signatures and trust"),
    ("src/cli/commands/registry", "Registries"),
    ("src/cli/commands/report", "Reports"),
    ("src/cli/commands/sign", "Signatures and trust"),
    ("src/cli/commands/state", "Encrypted state"),
    ("src/cli/commands/ui", "Reports"),
    ("src/cli/commands/upgrade", "Upgrades and rollbacks"),
];

/// The order of the areas on the page.
const ORDER: [&str; 20] = [
    "Hosts: SSH and sudo",
    "Hosts: the agent",
    "Running clusters",
    "Clusterfiles and the state of clusters",
    "Upgrades and rollbacks",
    "Changing Pods in place",
    "Adopting clusters",
    "Applications",
    "Backup and restore",
    "Certificates",
    "Changing addresses",
    "Encrypted state",
    "The Kubernetes API",
    "Registries",
    "Moving images",
    "Signatures and trust",
    "Images on this machine",
    "Building images",
    "Kubefiles",
    "Reports",
];
const LAST: [&str; 2] = ["Templates and variables", "The command line"];

fn area(file: &Path) -> &'static str {
    let path = file.to_str().unwrap();
    let fitting = AREAS.iter().filter(|(prefix, _)| path.starts_with(prefix));
    let longest = fitting.max_by_key(|(prefix, _)| prefix.len());
    longest.unwrap_or_else(|| panic!("{path} has no area")).1
}

/// Whether a text says anything without what only the run knows.
fn says(text: &str) -> bool {
    text.chars().filter(|character| character.is_alphabetic()).count() >= 3
}

fn generated(found: &[Found]) -> String {
    let mut areas: BTreeMap<&str, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    let mut alone: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for one in found {
        let area = area(&one.file);
        let hints = one.hints.iter().filter(|hint| says(hint));
        let messages: Vec<&String> = one.messages.iter().filter(|text| says(text)).collect();
        if messages.is_empty() {
            alone.entry(area).or_default().extend(hints.cloned());
        } else {
            for message in messages {
                let rows = areas.entry(area).or_default().entry(message.clone());
                rows.or_default().extend(hints.clone().cloned());
            }
        }
    }
    let mut text = String::new();
    for area in ORDER.iter().chain(&LAST) {
        let _ = write!(text, "\n### {area}\n");
        if let Some(rows) = areas.get(area) {
            text.push_str("\n| message | what to do |\n|---|---|\n");
            let mut rows: Vec<_> = rows.iter().filter(|(_, hints)| !hints.is_empty()).collect();
            // By the first word that a message has.
            rows.sort_by_key(|(message, _)| {
                message.trim_start_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
            });
            for (message, hints) in rows {
                let hints: Vec<String> = hints.iter().map(|hint| escaped(hint)).collect();
                let _ = writeln!(text, "| {} | {} |", escaped(message), hints.join("<br>"));
            }
        }
        let rows = areas.get(area);
        let told: BTreeSet<&String> =
            rows.into_iter().flat_map(BTreeMap::values).flatten().collect();
        let hints: Vec<&String> =
            alone.get(area).into_iter().flatten().filter(|hint| !told.contains(hint)).collect();
        if !hints.is_empty() {
            text.push_str("\nHints below an error that says more than a fixed text, such as that of a host or a file:\n\n");
            for hint in hints {
                let _ = writeln!(text, "- {}", escaped(hint));
            }
        }
    }
    text
}

/// Places whose hint the source does not say as a text, with the reason. Their number per file.
const UNWRITTEN: [(&str, usize); 8] = [
    // The hints of another error, of clap, or of a flag's own row in a table.
    ("crates/build/src/build/base_image.rs", 1),
    ("src/cli/accepted.rs", 1),
    ("src/cli/failure.rs", 1),
    // What is wrong with an address, passed on with its place.
    ("crates/model/src/clusterfile/read.rs", 1),
    // What came of going back.
    ("crates/inplace/src/engine.rs", 1),
    // Hints of checks and of runtimes, passed on by the plan that they refuse.
    ("crates/workflow/src/pipeline/check.rs", 2),
    // One hint for each phase of a probe, from a table, and what could not be deleted.
    ("crates/kube/src/probe/mod.rs", 2),
    // One reason for each refused setting, from a table.
    ("crates/runtime/src/kubeadm/upgrade/reconfigure/change.rs", 1),
];

#[test]
fn every_message_with_a_hint_is_on_the_page() {
    let page = read(PAGE);
    let (by_hand, _) = page.split_once(MARK).unwrap_or_else(|| panic!("{PAGE} lacks {MARK}"));
    let found = hints::read_all();
    let text = format!("{by_hand}{MARK}{}", generated(&found));
    up_to_date(compare(PAGE, &text));
}

#[test]
fn the_source_says_every_hint() {
    let found = hints::read_all();
    assert!(found.len() > 700, "only {} hints were found", found.len());
    let mut unwritten: BTreeMap<&str, usize> = BTreeMap::new();
    for one in found.iter().filter(|one| !one.hints.iter().any(|hint| says(hint))) {
        *unwritten.entry(one.file.to_str().unwrap()).or_default() += 1;
    }
    let known: BTreeMap<&str, usize> = UNWRITTEN.into_iter().collect();
    assert_eq!(unwritten, known, "these hints cannot be read from the source");
    let without = found.iter().filter(|one| !one.messages.iter().any(|text| says(text))).count();
    assert!(without * 4 < found.len(), "{without} of {} hints have no message", found.len());
}
