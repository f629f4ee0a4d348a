//! Keeps the number of snapshots below the kernel's limit: merges runs of adjacent layers into one
//! snapshot each, as few and as small as possible.
//!
//! A merged snapshot is a cache like any other, named after the digest of the diff-ids it
//! represents.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::mount::layers::LayerOf;
use crate::mount::overlay::MAX_LOWERS;
use crate::mount::privilege::Privileges;
use crate::mount::stack::Snapshot;
use crate::mount::{lower_files, shapes};
use crate::store::Store;
use imgctl_base::error::{Kind, Result};
use imgctl_base::fs::atomic::Durability;
use imgctl_base::fs::directory;
use imgctl_base::fs::root::Root;
use imgctl_base::image::{Digest, Hasher};
use imgctl_layer::unpack::{NoLowerFiles, Unpacker};
use imgctl_layer::whiteout::{self, Marker};
use imgctl_layer::{Entry, EntryKind, LayerPath, Toc};

/// Leaves room for the corrections at the top and an empty directory at the bottom.
const MAX_SNAPSHOTS: usize = MAX_LOWERS - 2;

/// Merges adjacent snapshots until the kernel accepts the stack; also returns the names of the
/// merged snapshots.
pub(super) fn reduce(
    store: &Store,
    layers: &[LayerOf],
    snapshots: Vec<Snapshot>,
    privileges: Privileges,
) -> Result<(Vec<Snapshot>, Vec<Digest>)> {
    reduce_to(MAX_SNAPSHOTS, store, layers, snapshots, privileges)
}

/// Like [`reduce`], for any number of snapshots except zero.
pub(super) fn reduce_to(
    most: usize,
    store: &Store,
    layers: &[LayerOf],
    snapshots: Vec<Snapshot>,
    privileges: Privileges,
) -> Result<(Vec<Snapshot>, Vec<Digest>)> {
    if snapshots.len() <= most {
        return Ok((snapshots, Vec::new()));
    }
    let sizes: Vec<u64> = layers.iter().map(|layer| layer.blob.size).collect();
    let mut reduced = Vec::new();
    let mut names = Vec::new();
    let mut snapshots = snapshots.into_iter();
    for run in runs(&sizes, most) {
        let parts: Vec<Snapshot> = snapshots.by_ref().take(run.len()).collect();
        if let [part] = parts.as_slice() {
            reduced.push(part.clone());
            continue;
        }
        let (snapshot, name) = merged(store, &layers[run], &parts, privileges)?;
        reduced.push(snapshot);
        names.push(name);
    }
    Ok((reduced, names))
}

/// Partitions `sizes` into at most `most` runs, joining the smallest neighbours first.
fn runs(sizes: &[u64], most: usize) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<(std::ops::Range<usize>, u64)> =
        sizes.iter().enumerate().map(|(number, size)| (number..number + 1, *size)).collect();
    // Each surplus run requires one join. Each pass joins disjoint pairs, so ten thousand layers
    // take a dozen passes.
    while runs.len() > most {
        let mut joints: Vec<(u64, usize)> = runs
            .windows(2)
            .enumerate()
            .map(|(number, pair)| (pair[0].1.saturating_add(pair[1].1), number))
            .collect();
        joints.sort_unstable();
        let mut joined = BTreeSet::new();
        for (_, number) in joints {
            if joined.len() == runs.len() - most {
                break;
            }
            let is_free = |number: usize| !joined.contains(&number);
            if is_free(number + 1) && number.checked_sub(1).is_none_or(is_free) {
                joined.insert(number);
            }
        }
        let mut next: Vec<(std::ops::Range<usize>, u64)> = Vec::new();
        for (number, (range, size)) in runs.into_iter().enumerate() {
            match next.last_mut() {
                Some(last) if number > 0 && joined.contains(&(number - 1)) => {
                    last.0.end = range.end;
                    last.1 = last.1.saturating_add(size);
                }
                _ => next.push((range, size)),
            }
        }
        runs = next;
    }
    runs.into_iter().map(|(range, _)| range).collect()
}

fn merged(
    store: &Store,
    layers: &[LayerOf],
    parts: &[Snapshot],
    privileges: Privileges,
) -> Result<(Snapshot, Digest)> {
    let name = name_of(parts);
    let fs = match store.snapshot(&name) {
        Some(fs) => fs,
        None => store.make_snapshot(&name, &mut |directory| {
            let mut tocs = Vec::new();
            for layer in layers {
                tocs.push(store.toc(&layer.blob.digest, &layer.diff_id)?);
            }
            fill(directory, &tocs, parts, privileges)
        })?,
    };
    let shapes = shapes::read(&fs)?.unwrap_or_default();
    Ok((Snapshot { fs, shapes }, name))
}

/// The prefix distinguishes the name from the digest of a tar.
fn name_of(parts: &[Snapshot]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.update(b"imgctl merged snapshot 2\n");
    for part in parts {
        // The name of a snapshot's directory is the name of the snapshot.
        let name = part.fs.parent().and_then(Path::file_name);
        hasher.update(name.unwrap_or_default().as_encoded_bytes());
        hasher.update(b"\n");
    }
    hasher.finish()
}

/// The content of the merged layer at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    /// Index of the part and of its entry.
    Entry(usize, usize),
    Whiteout,
}

/// Several layers combined: the final content of each path, and the directories that hide what is
/// below the run.
#[derive(Debug, Default)]
struct Union {
    items: BTreeMap<LayerPath, Item>,
    /// Directories with an opaque marker.
    opaque: BTreeSet<LayerPath>,
    /// Directories that replaced something else.
    replaced: BTreeSet<LayerPath>,
    /// Directories that exist in some layer, even if nothing is left in them.
    existing: BTreeSet<LayerPath>,
}

impl Union {
    fn of(tocs: &[Toc]) -> Result<Self> {
        let mut union = Self::default();
        for (part, toc) in tocs.iter().enumerate() {
            union.add_markers(toc, tocs)?;
            for (number, listed) in toc.entries.iter().enumerate() {
                if whiteout::marker(&listed.entry.path)? == Marker::None {
                    union.add_entry(&listed.entry, Item::Entry(part, number), tocs);
                }
            }
        }
        Ok(union)
    }

    /// Applies the markers of a layer. They affect only lower layers, so they come before the
    /// layer's own entries and do not affect each other.
    fn add_markers(&mut self, toc: &Toc, tocs: &[Toc]) -> Result<()> {
        let mut markers = Vec::new();
        for listed in &toc.entries {
            let marker = whiteout::marker(&listed.entry.path)?;
            if let Marker::Whiteout(path) | Marker::Opaque(path) = &marker {
                self.remove_below(path);
                if let Marker::Whiteout(path) = &marker {
                    self.forget_directory(path);
                }
                markers.push(marker);
            }
        }
        for marker in markers {
            match marker {
                Marker::Whiteout(path) => {
                    self.items.insert(path, Item::Whiteout);
                }
                Marker::Opaque(directory) => {
                    self.make_directories(Some(directory.clone()), tocs);
                    self.opaque.insert(directory);
                }
                Marker::None | Marker::Leftover => {}
            }
        }
        Ok(())
    }

    fn add_entry(&mut self, entry: &Entry, item: Item, tocs: &[Toc]) {
        self.make_directories(entry.path.parent(), tocs);
        if entry.is_directory() {
            self.make_directory(&entry.path, tocs);
        } else {
            self.remove_below(&entry.path);
            self.forget_directory(&entry.path);
        }
        self.items.insert(entry.path.clone(), item);
    }

    /// Makes `path` and all its parents directories.
    fn make_directories(&mut self, path: Option<LayerPath>, tocs: &[Toc]) {
        let mut next = path;
        while let Some(path) = next {
            self.make_directory(&path, tocs);
            next = path.parent();
            self.existing.insert(path);
        }
    }

    /// Makes `path` a directory. If it replaces something else, that had hidden everything below
    /// the run, so the directory must do the same.
    fn make_directory(&mut self, path: &LayerPath, tocs: &[Toc]) {
        let replaces = match self.items.get(path) {
            None => false,
            Some(Item::Whiteout) => true,
            Some(Item::Entry(part, number)) => !tocs[*part].entries[*number].entry.is_directory(),
        };
        if replaces {
            self.items.remove(path);
            self.replaced.insert(path.clone());
        }
    }

    /// Returns whether a directory that no layer lists is below one that hides what is lower.
    fn is_made_anew(&self, path: &LayerPath) -> bool {
        let is_listed = self.items.contains_key(path) || self.replaced.contains(path);
        let mut above = path.parent();
        while let Some(directory) = above.filter(|_| !is_listed) {
            if self.replaced.contains(&directory) || self.opaque.contains(&directory) {
                return true;
            }
            above = directory.parent();
        }
        false
    }

    fn forget_directory(&mut self, path: &LayerPath) {
        for set in [&mut self.opaque, &mut self.replaced, &mut self.existing] {
            set.remove(path);
        }
    }

    fn remove_below(&mut self, path: &LayerPath) {
        // Names are not empty and contain no NUL, so no path below sorts before this one.
        let from = path.join(&[1]);
        let is_below = |other: &LayerPath| other.starts_with(path);
        while let Some((below, _)) = self.items.range(from.clone()..).next()
            && is_below(below)
        {
            let below = below.clone();
            self.items.remove(&below);
        }
        for set in [&mut self.opaque, &mut self.replaced, &mut self.existing] {
            while let Some(below) = set.range(from.clone()..).next()
                && is_below(below)
            {
                let below = below.clone();
                set.remove(&below);
            }
        }
    }
}

fn fill(directory: &Path, tocs: &[Toc], parts: &[Snapshot], privileges: Privileges) -> Result<()> {
    let union = Union::of(tocs)?;
    let roots = parts.iter().map(|part| Root::open(&part.fs)).collect::<Result<Vec<_>>>()?;
    let mut merged = Merged {
        unpacker: Unpacker::new(
            directory::open_path(directory)?,
            privileges.overlay_form(),
            privileges.unpacking(),
        )?,
        collector: shapes::Collector::default(),
    };
    // A whiteout followed by a new directory in its place hides everything below, including
    // metadata.
    for path in &union.replaced {
        merged.apply(&whiteout_of(path))?;
        let plain = Entry::new(path.clone(), EntryKind::Directory, 0o755);
        merged.apply(&plain)?;
    }
    for path in &union.opaque {
        let marker = marker(path, b".wh..opq");
        merged.apply(&marker)?;
    }
    // Where nothing lower shows through, no whiteout is written that would make the directory above it.
    for path in union.existing.iter().filter(|path| union.is_made_anew(path)) {
        merged.apply(&Entry::new(path.clone(), EntryKind::Directory, 0o755))?;
    }
    for (path, item) in &union.items {
        let (part, number) = match item {
            Item::Whiteout => {
                merged.apply(&whiteout_of(path))?;
                continue;
            }
            Item::Entry(part, number) => (*part, *number),
        };
        let entry = &tocs[part].entries[number].entry;
        if entry.is_directory() {
            merged.apply(entry)?;
        } else {
            merged.link(entry, &roots[part])?;
        }
    }
    merged.unpacker.finish()?;
    let mut shapes = merged.collector.finish();
    for (path, shape) in &mut shapes {
        shape.only_markers &= !union.existing.contains(path);
    }
    shapes::write(directory, &shapes, Durability::Atomic)
}

/// The merged snapshot being created.
struct Merged {
    unpacker: Unpacker,
    collector: shapes::Collector,
}

impl Merged {
    fn apply(&mut self, entry: &Entry) -> Result<()> {
        self.collector.add(entry);
        self.unpacker.apply(entry, &mut io::empty(), &NoLowerFiles).map(drop)
    }

    /// Adds a file of a part as a hard link, so its other names continue to refer to it.
    fn link(&mut self, entry: &Entry, part: &Root) -> Result<()> {
        match part.symlink_metadata(entry.path.as_path()) {
            Ok(_) => {
                self.collector.add(entry);
                let file = lower_files::at(part, &entry.path)?;
                self.unpacker.link(&entry.path, &file)
            }
            // A device, which a part unpacked by an ordinary user does not contain.
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn whiteout_of(path: &LayerPath) -> Entry {
    let parent = path.parent().unwrap_or_default();
    marker(&parent, path.file_name().unwrap_or_default())
}

/// Returns the file `.wh.<name>` in `directory`, as layers contain it.
fn marker(directory: &LayerPath, name: &[u8]) -> Entry {
    let name = [b".wh.", name].concat();
    Entry::new(directory.join(&name), EntryKind::File { size: 0 }, 0)
}
