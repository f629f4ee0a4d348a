//! An image's layers as the mount back ends take them: each diff-id once, and a blob streamed
//! entry by entry with both digests checked.

use std::collections::BTreeSet;
use std::io::{self, Read};

use crate::error::Result;
use crate::image::{Descriptor, Digest};
use crate::layer::scan::{Expected, scan_entries};
use crate::layer::{Entry, Limits};
use crate::progress::Task;
use crate::store::Store;
use crate::store::images::Image;

/// One layer of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerOf {
    /// The blob.
    pub(crate) blob: Descriptor,
    /// The digest of its tar.
    pub(crate) diff_id: Digest,
}

/// All layers, lowest first.
pub(crate) fn all(image: &Image) -> Vec<LayerOf> {
    image
        .layers()
        .map(|(blob, diff_id)| LayerOf {
            blob: blob.clone(),
            diff_id: diff_id.clone(),
        })
        .collect()
}

/// The layers, lowest first, each only where it appears last: see [`distinct_layers`].
pub(crate) fn distinct(image: &Image) -> Vec<LayerOf> {
    distinct_layers(all(image).into_iter())
}

/// Each layer only where it appears last: what the same layer did further down it does again, so
/// the earlier one shows nowhere (and overlayfs refuses a lower directory that is used twice).
pub(crate) fn distinct_layers(layers: impl DoubleEndedIterator<Item = LayerOf>) -> Vec<LayerOf> {
    let mut seen = BTreeSet::new();
    let mut layers: Vec<LayerOf> = layers
        .rev()
        .filter(|layer| seen.insert(layer.diff_id.clone()))
        .collect();
    layers.reverse();
    layers
}

/// Where the bytes of layers come from.
pub(crate) trait LayerBlobs: Sync {
    /// Hands the blob of `layer` to `consume`, from its beginning. `consume` returns Ok only if it
    /// has read all of it and found both digests right.
    fn read(&self, layer: &LayerOf, consume: &mut Consume<'_>) -> Result<()>;

    /// What a layer may ask of whoever reads it.
    fn limits(&self) -> Limits;
}

/// Takes a blob.
pub(crate) type Consume<'a> = dyn FnMut(&mut (dyn Read + Send)) -> Result<()> + 'a;

/// The blobs of the store.
impl LayerBlobs for Store {
    fn read(&self, layer: &LayerOf, consume: &mut Consume<'_>) -> Result<()> {
        consume(&mut self.open_blob(&layer.blob.digest)?)
    }

    fn limits(&self) -> Limits {
        self.limits()
    }
}

/// Reads a layer's blob and hands out its entries with their contents. Ok means that both digests
/// hold; entries handed out before an error are not to be trusted.
pub(crate) fn stream(
    blobs: &dyn LayerBlobs,
    layer: &LayerOf,
    task: &dyn Task,
    on_entry: &mut dyn FnMut(&Entry, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let expected = Expected {
        digest: Some(&layer.blob.digest),
        ..of(layer)
    };
    scan(blobs, layer, expected, task, on_entry)
}

/// As [`stream`], of a blob that was checked when it came into the store: the tar's digest alone is
/// looked at, which what has been damaged since does not have either.
pub(crate) fn stream_checked(
    blobs: &dyn LayerBlobs,
    layer: &LayerOf,
    task: &dyn Task,
    on_entry: &mut dyn FnMut(&Entry, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    scan(blobs, layer, of(layer), task, on_entry)
}

fn of(layer: &LayerOf) -> Expected<'_> {
    Expected {
        digest: None,
        size: Some(layer.blob.size),
        diff_id: Some(&layer.diff_id),
    }
}

fn scan(
    blobs: &dyn LayerBlobs,
    layer: &LayerOf,
    expected: Expected<'_>,
    task: &dyn Task,
    on_entry: &mut dyn FnMut(&Entry, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    blobs.read(layer, &mut |blob| {
        let blob = Counted { inner: blob, task };
        scan_entries(blob, expected, blobs.limits(), &mut |entry, content, _| {
            on_entry(entry, content)
        })
    })
}

/// Tells the progress of a blob that is being read.
struct Counted<'a, R> {
    inner: R,
    task: &'a dyn Task,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.task.advance(u64::try_from(length).unwrap_or(0));
        Ok(length)
    }
}
