//! Compares a snapshot's directory with the table of contents of the layer it was made from.
//!
//! The directory is in overlay format: whiteouts are devices or attributes, which the table does
//! not list; directories that only contain other entries are in neither list.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use crate::layer::tree::Tree;
use crate::layer::{Entry, EntryKind, LayerPath, Toc};
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{Found, Visit, walk};

/// Maximum number of differences to show; the rest is only counted.
const MAX_SHOWN: usize = 10;

/// Describes the differences; returns an empty list if there are none. Returns `None` if the two
/// cannot be compared: a layer with hard links into lower layers cannot be interpreted without
/// them.
pub(super) fn compare(directory: &Path, table: Toc, deep: bool) -> Result<Option<Vec<String>>> {
    let mut tree = Tree::new();
    if tree.apply(table).is_err() {
        return Ok(None);
    }
    let mut problems = Problems::default();
    let Ok(root) = Root::open(directory) else {
        return Ok(Some(vec!["it has no fs directory".to_owned()]));
    };
    let is_root = rustix::process::geteuid().is_root();
    let mut seen: HashSet<LayerPath> = HashSet::new();
    walk(&root, &mut |_, _| Visit::Keep, &mut |found| {
        let Ok(path) = LayerPath::parse(found.path) else {
            problems.add(|| "it has a name that cannot be stored in a layer".to_owned());
            return Ok(());
        };
        match tree.lookup(&path) {
            Some(listed) => {
                // A directory without an entry has arbitrary metadata from the unpacker.
                if listed.layer.is_some() {
                    compare_metadata(
                        &path,
                        listed.entry(),
                        &found.metadata,
                        is_root,
                        &mut problems,
                    );
                }
                if deep && let Some(expected) = listed.entry.content {
                    compare_content(&path, &found, expected, &mut problems)?;
                }
                seen.insert(path);
            }
            None if is_whiteout(&found) => {}
            None => problems.add(|| format!("{path} is not in the layer")),
        }
        Ok(())
    })?;
    for (path, listed) in tree.walk(&LayerPath::root()) {
        // Snapshots of unprivileged users have no devices.
        let is_device = matches!(
            listed.entry().kind,
            EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. }
        );
        if !path.is_root() && !seen.contains(&path) && (is_root || !is_device) {
            problems.add(|| format!("{path} is missing"));
        }
    }
    Ok(Some(problems.finish()))
}

#[derive(Default)]
struct Problems {
    shown: Vec<String>,
    more: usize,
}

impl Problems {
    fn add(&mut self, problem: impl FnOnce() -> String) {
        if self.shown.len() < MAX_SHOWN {
            self.shown.push(problem());
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.shown.push(format!("and {} more", self.more));
        }
        self.shown
    }
}

fn compare_metadata(
    path: &LayerPath,
    listed: &Entry,
    found: &Metadata,
    is_root: bool,
    problems: &mut Problems,
) {
    let (kind, size, device) = match &listed.kind {
        EntryKind::File { size } => (FileKind::File, Some(*size), None),
        EntryKind::Directory => (FileKind::Directory, None, None),
        EntryKind::Symlink { target } => (FileKind::Symlink, Some(target.len() as u64), None),
        EntryKind::CharDevice { major, minor } => {
            (FileKind::CharDevice, None, Some((*major, *minor)))
        }
        EntryKind::BlockDevice { major, minor } => {
            (FileKind::BlockDevice, None, Some((*major, *minor)))
        }
        EntryKind::Fifo => (FileKind::Fifo, None, None),
        // The tree returns the file itself for each of its names.
        EntryKind::HardLink { .. } => return,
    };
    if found.kind != kind {
        problems.add(|| format!("{path} is of another type"));
        return;
    }
    if size.is_some_and(|size| size != found.size) {
        problems.add(|| format!("{path} has another size"));
    }
    if device.is_some_and(|device| device != found.device) {
        problems.add(|| format!("{path} is another device"));
    }
    if kind != FileKind::Symlink && listed.mode & 0o7777 != found.mode {
        problems.add(|| format!("{path} has mode {:o}, not {:o}", found.mode, listed.mode));
    }
    if is_root && (listed.uid, listed.gid) != (found.uid, found.gid) {
        problems.add(|| format!("{path} has another owner"));
    }
    if (listed.mtime.seconds, listed.mtime.nanoseconds) != found.mtime {
        problems.add(|| format!("{path} has another modification time"));
    }
}

fn compare_content(
    path: &LayerPath,
    found: &Found<'_>,
    expected: [u8; 32],
    problems: &mut Problems,
) -> Result<()> {
    if found.metadata.kind != FileKind::File {
        return Ok(());
    }
    let mut hasher = blake3::Hasher::new();
    let mut file = found.open()?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Error::io(format!("cannot read {}", found.shown().display()), error));
            }
        };
    }
    if *hasher.finalize().as_bytes() != expected {
        problems.add(|| format!("{path} has other content"));
    }
    Ok(())
}

/// Reports whether overlayfs treats the name as deleted: a 0/0 device, or an empty file with an
/// attribute.
fn is_whiteout(found: &Found<'_>) -> bool {
    match found.metadata.kind {
        FileKind::CharDevice => found.metadata.device == (0, 0),
        FileKind::File if found.metadata.size == 0 => found.xattrs().is_ok_and(|all| {
            [&b"user.overlay.whiteout"[..], b"trusted.overlay.whiteout"]
                .iter()
                .any(|name| all.contains_key(*name))
        }),
        _ => false,
    }
}
