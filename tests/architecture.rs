//! Holds the source to its own rules: floors, no circles, a head on every file, no long files, and
//! nothing below `cli/` and `ui/` that prints or reads the environment.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Which floor a module lies on. A module uses lower floors only.
const FLOORS: [(usize, &[&str]); 7] = [
    (
        0,
        &[
            "image", "kubefile", "template", "fs", "error", "progress", "secret",
        ],
    ),
    (1, &["store", "layer", "registry"]),
    (
        2,
        &[
            "build", "edit", "embed", "transfer", "trust", "mount", "render",
        ],
    ),
    (3, &["host", "agent"]),
    (4, &["cluster", "runtime", "kube", "sync"]),
    (5, &["pipeline", "upgrade", "inplace"]),
    (6, &["cli", "ui", "main", "lib"]),
];

/// The arrows that are allowed between modules of one floor. `error` and `progress` are words that
/// every module may use.
const SAME_FLOOR: [(&str, &str); 22] = [
    ("template", "image"),
    ("store", "layer"),
    ("build", "mount"),
    ("build", "transfer"),
    ("build", "embed"),
    ("embed", "transfer"),
    ("edit", "transfer"),
    ("edit", "mount"),
    ("trust", "transfer"),
    ("transfer", "mount"),
    ("agent", "host"),
    ("runtime", "cluster"),
    ("sync", "cluster"),
    ("runtime", "kube"),
    ("upgrade", "pipeline"),
    ("inplace", "pipeline"),
    ("*", "secret"),
    ("cli", "ui"),
    ("lib", "cli"),
    ("main", "lib"),
    ("*", "error"),
    ("*", "progress"),
];

const LONGEST_FILE: usize = 600;

struct Source {
    path: PathBuf,
    module: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut pending = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let relative = path.strip_prefix(&root).unwrap().to_owned();
                let first = relative.iter().next().unwrap().to_str().unwrap();
                sources.push(Source {
                    module: first.trim_end_matches(".rs").to_owned(),
                    text: std::fs::read_to_string(&path).unwrap(),
                    path: relative,
                });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() > 10, "the sources were not found");
    sources
}

fn floor(module: &str) -> Option<usize> {
    FLOORS
        .iter()
        .find(|(_, modules)| modules.contains(&module))
        .map(|(floor, _)| *floor)
}

/// The text without comments, string literals and `#[cfg(test)]` modules at the file's end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines()
        .map(|line| line.split("//").next().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The modules that a source names as `crate::x`, also inside `use crate::{a, b::c}`.
fn uses(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let code = code(text);
    for rest in code.split("crate::").skip(1) {
        if let Some(group) = rest.strip_prefix('{') {
            found.extend(first_words(group));
        } else {
            found.insert(word(rest));
        }
    }
    // `crate::run` and macros are no modules.
    found.retain(|name| floor(name).is_some());
    found
}

/// The first word of each member of a `{a::b, c::{d, e}}` group; `group` starts behind the brace.
fn first_words(group: &str) -> Vec<String> {
    let (mut depth, mut words, mut start) = (1, Vec::new(), true);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => start = true,
            _ if character.is_whitespace() => {}
            _ if start => {
                words.push(word(&group[at..]));
                start = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    words
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

fn allowed_on_one_floor(from: &str, to: &str) -> bool {
    SAME_FLOOR
        .iter()
        .any(|(a, b)| (*a == "*" || *a == from) && *b == to)
}

#[test]
fn every_module_has_a_floor() {
    for source in sources() {
        assert!(
            floor(&source.module).is_some(),
            "src/{}: module `{}` is on no floor; add it to FLOORS here and to docs/architecture.md",
            source.path.display(),
            source.module
        );
    }
}

#[test]
fn no_arrow_goes_up() {
    let mut wrong = Vec::new();
    for source in sources() {
        let from = floor(&source.module).unwrap();
        for used in uses(&source.text) {
            let to = floor(&used).unwrap();
            let fine = used == source.module
                || to < from
                || (to == from && allowed_on_one_floor(&source.module, &used));
            if !fine {
                wrong.push(format!(
                    "src/{} (floor {from}) uses crate::{used} (floor {to})",
                    source.path.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn modules_form_no_circle() {
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources() {
        let used = uses(&source.text);
        let others = used.into_iter().filter(|used| *used != source.module);
        arrows
            .entry(source.module.clone())
            .or_default()
            .extend(others);
    }
    // Take away what uses nothing that is left; what cannot be taken away is a circle.
    while let Some(free) = arrows
        .iter()
        .find(|(_, used)| used.iter().all(|used| !arrows.contains_key(used)))
        .map(|(module, _)| module.clone())
    {
        arrows.remove(&free);
    }
    assert!(
        arrows.is_empty(),
        "these modules use each other in a circle: {arrows:?}"
    );
}

#[test]
fn every_file_says_what_it_is_for() {
    for source in sources() {
        let head = source.text.lines().next().unwrap_or_default();
        assert!(
            head.starts_with("//! "),
            "src/{} does not begin with //!",
            source.path.display()
        );
    }
}

#[test]
fn no_file_is_too_long() {
    let long: Vec<String> = sources()
        .iter()
        .map(|source| (source.text.lines().count(), source))
        .filter(|(lines, _)| *lines > LONGEST_FILE)
        .map(|(lines, source)| format!("src/{}: {lines} lines", source.path.display()))
        .collect();
    assert!(
        long.is_empty(),
        "over {LONGEST_FILE} lines:\n{}",
        long.join("\n")
    );
}

#[test]
fn only_the_top_floor_prints_and_reads_the_environment() {
    let forbidden = [
        "env::var(",
        "env::var_os(",
        "env::vars(",
        "env::vars_os(",
        "env::args",
    ];
    let prints = ["println!", "print!(", "eprint!("];
    let mut wrong = Vec::new();
    for source in sources()
        .iter()
        .filter(|source| floor(&source.module) < Some(6))
    {
        let code = code(&source.text);
        for word in forbidden
            .iter()
            .chain(&prints)
            .filter(|word| code.contains(**word))
        {
            wrong.push(format!("src/{} says {word}", source.path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_uses_reads_groups() {
    let text = "use crate::{error::{Error, Result}, fs, image::digest::Digest};\n\
                // crate::cli\nfn f(x: crate::store::Store) {}\nuse crate::layer as l;\n\
                #[cfg(test)]\nmod tests {\n use crate::build;\n}\n";
    let found: Vec<String> = uses(text).into_iter().collect();
    assert_eq!(found, ["error", "fs", "image", "layer", "store"]);
}
