//! Makes sure that every layer of an image is unpacked: the missing ones in parallel, large ones
//! first, each verified by both its digests before it becomes visible. The blobs come out of the
//! store, or from wherever they are being downloaded.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, IoContext, Result};
use crate::image::Digest;
use crate::layer::unpack::Unpacker;
use crate::mount::layers::{self, LayerBlobs, LayerOf};
use crate::mount::lower_files::LowerSnapshots;
use crate::mount::privilege::Privileges;
use crate::mount::stack::Snapshot;
use crate::mount::{merge, shapes};
use crate::progress::{Reporter, Silent, Task, Unit};
use crate::store::Store;
use crate::store::images::Image;

/// Layers unpacked side by side. Each already keeps several threads busy (decompress, hash,
/// write), so more gain nothing.
const WORKERS: usize = 2;

/// The snapshots of one image.
#[derive(Debug)]
pub(crate) struct Ensured {
    /// Lowest first; no layer twice.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Names of snapshots that stand for several layers; a mount keeps them from being pruned.
    pub(crate) merged: Vec<Digest>,
    /// What could not be kept of the layers' metadata.
    pub(crate) notes: Vec<String>,
}

/// Unpacks what is missing of `image`'s layers.
pub(crate) fn ensure(
    store: &Store,
    image: &Image,
    privileges: Privileges,
    reporter: &dyn Reporter,
) -> Result<Ensured> {
    let layers = layers::distinct(image);
    ensure_layers(store, &layers, privileges, reporter)
}

/// The same for any stack of layers, lowest first.
pub(crate) fn ensure_layers(
    store: &Store,
    layers: &[LayerOf],
    privileges: Privileges,
    reporter: &dyn Reporter,
) -> Result<Ensured> {
    let missing: Vec<usize> = (0..layers.len())
        .filter(|&number| store.snapshot(&layers[number].diff_id).is_none())
        .collect();
    let mut notes = Vec::new();
    if !missing.is_empty() {
        let total = missing.iter().map(|&number| layers[number].blob.size).sum();
        let task = reporter.start("unpacking layers", Unit::Bytes, Some(total));
        let unpacking = Unpacking {
            store,
            blobs: store,
            layers,
            privileges,
            task: &*task,
            notes: Mutex::new(BTreeSet::new()),
        };
        unpacking.all(missing, WORKERS)?;
        notes.extend(into_inner(unpacking.notes));
        task.done("unpacked layers");
    }
    let snapshots = layers
        .iter()
        .map(|layer| of_layer(store, layer))
        .collect::<Result<Vec<_>>>()?;
    let (snapshots, merged) = merge::reduce(store, layers, snapshots, privileges)?;
    Ok(Ensured {
        snapshots,
        merged,
        notes,
    })
}

/// Unpacks those of `layers` (lowest first) that are not yet, `workers` at a time, out of `blobs`.
/// Returns what could not be kept of their metadata.
pub(crate) fn unpack_from(
    store: &Store,
    layers: &[LayerOf],
    blobs: &dyn LayerBlobs,
    workers: usize,
) -> Result<Vec<String>> {
    let missing: Vec<usize> = (0..layers.len())
        .filter(|&number| store.snapshot(&layers[number].diff_id).is_none())
        .collect();
    let unpacking = Unpacking {
        store,
        blobs,
        layers,
        privileges: Privileges::current(),
        task: &Silent,
        notes: Mutex::new(BTreeSet::new()),
    };
    unpacking.all(missing, workers)?;
    Ok(into_inner(unpacking.notes).into_iter().collect())
}

/// The snapshot of a layer that has been unpacked.
fn of_layer(store: &Store, layer: &LayerOf) -> Result<Snapshot> {
    let fs = store.snapshot(&layer.diff_id).ok_or_else(|| {
        Error::failed(format!(
            "the snapshot of layer {} has disappeared",
            layer.diff_id
        ))
        .hint("was the store cleaned up meanwhile? try again")
    })?;
    let shapes = match shapes::read(&fs)? {
        Some(shapes) => shapes,
        None => {
            let toc = store.toc(&layer.blob.digest, &layer.diff_id)?;
            let shapes = shapes::from_toc(&toc);
            shapes::write(&fs, &shapes)?;
            shapes
        }
    };
    Ok(Snapshot { fs, shapes })
}

struct Unpacking<'a> {
    store: &'a Store,
    blobs: &'a dyn LayerBlobs,
    layers: &'a [LayerOf],
    privileges: Privileges,
    task: &'a dyn Task,
    notes: Mutex<BTreeSet<String>>,
}

/// How the unpacking of one layer went.
enum Outcome {
    Done,
    /// It has hard links into a lower layer that is not unpacked yet.
    TooEarly,
}

impl Unpacking<'_> {
    fn all(&self, mut missing: Vec<usize>, workers: usize) -> Result<()> {
        missing.sort_by_key(|&number| std::cmp::Reverse(self.layers[number].blob.size));
        let workers = workers.min(missing.len());
        let queue = Mutex::new(VecDeque::from(missing));
        let too_early = Mutex::new(Vec::new());
        let failed = AtomicBool::new(false);
        let work = || -> Result<()> {
            while !failed.load(Ordering::Relaxed) {
                let Some(number) = with(&queue, VecDeque::pop_front) else {
                    break;
                };
                match self.one(number) {
                    Ok(Outcome::Done) => {}
                    Ok(Outcome::TooEarly) => with(&too_early, |list| list.push(number)),
                    Err(error) => {
                        failed.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err(Error::failed("an unpacking thread has panicked")))
                })
                .fold(Ok(()), Result::and)
        })?;
        // From the lowest up, each finds all layers below it.
        let mut too_early = into_inner(too_early);
        too_early.sort_unstable();
        for number in too_early {
            if matches!(self.one(number)?, Outcome::TooEarly) {
                return Err(Error::failed("a lower layer's snapshot has disappeared"));
            }
        }
        Ok(())
    }

    fn one(&self, number: usize) -> Result<Outcome> {
        let layer = &self.layers[number];
        let lower = LowerSnapshots::new(self.store, &self.layers[..number]);
        let made = self.store.make_snapshot(&layer.diff_id, &mut |directory| {
            let mut collector = shapes::Collector::default();
            let root = open_directory(directory)?;
            let mut unpacker = Unpacker::new(
                root,
                self.privileges.overlay_form(),
                self.privileges.unpacking(),
            )?;
            layers::stream(self.blobs, layer, self.task, &mut |entry, content| {
                collector.add(entry);
                unpacker.apply(entry, content, &lower)
            })?;
            let notes = unpacker.finish()?;
            with(&self.notes, |all| all.extend(notes));
            shapes::write(directory, &std::mem::take(&mut collector).finish())
        });
        match made {
            Ok(_) => Ok(Outcome::Done),
            Err(_) if lower.was_too_early() => Ok(Outcome::TooEarly),
            Err(error) => Err(error.context(format!("cannot unpack layer {}", layer.blob.digest))),
        }
    }
}

/// Opens a directory for unpacking into it.
pub(crate) fn open_directory(path: &Path) -> Result<std::os::fd::OwnedFd> {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .path("open", path)
}

/// Poisoning does not matter here: a panic is reported by the thread that had it.
fn with<T, R>(mutex: &Mutex<T>, act: impl FnOnce(&mut T) -> R) -> R {
    act(&mut mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
