//! The uncompressed tars of the layers, which an index refers to.
//!
//! A tar is a blob like any other: its digest is the layer's diff-id. A layer stored without
//! compression is its own tar; the tar of a compressed layer is stored next to it and kept while
//! the layer is referenced.

use std::io::{Read, Write};

use crate::layer::decompress::decompress;
use crate::mount::layers::LayerOf;
use crate::store::Store;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::image::Hasher;
use imgctl_base::progress::Task;

const BUFFER: usize = 1 << 20;

/// Returns whether the tar is in the store.
pub(crate) fn is_here(store: &Store, layer: &LayerOf) -> Result<bool> {
    Ok(store.blob_size(&layer.diff_id)?.is_some())
}

/// Decompresses the layer's blob if its tar is missing; the tar becomes visible only if its digest
/// matches the diff-id.
pub(crate) fn ensure(store: &Store, layer: &LayerOf, task: &dyn Task) -> Result<()> {
    if is_here(store, layer)? {
        return Ok(());
    }
    unpack(store, layer, task).context(|| format!("cannot decompress layer {}", layer.blob.digest))
}

fn unpack(store: &Store, layer: &LayerOf, task: &dyn Task) -> Result<()> {
    let (_, mut tar) = decompress(store.open_blob(&layer.blob.digest)?)?;
    let mut ingest = store.ingest()?;
    let mut hasher = Hasher::with(layer.diff_id.algorithm());
    let mut buffer = vec![0; BUFFER];
    let mut size = 0_u64;
    loop {
        let length = tar.read(&mut buffer).doing(|| "cannot read it".to_owned())?;
        if length == 0 {
            break;
        }
        size += u64::try_from(length).unwrap_or(0);
        if size > store.limits().size {
            return Err(Error::bad_content("it is too large when decompressed"));
        }
        hasher.update(&buffer[..length]);
        ingest.write_all(&buffer[..length]).doing(|| "cannot write its tar".to_owned())?;
    }
    let found = hasher.finish();
    if found != layer.diff_id {
        return Err(Error::bad_content(format!(
            "its content is {found} and should be {}",
            layer.diff_id
        )));
    }
    task.advance(layer.blob.size);
    store.commit(ingest, &layer.diff_id)
}
