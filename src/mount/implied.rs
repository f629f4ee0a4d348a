//! The directories that a layer implies without listing them (`etc` when all it has is
//! `etc/hosts`).
//!
//! The merged tree shows them with the metadata of the layer below; a snapshot has to make them
//! up, and overlayfs then shows the made-up ones. So each snapshot remembers which they are, and
//! the stack of snapshots is corrected from that (`stack.rs`).

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{Error, IoContext, Result};
use crate::fs::atomic::{self, Durability};
use crate::layer::{Entry, LayerPath, Toc};

/// The file beside a snapshot's `fs`: each path ends with a NUL, the root's is empty.
const FILE: &str = "implied";
/// Largest file read, in bytes; a layer that implies more is hostile.
const MAX_FILE: u64 = 64 << 20;

/// Finds the implied directories of one layer as its entries go by, in any order.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    listed: BTreeSet<LayerPath>,
    needed: BTreeSet<LayerPath>,
    last_parent: Option<LayerPath>,
}

impl Collector {
    /// Takes note of one entry; whiteouts too, for they need a directory to lie in.
    pub(crate) fn add(&mut self, entry: &Entry) {
        if entry.is_directory() {
            self.listed.insert(entry.path.clone());
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
    pub(crate) fn finish(mut self) -> BTreeSet<LayerPath> {
        self.needed.insert(LayerPath::root());
        self.needed
            .into_iter()
            .filter(|path| !self.listed.contains(path))
            .collect()
    }
}

/// The implied directories of a layer whose table of contents is here.
pub(crate) fn from_toc(toc: &Toc) -> BTreeSet<LayerPath> {
    let mut collector = Collector::default();
    for listed in &toc.entries {
        collector.add(&listed.entry);
    }
    collector.finish()
}

/// Keeps the answer beside the snapshot `fs`. Made again when lost, so it is not synced.
pub(crate) fn write(fs: &Path, implied: &BTreeSet<LayerPath>) -> Result<()> {
    let mut bytes = Vec::new();
    for path in implied {
        bytes.extend_from_slice(path.as_bytes());
        bytes.push(0);
    }
    atomic::write(&fs.with_file_name(FILE), &bytes, 0o600, Durability::Atomic)
}

/// What [`write`] kept; `None` if it is not there.
pub(crate) fn read(fs: &Path) -> Result<Option<BTreeSet<LayerPath>>> {
    let path = fs.with_file_name(FILE);
    let bytes = match std::fs::metadata(&path) {
        Ok(metadata) if metadata.len() <= MAX_FILE => std::fs::read(&path).path("read", &path)?,
        Ok(_) => {
            return Err(Error::bad_content(format!(
                "{} is too long",
                path.display()
            )));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("cannot read {}", path.display()), error)),
    };
    let Some(bytes) = bytes.strip_suffix(&[0]) else {
        return Ok(Some(BTreeSet::new()));
    };
    bytes
        .split(|b| *b == 0)
        .map(LayerPath::parse)
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
        collector.finish().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_listed_is_not_implied_whatever_the_order() {
        assert_eq!(implied_by(&[]), ["/"]);
        assert_eq!(
            implied_by(&[("a/b/c", false), ("a/b", true), ("d/.wh.e", false)]),
            ["/", "/a", "/d"]
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
            BTreeSet::new(),
            BTreeSet::from([LayerPath::root()]),
            BTreeSet::from([LayerPath::root(), path("a"), path("a/b\nc")]),
        ] {
            write(&fs, &set).unwrap();
            assert_eq!(read(&fs).unwrap(), Some(set));
        }
    }
}
