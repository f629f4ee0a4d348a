//! Scans layers while the rest of their archive is still being read: hashing what comes in keeps
//! one core busy, decompressing it another.
//!
//! What it finds is only knowledge, keyed by content: a layer that fails here, or was not reached,
//! is scanned again, and judged, by `verify`. Must not know which layer an image wants.

use std::collections::HashSet;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, unbounded};

use crate::error::{Error, IoContext, Result};
use crate::image::Digest;
use crate::layer::decompress::{Format, SNIFF};
use crate::layer::scan::{Expected, scan};
use crate::store::Store;

/// Layers by digest, with the diff-ids that they have indeed.
pub(super) type Known = HashSet<(Digest, Digest)>;
/// Told of each blob that has arrived.
pub(super) type Arrived<'a> = dyn FnMut(&Digest) + 'a;

/// Runs `read`, which calls its argument for each blob that it has brought into the store, and
/// scans the compressed ones among them beside it. Does not wait for those that were not begun when
/// `read` ends, nor for anything when `read` fails.
pub(super) fn beside<T>(
    store: &Store,
    read: impl FnOnce(&mut Arrived<'_>) -> Result<T>,
) -> Result<(T, Known)> {
    // Bounded by the number of members of an archive.
    let (sender, queue) = unbounded();
    let progress = Progress::default();
    thread::scope(|scope| {
        let scanning = thread::Builder::new()
            .name("layer-scan".to_owned())
            .spawn_scoped(scope, || scan_all(store, &queue, &progress))
            .doing(|| "cannot start a thread".to_owned())?;
        let outcome = read(&mut |digest| {
            let _ = sender.send(digest.clone());
        });
        progress.ended.store(true, Ordering::Release);
        progress.failed.store(outcome.is_err(), Ordering::Release);
        drop(sender);
        let known = scanning
            .join()
            .map_err(|_| Error::failed("the thread that scans layers has died"));
        Ok((outcome?, known?))
    })
}

/// How far the reading is.
#[derive(Debug, Default)]
struct Progress {
    /// Nothing new is to be begun.
    ended: AtomicBool,
    /// What is under way is of no use.
    failed: AtomicBool,
}

fn scan_all(store: &Store, queue: &Receiver<Digest>, progress: &Progress) -> Known {
    let mut known = Known::new();
    for blob in queue {
        if progress.ended.load(Ordering::Acquire) {
            break;
        }
        match scan_one(store, &blob, &progress.failed) {
            Ok(Some(diff_id)) => {
                known.insert((blob, diff_id));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!("{blob} is no good layer: {error}"),
        }
    }
    known
}

/// The diff-id of a compressed layer, whose table of contents is kept; `None` for what is not
/// compressed.
fn scan_one(store: &Store, blob: &Digest, failed: &AtomicBool) -> Result<Option<Digest>> {
    let mut start = Vec::new();
    store
        .open_blob(blob)?
        .take(SNIFF as u64)
        .read_to_end(&mut start)
        .doing(|| format!("cannot read blob {blob}"))?;
    if !matches!(Format::sniff(&start), Format::Gzip | Format::Zstd) {
        return Ok(None);
    }
    let expected = Expected {
        digest: Some(blob),
        ..Expected::default()
    };
    let scanned = scan(
        store.open_blob(blob)?,
        expected,
        store.limits(),
        &mut |_, _, _| match failed.load(Ordering::Relaxed) {
            true => Err(Error::failed("the archive is not wanted any more")),
            false => Ok(()),
        },
    )?;
    store.put_toc(&scanned.diff_id, &scanned.toc)?;
    Ok(Some(scanned.diff_id))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::Options;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        (directory, store)
    }

    /// Whether the store has a table of contents for `diff_id`.
    fn has_table(root: &Path, diff_id: &Digest) -> bool {
        let mut pending = vec![root.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else if path.file_name().is_some_and(|name| {
                    name.to_string_lossy().starts_with(diff_id.hex())
                        && path.to_string_lossy().contains("/toc")
                }) {
                    return true;
                }
            }
        }
        false
    }

    #[test]
    fn compressed_layers_are_known_by_their_diff_ids_and_nothing_else_is() {
        let (directory, store) = store();
        // An empty tar.
        let tar = vec![0; 1024];
        let layer = store
            .put_blob(&zstd::encode_all(&tar[..], 3).unwrap())
            .unwrap();
        let broken = store.put_blob(&[0x1f, 0x8b, 8, 0, 1, 2, 3]).unwrap();
        let plain = store.put_blob(&tar).unwrap();
        let (value, known) = beside(&store, |arrived| {
            [&plain, &broken, &layer]
                .into_iter()
                .for_each(&mut *arrived);
            // As long as the reading goes on, everything is scanned.
            while !has_table(directory.path(), &Digest::of(&tar)) {
                thread::yield_now();
            }
            Ok(7)
        })
        .unwrap();
        assert_eq!(value, 7);
        assert_eq!(known, Known::from([(layer, Digest::of(&tar))]));
    }

    #[test]
    fn a_failure_of_the_reading_is_the_outcome() {
        let (_directory, store) = store();
        let outcome = beside(&store, |_| Err::<(), _>(Error::failed("cut off")));
        assert_eq!(outcome.unwrap_err().to_string(), "cut off");
    }
}
