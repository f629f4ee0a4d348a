//! The layer that a `RUN` step produces: the entries of an overlay's upper directory, with the
//! kernel's marks for deleted files and opaque directories converted to those of layers.
//!
//! Reads only the upper directory, because it contains every change. Requires an overlay mounted
//! without `redirect_dir` and `metacopy`, with which the upper directory is not a complete
//! difference.

use std::collections::HashMap;
use std::io::{Read, empty};

use crate::whiteout::{is_overlay_whiteout, is_reserved, opaque_path, whiteout_path};
use crate::{Entry, EntryKind, LayerPath, Mtime};
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{Visit, walk};
use imgctl_base::fs::xattr::Xattrs;

/// Prefixes of overlayfs's internal attributes, as root or mounted with `userxattr`.
const OVERLAY_PREFIXES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Yields the entries of the upper directory `dir`, sorted by path, each with its content. The root
/// itself is not included.
///
/// Sockets are left out, because archives cannot contain them. Fails on a file named `.wh.…`, which
/// is indistinguishable from a deletion, and on an upper directory that is not a complete
/// difference. Of the extended attributes, only `security.capability` and `user.*` are kept; the
/// others belong to the host.
pub fn upper_entries(
    dir: &Root,
    emit: &mut dyn FnMut(Entry, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let mut found = collect(dir)?;
    found.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
    // Files with several names: the first gets the content, the others become hard links to it.
    let mut names: HashMap<(u64, u64), LayerPath> = HashMap::new();
    for (mut entry, shared) in found {
        if let Some(key) = shared {
            match names.get(&key) {
                Some(first) => {
                    let target = first.clone();
                    entry.kind = EntryKind::HardLink { target };
                }
                None => {
                    names.insert(key, entry.path.clone());
                }
            }
        }
        match entry.size() {
            0 => emit(entry, &mut empty())?,
            size => {
                let content = dir.open_file(entry.path.as_path())?;
                emit(entry, &mut content.take(size))?;
            }
        }
    }
    Ok(())
}

/// Device and inode of a file that has several names.
type Shared = Option<(u64, u64)>;

fn collect(dir: &Root) -> Result<Vec<(Entry, Shared)>> {
    let mut entries = Vec::new();
    walk(dir, &mut |_, _| Visit::Keep, &mut |found| {
        let path = LayerPath::parse(found.path)?;
        let raw = found.xattrs()?;
        let marked = || Ok(overlay_mark(&raw, b"whiteout").is_some());
        if is_overlay_whiteout(&found.metadata, marked)? {
            entries.extend(whiteout_path(&path).map(|path| (marker(path), None)));
            return Ok(());
        }
        if path.file_name().is_some_and(is_reserved) {
            return Err(Error::failed(format!(
                "{path} cannot be put into an image: `.wh.` at the start of a name means a deleted file"
            ))
            .hint("give the file another name"));
        }
        check_faithful(&path, &raw)?;
        let Some(kind) = EntryKind::of(&found)? else {
            return Ok(());
        };
        let metadata = found.metadata;
        let entry = Entry {
            path: path.clone(),
            kind,
            mode: metadata.mode,
            uid: metadata.uid,
            gid: metadata.gid,
            mtime: Mtime { seconds: metadata.mtime.0, nanoseconds: metadata.mtime.1 },
            xattrs: kept(&raw),
        };
        let is_directory = entry.is_directory();
        let shared = (metadata.nlink > 1 && !is_directory).then_some((metadata.dev, metadata.ino));
        entries.push((entry, shared));
        if is_directory && overlay_mark(&raw, b"opaque") == Some(b"y") {
            entries.push((marker(opaque_path(&path)), None));
        }
        Ok(())
    })?;
    Ok(entries)
}

/// Returns an empty file of that name; owner, mode and time of markers have no meaning.
fn marker(path: LayerPath) -> Entry {
    Entry::new(path, EntryKind::File { size: 0 }, 0)
}

/// Fails if an overlay mounted with the wrong options has moved or split a file.
fn check_faithful(path: &LayerPath, xattrs: &Xattrs) -> Result<()> {
    for mark in [&b"redirect"[..], b"metacopy"] {
        if overlay_mark(xattrs, mark).is_some() {
            return Err(Error::failed(format!(
                "the overlay moved {path} or copied it in part (`{}`): its changes cannot be \
                 determined",
                String::from_utf8_lossy(mark)
            ))
            .hint("mount the overlay with redirect_dir=off,metacopy=off"));
        }
    }
    Ok(())
}

fn overlay_mark<'a>(xattrs: &'a Xattrs, mark: &[u8]) -> Option<&'a [u8]> {
    OVERLAY_PREFIXES
        .iter()
        .find_map(|prefix| xattrs.get(&[prefix, mark].concat()))
        .map(Vec::as_slice)
}

/// Returns the attributes that belong to the image. Overlayfs escapes an image's own
/// `user.overlay.x` as `user.overlay.overlay.x`.
fn kept(xattrs: &Xattrs) -> Xattrs {
    let name = |name: &[u8]| match name.strip_prefix(b"user.overlay.") {
        Some(rest) => {
            let rest = rest.strip_prefix(b"overlay.")?;
            Some([b"user.overlay.", rest].concat())
        }
        None if name.starts_with(b"user.") || name == b"security.capability" => Some(name.to_vec()),
        None => None,
    };
    // Readers disagree about an attribute without a value.
    let with_value = xattrs.iter().filter(|(_, value)| !value.is_empty());
    with_value.filter_map(|(key, value)| Some((name(key)?, value.clone()))).collect()
}

#[cfg(test)]
mod tests;
