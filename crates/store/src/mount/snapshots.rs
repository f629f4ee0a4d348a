//! Ensures that every layer of an image is unpacked: missing layers are unpacked in parallel, large
//! ones first, and both digests of each are verified before it becomes visible. Blobs come from the
//! store or from a download in progress.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mount::layers::{self, LayerBlobs, LayerOf};
use crate::mount::lower_files::{Alone, LowerSnapshots};
use crate::mount::privilege::Privileges;
use crate::mount::stack::Snapshot;
use crate::mount::{merge, shapes};
use crate::store::Store;
use crate::store::images::Image;
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::atomic::Durability;
use imgctl_base::fs::directory;
use imgctl_base::image::{Digest, Hasher};
use imgctl_base::progress::{Reporter, Silent, Task, Unit};
use imgctl_layer::unpack::{Applied, LowerFiles, Unpacker};

/// Number of layers unpacked in parallel. Each layer already keeps several threads busy
/// (decompress, hash, write), so a higher number gains nothing.
const WORKERS: usize = 2;

/// The snapshots of one image.
#[derive(Debug)]
pub struct Ensured {
    /// Lowest first, without duplicate layers.
    pub snapshots: Vec<Snapshot>,
    /// Names of snapshots that stand for several layers or hold files of lower layers. A mount
    /// protects them from pruning.
    pub merged: Vec<Digest>,
    /// Layer metadata that could not be kept.
    pub notes: Vec<String>,
}

/// Unpacks the missing layers of `image`.
pub fn ensure(
    store: &Store,
    image: &Image,
    privileges: Privileges,
    reporter: &dyn Reporter,
) -> Result<Ensured> {
    let layers = layers::distinct(image);
    ensure_layers(store, &layers, privileges, reporter)
}

/// Unpacks the missing layers of any stack, lowest first.
pub(crate) fn ensure_layers(
    store: &Store,
    layers: &[LayerOf],
    privileges: Privileges,
    reporter: &dyn Reporter,
) -> Result<Ensured> {
    let places = Places::new(store, layers);
    let missing = places.missing();
    let mut notes = Vec::new();
    if !missing.is_empty() {
        let total = missing.iter().map(|&number| layers[number].blob.size).sum();
        let task = reporter.start("unpacking layers", Unit::Bytes, Some(total));
        let unpacking = Unpacking {
            store,
            blobs: store,
            layers,
            places: &places,
            privileges,
            task: &*task,
            notes: Mutex::new(BTreeSet::new()),
        };
        unpacking.all(missing, WORKERS)?;
        notes.extend(into_inner(unpacking.notes));
        task.done("unpacked layers");
    }
    let mut linked = Vec::new();
    let mut snapshots = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let (name, fs) = places.find(number).ok_or_else(|| disappeared(layer))?;
        snapshots.push(of_layer(store, layer, fs)?);
        if *name != layer.diff_id {
            linked.push(name.clone());
        }
    }
    let (snapshots, mut merged) = merge::reduce(store, layers, snapshots, privileges)?;
    merged.extend(linked);
    Ok(Ensured { snapshots, merged, notes })
}

/// Unpacks the missing layers of `layers` (lowest first), `workers` at a time, from `blobs`.
/// Returns the metadata that could not be kept.
pub fn unpack_from(
    store: &Store,
    layers: &[LayerOf],
    blobs: &dyn LayerBlobs,
    workers: usize,
) -> Result<Vec<String>> {
    let places = Places::new(store, layers);
    let missing = places.missing();
    let unpacking = Unpacking {
        store,
        blobs,
        layers,
        places: &places,
        privileges: Privileges::current(),
        task: &Silent,
        notes: Mutex::new(BTreeSet::new()),
    };
    unpacking.all(missing, workers)?;
    Ok(into_inner(unpacking.notes).into_iter().collect())
}

/// Locations of the snapshots of a stack of layers. A layer's snapshot is named by its diff ID, so
/// all images share it. The exception is a layer with hard links into lower layers: its snapshot
/// holds files of those layers and belongs to that stack only.
struct Places<'a> {
    store: &'a Store,
    layers: &'a [LayerOf],
    /// For each layer, the name of the snapshot that belongs to the stack up to that layer.
    in_stack: Vec<Digest>,
}

impl<'a> Places<'a> {
    fn new(store: &'a Store, layers: &'a [LayerOf]) -> Self {
        let mut below: Option<Digest> = None;
        let name = |layer: &LayerOf| {
            let mut hasher = Hasher::new();
            // The prefix prevents a collision with the digest of a tar.
            hasher.update(b"imgctl snapshot in a stack 1\n");
            if let Some(below) = &below {
                hasher.update(below.to_string().as_bytes());
            }
            hasher.update(b"\n");
            hasher.update(layer.diff_id.to_string().as_bytes());
            let name = hasher.finish();
            below = Some(name.clone());
            name
        };
        Self { store, layers, in_stack: layers.iter().map(name).collect() }
    }

    /// Returns the name and `fs` directory of a layer's snapshot, if it exists.
    fn find(&self, number: usize) -> Option<(&Digest, PathBuf)> {
        [&self.layers[number].diff_id, &self.in_stack[number]]
            .into_iter()
            .find_map(|name| Some((name, self.store.snapshot(name)?)))
    }

    fn missing(&self) -> Vec<usize> {
        (0..self.layers.len()).filter(|&number| self.find(number).is_none()).collect()
    }
}

fn disappeared(layer: &LayerOf) -> Error {
    Error::failed(format!("the snapshot of layer {} no longer exists", layer.diff_id))
        .hint("was the store cleaned up meanwhile? try again")
}

/// Returns the snapshot of a layer that has been unpacked to `fs`.
fn of_layer(store: &Store, layer: &LayerOf, fs: PathBuf) -> Result<Snapshot> {
    let shapes = match shapes::read(&fs)? {
        Some(shapes) => shapes,
        None => {
            let toc = store.toc(&layer.blob.digest, &layer.diff_id)?;
            let shapes = shapes::from_toc(&toc);
            shapes::write(&fs, &shapes, Durability::Durable)?;
            shapes
        }
    };
    Ok(Snapshot { fs, shapes })
}

struct Unpacking<'a> {
    store: &'a Store,
    blobs: &'a dyn LayerBlobs,
    layers: &'a [LayerOf],
    places: &'a Places<'a>,
    privileges: Privileges,
    task: &'a dyn Task,
    notes: Mutex<BTreeSet<String>>,
}

/// Result of unpacking one layer.
enum Outcome {
    Done,
    /// The layer has hard links into lower layers.
    NeedsLower,
}

impl Unpacking<'_> {
    fn all(&self, mut missing: Vec<usize>, workers: usize) -> Result<()> {
        missing.sort_by_key(|&number| std::cmp::Reverse(self.layers[number].blob.size));
        let workers = workers.min(missing.len());
        let queue = Mutex::new(VecDeque::from(missing));
        let not_alone = Mutex::new(Vec::new());
        let failed = AtomicBool::new(false);
        let work = || -> Result<()> {
            while !failed.load(Ordering::Relaxed) {
                let Some(number) = with(&queue, VecDeque::pop_front) else {
                    break;
                };
                match self.one(number) {
                    Ok(Outcome::Done) => {}
                    Ok(Outcome::NeedsLower) => with(&not_alone, |list| list.push(number)),
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
        // In ascending order, so that each layer finds all layers below it.
        let mut not_alone = into_inner(not_alone);
        not_alone.sort_unstable();
        not_alone.into_iter().try_for_each(|number| self.above_others(number))
    }

    fn one(&self, number: usize) -> Result<Outcome> {
        let alone = Alone::default();
        match self.unpack(number, &self.layers[number].diff_id, &alone) {
            Ok(()) => Ok(Outcome::Done),
            Err(_) if alone.was_not_enough() => Ok(Outcome::NeedsLower),
            Err(error) => Err(error),
        }
    }

    fn above_others(&self, number: usize) -> Result<()> {
        let below = (0..number).map(|number| match self.places.find(number) {
            Some((_, fs)) => Ok(fs),
            None => Err(disappeared(&self.layers[number])),
        });
        let lower = LowerSnapshots::new(below.collect::<Result<_>>()?);
        self.unpack(number, &self.places.in_stack[number], &lower)
    }

    fn unpack(&self, number: usize, name: &Digest, lower: &dyn LowerFiles) -> Result<()> {
        let layer = &self.layers[number];
        let made = self.store.make_snapshot(name, &mut |directory| {
            let mut collector = shapes::Collector::default();
            let root = directory::open_path(directory)?;
            let mut unpacker =
                Unpacker::new(root, self.privileges.overlay_form(), self.privileges.unpacking())?;
            layers::stream(self.blobs, layer, self.task, &mut |entry, content| {
                if unpacker.apply(entry, content, lower)? == Applied::Yes {
                    collector.add(entry);
                }
                Ok(())
            })?;
            let notes = unpacker.finish()?;
            with(&self.notes, |all| all.extend(notes));
            let shapes = std::mem::take(&mut collector).finish();
            shapes::write(directory, &shapes, Durability::Atomic)
        });
        made.map(drop)
            .map_err(|error| error.context(format!("cannot unpack layer {}", layer.blob.digest)))
    }
}

/// Ignores poisoning: the thread that panicked reports the panic.
fn with<T, R>(mutex: &Mutex<T>, act: impl FnOnce(&mut T) -> R) -> R {
    act(&mut mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
