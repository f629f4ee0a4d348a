//! The threat model in `docs/security.md`: each promise names the tests that prove it, and these exist.

use std::path::PathBuf;

use crate::{markdown, read, repository};

const PAGE: &str = "docs/security.md";
const HEADER: &str = "| attacker | holds | promise | mechanism | tests |";

/// The cells of the rows of the table, with their lines.
fn rows(page: &str) -> Vec<(usize, Vec<String>)> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let below = markdown::prose(page).skip_while(|(_, line)| *line != HEADER).skip(2);
    below
        .take_while(|(_, line)| line.starts_with('|'))
        .map(|(number, line)| (number, cells(line)))
        .collect()
}

/// The files that may hold the test `package::module::…::name`.
fn files(package: &str, modules: &[&str]) -> Vec<PathBuf> {
    let root = match package {
        "runner" | "testbed" | "documents" => PathBuf::from("tests").join(package),
        "imgctl" => PathBuf::from("src"),
        package => PathBuf::from("crates").join(package).join("src"),
    };
    let modules: Vec<&str> = modules.to_vec();
    let mut files = Vec::new();
    // A module `tests` is a file of its own or the end of the file that it tests.
    for end in [modules.len(), modules.len().saturating_sub(1)] {
        let folder = modules[..end].iter().fold(root.clone(), |path, module| path.join(module));
        files.push(folder.with_extension("rs"));
        files.push(folder.join("mod.rs"));
        files.push(folder.join("main.rs"));
        files.push(folder.join("lib.rs"));
    }
    if let [.., of, "tests"] = modules.as_slice() {
        let folder =
            modules[..modules.len() - 2].iter().fold(root, |path, module| path.join(module));
        files.push(folder.join(format!("{of}_tests.rs")));
    }
    files
}

/// Whether `text` defines the test `name`.
fn defines(text: &str, name: &str) -> bool {
    let definition = format!("fn {name}(");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        line.trim_start_matches("async ").starts_with(&definition)
            && lines[..at]
                .iter()
                .rev()
                .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
                .any(|line| line.starts_with("#[") && line.contains("test"))
    })
}

/// What is wrong with the name of a test.
fn missing(test: &str) -> Option<String> {
    let parts: Vec<&str> = test.split("::").collect();
    let [package, modules @ .., name] = parts.as_slice() else {
        return Some(format!("`{test}` is not `package::module::test`"));
    };
    let found = files(package, modules)
        .into_iter()
        .filter_map(|file| std::fs::read_to_string(repository().join(file)).ok())
        .any(|text| defines(&text, name));
    (!found).then(|| format!("there is no test `{test}`"))
}

#[test]
fn every_promise_has_tests_that_exist() {
    let page = read(PAGE);
    let rows = rows(&page);
    assert!(rows.len() >= 40, "{PAGE}: the table has {} rows", rows.len());
    let mut wrong = Vec::new();
    for (number, cells) in rows {
        let [.., tests] = cells.as_slice() else { continue };
        if cells.len() != 5 || cells.iter().any(String::is_empty) {
            wrong.push(format!("{PAGE}:{number}: a row has five cells, and none is empty"));
            continue;
        }
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            wrong.push(format!("{PAGE}:{number}: the promise names no test"));
        }
        wrong.extend(
            names
                .iter()
                .filter_map(|test| missing(test))
                .map(|why| format!("{PAGE}:{number}: {why}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_test_is_found_by_its_name_only() {
    assert!(defines("#[test]\nfn held() {}", "held"));
    assert!(defines("#[test]\n// Why.\n#[cfg(unix)]\nfn held() {}", "held"));
    assert!(!defines("fn held() {}", "held"));
    assert!(!defines("#[test]\nfn held_too() {}", "held"));
    assert!(missing("documents::threats::a_test_is_found_by_its_name_only").is_none());
    assert!(missing("documents::threats::nowhere").is_some());
}
