//! Links between documents, and from documents to files of the repository, resolve.

use std::path::{Component, Path, PathBuf};

use crate::{markdown, pages, read, repository};

/// A path without `.` and `..`; `None` if it leaves the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => plain.pop().then_some(())?,
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    Some(plain)
}

/// What is wrong with a link of `page`.
fn broken(page: &Path, destination: &str) -> Option<String> {
    if destination.contains("://") || destination.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = destination.split_once('#').unwrap_or((destination, ""));
    let target = match path {
        "" => page.to_owned(),
        path => match plain(&page.parent().unwrap().join(path)) {
            Some(target) => target,
            None => return Some("leads out of the repository".to_owned()),
        },
    };
    if !repository().join(&target).exists() {
        return Some(format!("there is no {}", target.display()));
    }
    let is_page = target.extension().is_some_and(|end| end == "md");
    if !anchor.is_empty() && is_page {
        let anchors = markdown::anchors(&read(&target));
        if !anchors.iter().any(|there| there == anchor) {
            return Some(format!("{} has no heading #{anchor}", target.display()));
        }
    }
    None
}

#[test]
fn every_link_resolves() {
    let mut all: Vec<PathBuf> = std::fs::read_dir(repository())
        .unwrap()
        .map(|entry| PathBuf::from(entry.unwrap().file_name()))
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    for folder in ["docs", "Kubefile.examples", "images", "ci"] {
        all.extend(pages(folder));
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in &all {
        for (line, destination) in markdown::links(&read(page)) {
            count += 1;
            if let Some(why) = broken(page, &destination) {
                wrong.push(format!("{}:{line}: {destination}: {why}", page.display()));
            }
        }
    }
    assert!(count > 200, "only {count} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_link_to_nothing_is_noticed() {
    let page = Path::new("docs/README.md");
    for good in ["cli.md", "cli.md#exit-codes", "../README.md", "#learn", "https://x.example"] {
        assert_eq!(broken(page, good), None, "{good}");
    }
    for bad in ["no.md", "cli.md#no-such-heading", "../../elsewhere", "#nowhere"] {
        assert!(broken(page, bad).is_some(), "{bad}");
    }
}
