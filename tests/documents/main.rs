//! The documents: links resolve, every page is in the navigation, and the pages that are written from
//! the command line and the source say what these say. `IMGCTL_UPDATE_DOCS=1` writes such pages anew.
//! Links nothing of the workspace, so it is small beside the other test binaries.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test may panic, and prints what is for its reader"
)]

mod ci;
mod commands;
mod hints;
mod links;
mod markdown;
mod navigation;
mod packages;
mod recipes;
mod recordings;
mod site;
mod threats;
mod translations;
mod troubleshooting;

use std::path::{Path, PathBuf};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Markdown files below a folder of the repository, relative to the repository.
fn pages(folder: &str) -> Vec<PathBuf> {
    walkdir::WalkDir::new(repository().join(folder))
        .sort_by_file_name()
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .map(|path| path.strip_prefix(repository()).unwrap().to_owned())
        .collect()
}

/// Compares a file of the repository with what it should be, or writes it if that was asked for.
/// Returns what differs.
fn compare(path: impl AsRef<Path>, text: &str) -> Option<String> {
    let path = repository().join(path);
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    if there == text {
        return None;
    }
    if std::env::var_os("IMGCTL_UPDATE_DOCS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return None;
    }
    let (mut old, mut new) = (there.lines(), text.lines());
    let different = loop {
        match (old.next(), new.next()) {
            (None, None) => break "the end of the file".to_owned(),
            (old, new) if old == new => {}
            (old, new) => {
                break format!("`{}`, should be `{}`", old.unwrap_or(""), new.unwrap_or(""));
            }
        }
    };
    Some(format!("{}: {different}", path.display()))
}

/// Fails with everything that differs and how to correct it.
fn up_to_date(different: impl IntoIterator<Item = String>) {
    let different: Vec<String> = different.into_iter().collect();
    assert!(
        different.is_empty(),
        "these pages are out of date; look at what\n    IMGCTL_UPDATE_DOCS=1 cargo test --locked \
         --test documents\nwrites and commit it:\n{}",
        different.join("\n")
    );
}
