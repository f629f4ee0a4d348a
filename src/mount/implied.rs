//! The directories that a layer implies without listing them (`etc` when all it has is
//! `etc/hosts`).
//!
//! The merged tree shows them with the metadata of the layer below; a snapshot has to make them
//! up, and overlayfs then shows the made-up ones. So each snapshot remembers which they are, and
//! the stack of snapshots is corrected from that (`stack.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::error::{Error, IoContext, Result};
use crate::fs::atomic::{self, Durability};
use crate::layer::whiteout::{self, Marker};
use crate::layer::{Entry, LayerPath, Toc};

/// What becomes of the lower directory of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    /// It lends its metadata.
    Shows,
    /// The layer deletes it (`.wh.NAME`) before it makes a new one.
    Deleted,
}

/// The implied directories of one layer.
pub(crate) type Implied = BTreeMap<LayerPath, Below>;

/// The file beside a snapshot's `fs`: for each path one byte ([`SHOWS`] or [`DELETED`]), the path
/// (the root's is empty) and a NUL.
const FILE: &str = "implied";
const SHOWS: u8 = b'+';
const DELETED: u8 = b'-';
/// Largest file read, in bytes; a layer that implies more is hostile.
const MAX_FILE: u64 = 64 << 20;

/// Finds the implied directories of one layer as its entries go by, in any order.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    listed: BTreeSet<LayerPath>,
    needed: BTreeSet<LayerPath>,
    deleted: BTreeSet<LayerPath>,
    last_parent: Option<LayerPath>,
}

impl Collector {
    /// Takes note of one entry; whiteouts too, for they need a directory to lie in.
    pub(crate) fn add(&mut self, entry: &Entry) {
        if entry.is_directory() {
            self.listed.insert(entry.path.clone());
        } else if let Ok(Marker::Whiteout(path)) = whiteout::marker(&entry.path) {
            self.deleted.insert(path);
        }
        let Some(parent) = entry.path.parent() else {
            return;
        };
        if self.last_parent.as_ref() == Some(&parent) {
            return;
        }
        self.last_parent = Some(parent.clone());
        let mut ancestor = Some(parent);
        while let Some(path) = ancestor {
            ancestor = path.parent();
            if !self.needed.insert(path) {
                break;
            }
        }
    }

    /// The answer; the root is among them unless the layer lists it.
    pub(crate) fn finish(mut self) -> Implied {
        self.needed.insert(LayerPath::root());
        self.needed
            .into_iter()
            .filter(|path| !self.listed.contains(path))
            .map(|path| {
                let below = if self.deleted.contains(&path) {
                    Below::Deleted
                } else {
                    Below::Shows
                };
                (path, below)
            })
            .collect()
    }
}

/// The implied directories of a layer whose table of contents is here.
pub(crate) fn from_toc(toc: &Toc) -> Implied {
    let mut collector = Collector::default();
    for listed in &toc.entries {
        collector.add(&listed.entry);
    }
    collector.finish()
}

/// Keeps the answer beside the snapshot `fs`. Made again when lost, so it is not synced.
pub(crate) fn write(fs: &Path, implied: &Implied) -> Result<()> {
    let mut bytes = Vec::new();
    for (path, below) in implied {
        bytes.push(match below {
            Below::Shows => SHOWS,
            Below::Deleted => DELETED,
        });
        bytes.extend_from_slice(path.as_bytes());
        bytes.push(0);
    }
    atomic::write(&fs.with_file_name(FILE), &bytes, 0o600, Durability::Atomic)
}

/// What [`write`] kept; `None` if it is not there.
pub(crate) fn read(fs: &Path) -> Result<Option<Implied>> {
    let file = fs.with_file_name(FILE);
    let bytes = match std::fs::metadata(&file) {
        Ok(metadata) if metadata.len() <= MAX_FILE => std::fs::read(&file).path("read", &file)?,
        Ok(_) => {
            return Err(Error::bad_content(format!(
                "{} is too long",
                file.display()
            )));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("cannot read {}", file.display()), error)),
    };
    let Some(bytes) = bytes.strip_suffix(&[0]) else {
        return Ok(Some(Implied::new()));
    };
    bytes
        .split(|b| *b == 0)
        .map(|line| {
            let (below, path) = match line {
                [SHOWS, path @ ..] => (Below::Shows, path),
                [DELETED, path @ ..] => (Below::Deleted, path),
                _ => {
                    return Err(Error::bad_content(format!(
                        "{} is malformed",
                        file.display()
                    )));
                }
            };
            Ok((LayerPath::parse(path)?, below))
        })
        .collect::<Result<_>>()
        .map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::EntryKind;

    fn path(text: &str) -> LayerPath {
        LayerPath::parse(text.as_bytes()).unwrap()
    }

    fn implied_by(entries: &[(&str, bool)]) -> Vec<String> {
        let mut collector = Collector::default();
        for (name, is_directory) in entries {
            let kind = if *is_directory {
                EntryKind::Directory
            } else {
                EntryKind::File { size: 0 }
            };
            collector.add(&Entry::new(path(name), kind, 0o755));
        }
        collector
            .finish()
            .iter()
            .map(|(path, below)| format!("{path} {below:?}"))
            .collect()
    }

    #[test]
    fn what_is_listed_is_not_implied_whatever_the_order() {
        assert_eq!(implied_by(&[]), ["/ Shows"]);
        assert_eq!(
            implied_by(&[("a/b/c", false), ("a/b", true), ("d/.wh.e", false)]),
            ["/ Shows", "/a Shows", "/d Shows"]
        );
        assert_eq!(
            implied_by(&[("a/b", false), (".wh.a", false)]),
            ["/ Shows", "/a Deleted"]
        );
        assert_eq!(
            implied_by(&[("x/y", true), ("x", true), ("", true)]),
            [""; 0]
        );
    }

    #[test]
    fn the_file_gives_back_what_was_kept() {
        let directory = tempfile::tempdir().unwrap();
        let fs = directory.path().join("fs");
        assert_eq!(read(&fs).unwrap(), None);
        for set in [
            Implied::new(),
            Implied::from([(LayerPath::root(), Below::Shows)]),
            Implied::from([(path("a"), Below::Deleted), (path("a/b\nc"), Below::Shows)]),
        ] {
            write(&fs, &set).unwrap();
            assert_eq!(read(&fs).unwrap(), Some(set));
        }
    }
}
