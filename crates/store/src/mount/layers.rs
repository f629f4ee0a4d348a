//! An image's layers as the mount back ends use them: each diff-id once, and a blob streamed entry
//! by entry with both digests verified.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Read};

use crate::store::Store;
use crate::store::images::Image;
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest};
use imgctl_base::progress::Task;
use imgctl_layer::scan::{Expected, scan_entries};
use imgctl_layer::{Entry, Limits};

/// One layer of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerOf {
    /// The blob.
    pub blob: Descriptor,
    /// The digest of the uncompressed tar.
    pub diff_id: Digest,
}

/// Returns all layers, lowest first.
pub fn all(image: &Image) -> Vec<LayerOf> {
    image
        .layers()
        .map(|(blob, diff_id)| LayerOf { blob: blob.clone(), diff_id: diff_id.clone() })
        .collect()
}

/// Returns the layers, lowest first, each only at its last occurrence: see [`distinct_layers`].
pub(crate) fn distinct(image: &Image) -> Vec<LayerOf> {
    distinct_layers(all(image).into_iter())
}

/// Returns each layer only at its last occurrence: it repeats what it did further down, so the
/// earlier occurrence is never visible (and overlayfs rejects a lower directory that is used
/// twice).
pub fn distinct_layers(layers: impl DoubleEndedIterator<Item = LayerOf>) -> Vec<LayerOf> {
    let mut seen = BTreeSet::new();
    let mut layers: Vec<LayerOf> =
        layers.rev().filter(|layer| seen.insert(layer.diff_id.clone())).collect();
    layers.reverse();
    layers
}

/// The source of layer blobs.
pub trait LayerBlobs: Sync {
    /// Passes the blob of `layer` to `consume`, starting at its beginning. `consume` returns Ok
    /// only if it has read the entire blob and both digests match.
    fn read(&self, layer: &LayerOf, consume: &mut Consume<'_>) -> Result<()>;

    /// Returns the limits for reading a layer.
    fn limits(&self) -> Limits;

    /// Whether each blob was compared with its digest when it came here. Then only the digest of
    /// the tar is checked, which does not match either if the blob has been damaged since.
    fn are_verified(&self) -> bool;
}

/// Consumes a blob.
pub type Consume<'a> = dyn FnMut(&mut (dyn Read + Send)) -> Result<()> + 'a;

/// The blobs of the store.
impl LayerBlobs for Store {
    fn read(&self, layer: &LayerOf, consume: &mut Consume<'_>) -> Result<()> {
        consume(&mut self.open_blob(&layer.blob.digest)?)
    }

    fn limits(&self) -> Limits {
        self.limits()
    }

    fn are_verified(&self) -> bool {
        true
    }
}

/// Reads a layer's blob and passes on its entries with their contents. Ok means that both digests
/// match; entries received before an error must not be trusted.
pub fn stream(
    blobs: &dyn LayerBlobs,
    layer: &LayerOf,
    task: &dyn Task,
    on_entry: &mut dyn FnMut(&Entry, &mut dyn BufRead) -> Result<()>,
) -> Result<()> {
    let expected = Expected {
        digest: (!blobs.are_verified()).then_some(&layer.blob.digest),
        size: Some(layer.blob.size),
        diff_id: Some(&layer.diff_id),
    };
    blobs.read(layer, &mut |blob| {
        let blob = Counted { inner: blob, task };
        scan_entries(blob, expected, blobs.limits(), &mut |entry, content, _| {
            on_entry(entry, content)
        })
    })
}

/// Reports the progress of reading a blob.
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
