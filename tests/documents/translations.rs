//! Each translated page follows its original: the same headings, commands, pictures, tables and lists in the same order. And the README
//! stays short enough to be read.

use std::path::PathBuf;

use crate::markdown::{code, prose};
use crate::{pages, read};

/// The most words that somebody reads before the first command is tried.
const README_WORDS: usize = 700;

/// What a page consists of, without its words: `#`s of headings, and what lists, tables, pictures and code are.
fn structure(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let part = if line.starts_with('#') {
            line.split(' ').next().unwrap_or_default()
        } else if line.starts_with("- ") {
            "- item"
        } else if line.starts_with('|') {
            "| row"
        } else if line.starts_with("![") {
            "picture"
        } else {
            continue;
        };
        parts.push(part.to_owned());
    }
    // Comments of commands are translated.
    let commands = code(text).into_iter().map(|(_, line)| line);
    let commands = commands.filter(|line| line.starts_with("$ "));
    parts
        .extend(commands.map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned()));
    parts
}

/// The pages that are translations, with their originals.
fn translations() -> Vec<(PathBuf, PathBuf)> {
    let all = pages("docs").into_iter().chain(["README.zh-CN.md".into()]);
    all.filter_map(|page| {
        let original = page.to_str()?.strip_suffix(".zh-CN.md")?.to_owned() + ".md";
        Some((page, original.into()))
    })
    .collect()
}

#[test]
fn translations_follow_their_originals() {
    let found = translations();
    assert!(found.len() >= 2, "{found:?}");
    for (page, original) in found {
        let (translated, wanted) = (structure(&read(&page)), structure(&read(&original)));
        let differs = translated.iter().zip(&wanted).find(|(one, other)| one != other);
        assert_eq!(differs, None, "{}: here, and in {}", page.display(), original.display());
        assert_eq!(translated.len(), wanted.len(), "{}", page.display());
    }
}

#[test]
fn the_readme_is_short() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= README_WORDS, "README.md has {words} words");
}
