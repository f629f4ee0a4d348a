//! The site's navigation, `docs/SUMMARY.md`, is that of `docs/README.md`, with the pages of the commands
//! below theirs; and every page is in it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::{commands, compare, pages, read, up_to_date};

/// The first link of an item of a list: its text and its destination.
fn item(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start().strip_prefix("- ")?;
    let (title, rest) = line.strip_prefix('[')?.split_once("](")?;
    Some((title, rest.split_once(')')?.0))
}

/// The pages of commands in the order of their list.
fn commands() -> Vec<(String, String)> {
    let list = commands::written().remove("README.md").unwrap();
    let rows = list.lines().filter_map(|line| line.strip_prefix("| [`"));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once("`](")?;
        Some((name.to_owned(), format!("commands/{}", rest.split_once(')')?.0)))
    })
    .collect()
}

fn summary() -> String {
    let mut text = "<!-- Written from README.md; do not edit. -->\n\n# Summary\n\n\
                    [Documentation](README.md)\n"
        .to_owned();
    for line in read("docs/README.md").lines() {
        if let Some(part) = line.strip_prefix("## ") {
            text.push_str(&format!("\n# {part}\n\n"));
        } else if let Some((title, page)) = item(line).filter(|(_, page)| !page.starts_with("../"))
        {
            text.push_str(&format!("- [{title}]({page})\n"));
            if page == "commands/README.md" {
                for (name, page) in commands() {
                    text.push_str(&format!("  - [{name}]({page})\n"));
                }
            }
        }
    }
    text
}

#[test]
fn the_navigation_is_the_index() {
    up_to_date(compare("docs/SUMMARY.md", &summary()));
}

#[test]
fn every_page_is_in_the_navigation() {
    let summary = summary();
    let listed: BTreeSet<PathBuf> = summary
        .lines()
        .filter_map(|line| Some(line.split_once("](")?.1.trim_end_matches(')')))
        .map(|page| PathBuf::from("docs").join(page))
        .chain([PathBuf::from("docs/SUMMARY.md")])
        .collect();
    let there: BTreeSet<PathBuf> = pages("docs").into_iter().collect();
    let missing: Vec<_> = there.difference(&listed).collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:?}");
    let absent: Vec<_> = listed.difference(&there).collect();
    assert!(absent.is_empty(), "docs/README.md lists {absent:?}, which are not there");
}
