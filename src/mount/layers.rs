//! An image's layers as the mount back ends take them: each diff-id once, and a blob streamed
//! entry by entry with both digests checked.

use std::collections::BTreeSet;
use std::io::{self, Read};

use crate::error::{Error, Result};
use crate::image::{Descriptor, Digest, Hasher};
use crate::layer::decompress::decompress;
use crate::layer::{Entry, Limits, TarReader};
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
        .manifest
        .layers
        .iter()
        .cloned()
        .zip(image.config.rootfs.diff_ids.iter().cloned())
        .map(|(blob, diff_id)| LayerOf { blob, diff_id })
        .collect()
}

/// The layers, lowest first, each only where it appears last: what the same layer did further
/// down it does again, so the earlier one shows nowhere (and overlayfs refuses a lower directory
/// that is used twice).
pub(crate) fn distinct(image: &Image) -> Vec<LayerOf> {
    let mut seen = BTreeSet::new();
    let mut layers: Vec<LayerOf> = all(image)
        .into_iter()
        .rev()
        .filter(|layer| seen.insert(layer.diff_id.clone()))
        .collect();
    layers.reverse();
    layers
}

/// Reads a layer's blob from the store and hands out its entries with their contents. Ok means
/// that both digests hold; entries handed out before an error are not to be trusted.
pub(crate) fn stream(
    store: &Store,
    layer: &LayerOf,
    task: &dyn Task,
    on_entry: &mut dyn FnMut(&Entry, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let blob = store.open_blob(&layer.blob.digest)?;
    let counted = Counted { inner: blob, task };
    let (_, tar) = decompress(counted)?;
    let mut hashed = Hashed {
        inner: tar,
        hasher: Hasher::with(layer.diff_id.algorithm()),
    };
    let mut reader = TarReader::new(&mut hashed, Limits::default());
    while let Some(entry) = reader.next_entry()? {
        on_entry(&entry, &mut reader)?;
    }
    let found = hashed.hasher.finish();
    if found != layer.diff_id {
        return Err(Error::bad_content(format!(
            "its content is {found} and should be {}",
            layer.diff_id
        )));
    }
    Ok(())
}

struct Hashed<R> {
    inner: R,
    hasher: Hasher,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..length]);
        Ok(length)
    }
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
