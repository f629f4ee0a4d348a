//! Facts about the directories of a snapshot that the disk does not show: which of them the layer
//! implies without listing them (`etc` if it only contains `etc/hosts`), and which hold whiteouts.
//!
//! The merged tree shows implied directories with the metadata of the layer below, and does not
//! show directories that only hold whiteouts. A snapshot has to create both, and overlayfs then
//! shows what was created. `stack.rs` uses the facts recorded here to correct the stack of
//! snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_layer::whiteout::{self, Marker};
use imgctl_layer::{Entry, LayerPath, Toc, TocEntry};

/// Facts about one directory of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The layer does not list the directory: a lower directory of the same name provides its
    /// metadata.
    pub(crate) implied: bool,
    /// The layer deletes the lower directory (`.wh.NAME`) before it creates a new one.
    pub replaces: bool,
    /// The layer has only whiteouts in the directory.
    pub(crate) only_markers: bool,
    /// The directory holds whiteouts.
    pub(crate) whiteouts: bool,
    /// The directory holds an opaque marker. A snapshot's directory that is opaque without a marker
    /// has replaced a lower file or directory.
    pub(crate) marked_opaque: bool,
}

/// Directories of one snapshot that differ from what the disk shows.
pub(crate) type Shapes = BTreeMap<LayerPath, Shape>;

/// File next to a snapshot's `fs`: for each path, one byte ([`Shape::to_byte`]), the path (empty
/// for the root) and a NUL.
const FILE: &str = "shapes";
/// Maximum size of the file, in bytes. A layer that implies more directories is hostile.
const MAX_FILE: u64 = 64 << 20;

impl Shape {
    /// Encodes five bits in the printable range.
    fn to_byte(self) -> u8 {
        b'@' + u8::from(self.implied)
            + u8::from(self.replaces) * 2
            + u8::from(self.only_markers) * 4
            + u8::from(self.whiteouts) * 8
            + u8::from(self.marked_opaque) * 16
    }

    fn from_byte(byte: u8) -> Option<Self> {
        let bits = byte.checked_sub(b'@').filter(|bits| *bits < 32)?;
        Some(Self {
            implied: bits & 1 > 0,
            replaces: bits & 2 > 0,
            only_markers: bits & 4 > 0,
            whiteouts: bits & 8 > 0,
            marked_opaque: bits & 16 > 0,
        })
    }
}

/// Collects the shapes of one layer's directories from its entries, in any order.
#[derive(Debug, Default)]
pub(super) struct Collector {
    listed: BTreeSet<LayerPath>,
    /// Directories that contain an entry of the layer, and opaque ones.
    filled: BTreeSet<LayerPath>,
    /// Directories with whiteouts at any depth.
    marked: BTreeSet<LayerPath>,
    whiteouts: BTreeSet<LayerPath>,
    deleted: BTreeSet<LayerPath>,
    opaque: BTreeSet<LayerPath>,
    last_parent: Option<LayerPath>,
}

impl Collector {
    /// Records one entry.
    pub(super) fn add(&mut self, entry: &Entry) {
        match whiteout::marker(&entry.path) {
            Ok(Marker::None) => {}
            Ok(Marker::Whiteout(path)) => {
                let parent = path.parent().unwrap_or_default();
                self.whiteouts.insert(parent.clone());
                self.deleted.insert(path);
                insert_with_ancestors(&mut self.marked, parent);
                return;
            }
            // The marker also counts as an entry of its directory.
            Ok(Marker::Opaque(directory)) => {
                self.opaque.insert(directory.clone());
                insert_with_ancestors(&mut self.filled, directory);
                return;
            }
            // The unpacker skips or refuses these entries.
            Ok(Marker::Leftover) | Err(_) => return,
        }
        if entry.is_directory() {
            self.listed.insert(entry.path.clone());
        } else if !self.opaque.is_empty() {
            // An entry that replaces a marked directory removes the mark.
            self.opaque.remove(&entry.path);
            while let Some(below) = self.opaque.range(entry.path.join(&[1])..).next()
                && below.starts_with(&entry.path)
            {
                let below = below.clone();
                self.opaque.remove(&below);
            }
        }
        let parent = entry.path.parent();
        if parent != self.last_parent
            && let Some(parent) = &parent
        {
            insert_with_ancestors(&mut self.filled, parent.clone());
        }
        self.last_parent = parent;
    }

    /// Returns the shapes.
    pub(super) fn finish(mut self) -> Shapes {
        self.filled.insert(LayerPath::root());
        let paths: BTreeSet<&LayerPath> = self.filled.iter().chain(&self.marked).collect();
        paths
            .into_iter()
            .map(|path| {
                let implied = !self.listed.contains(path);
                let shape = Shape {
                    implied,
                    replaces: implied && self.deleted.contains(path),
                    only_markers: implied && !self.filled.contains(path),
                    whiteouts: self.whiteouts.contains(path),
                    marked_opaque: implied && self.opaque.contains(path),
                };
                (path.clone(), shape)
            })
            .filter(|(_, shape)| *shape != Shape::default())
            .collect()
    }
}

fn insert_with_ancestors(set: &mut BTreeSet<LayerPath>, path: LayerPath) {
    let mut next = Some(path);
    while let Some(path) = next {
        next = path.parent();
        if !set.insert(path) {
            break;
        }
    }
}

/// Returns the shapes of a layer from its table of contents.
pub(crate) fn from_toc(toc: &Toc) -> Shapes {
    let mut collector = Collector::default();
    let is_marker =
        |listed: &&TocEntry| !matches!(whiteout::marker(&listed.entry.path), Ok(Marker::None));
    let entries = || toc.entries.iter();
    // Markers apply only to the layers below, regardless of their position in the tar.
    for listed in entries().filter(is_marker) {
        collector.add(&listed.entry);
    }
    for listed in entries().filter(|listed| !is_marker(listed)) {
        collector.add(&listed.entry);
    }
    collector.finish()
}

/// Stores the shapes next to the snapshot `fs`. The file is synced if that does not happen with
/// the whole snapshot: without its bytes it would say that no directory is special.
pub(super) fn write(fs: &Path, shapes: &Shapes, durability: Durability) -> Result<()> {
    let mut bytes = Vec::new();
    for (path, shape) in shapes {
        bytes.push(shape.to_byte());
        bytes.extend_from_slice(path.as_bytes());
        bytes.push(0);
    }
    atomic::write(&fs.with_file_name(FILE), &bytes, 0o600, durability)
}

/// Reads what [`write`] stored; `None` if the file is missing or damaged: it can be recreated.
pub(super) fn read(fs: &Path) -> Result<Option<Shapes>> {
    let file = fs.with_file_name(FILE);
    let bytes = match std::fs::metadata(&file) {
        Ok(metadata) if metadata.len() <= MAX_FILE => std::fs::read(&file).path("read", &file)?,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("cannot read {}", file.display()), error)),
    };
    let Some(bytes) = bytes.strip_suffix(&[0]) else {
        return Ok(Some(Shapes::new()));
    };
    let shapes: Option<Shapes> = bytes
        .split(|b| *b == 0)
        .map(|line| {
            let (first, path) = line.split_first()?;
            Some((LayerPath::parse(path).ok()?, Shape::from_byte(*first)?))
        })
        .collect();
    if shapes.is_none() {
        tracing::debug!("{} is damaged", file.display());
    }
    Ok(shapes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_layer::EntryKind;

    fn path(text: &str) -> LayerPath {
        LayerPath::parse(text.as_bytes()).unwrap()
    }

    /// `i`mplied, `r`eplaces, only `m`arkers, `w`hiteouts, marked `o`paque.
    fn shapes_of(entries: &[(&str, bool)]) -> Vec<String> {
        let mut collector = Collector::default();
        for (name, is_directory) in entries {
            let kind =
                if *is_directory { EntryKind::Directory } else { EntryKind::File { size: 0 } };
            collector.add(&Entry::new(path(name), kind, 0o755));
        }
        collector
            .finish()
            .iter()
            .map(|(path, shape)| {
                let flag = |is: bool, letter| if is { letter } else { "" };
                format!(
                    "{path} {}{}{}{}{}",
                    flag(shape.implied, "i"),
                    flag(shape.replaces, "r"),
                    flag(shape.only_markers, "m"),
                    flag(shape.whiteouts, "w"),
                    flag(shape.marked_opaque, "o")
                )
            })
            .collect()
    }

    #[test]
    fn what_is_listed_is_not_implied_whatever_the_order() {
        assert_eq!(shapes_of(&[]), ["/ i"]);
        assert_eq!(shapes_of(&[("x/y", true), ("x", true), ("", true)]), [""; 0]);
        assert_eq!(
            shapes_of(&[("a/b/c", false), ("a/b", true), ("d/.wh.e", false)]),
            ["/ i", "/a i", "/d imw"]
        );
        assert_eq!(shapes_of(&[("a/b", false), (".wh.a", false)]), ["/ iw", "/a ir"]);
        assert_eq!(
            shapes_of(&[("a/b/.wh..wh..opq", false), ("a", true), ("a/.wh.x", false)]),
            ["/ i", "/a w", "/a/b io"]
        );
    }

    #[test]
    fn the_file_gives_back_what_was_kept() {
        let directory = tempfile::tempdir().unwrap();
        let fs = directory.path().join("fs");
        assert_eq!(read(&fs).unwrap(), None);
        let all = (0..32).filter_map(|bits| Shape::from_byte(b'@' + bits));
        let many: Shapes = all
            .enumerate()
            .map(|(number, shape)| (path(&format!("a/{number}\n")), shape))
            .collect();
        assert_eq!(many.len(), 32);
        let root = Shapes::from([(LayerPath::root(), Shape::default())]);
        for shapes in [Shapes::new(), root, many] {
            write(&fs, &shapes, Durability::Atomic).unwrap();
            assert_eq!(read(&fs).unwrap(), Some(shapes));
        }
        atomic::write(&fs.with_file_name(FILE), b"!a\0", 0o600, Durability::Atomic).unwrap();
        assert_eq!(read(&fs).unwrap(), None);
    }
}
