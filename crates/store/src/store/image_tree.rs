//! The merged tree of an image's layers, and the content of its files, for callers that only read files.

use std::io::Read as _;
use std::sync::Arc;

use crate::layer::{ContentReader, Found, Tree};
use crate::store::{Image, Store};
use imgctl_base::error::{Error, IoContext as _, Result};

/// Returns the merged tree of the lowest `count` layers of `image`.
pub fn tree_of(store: &Store, image: &Image, count: usize) -> Result<Tree> {
    let tocs = image
        .layers()
        .take(count)
        .map(|(layer, diff_id)| Ok(Arc::new(store.toc(&layer.digest, diff_id)?)))
        .collect::<Result<Vec<_>>>()?;
    Tree::from_layers(tocs)
}

/// Returns the merged tree of all layers.
pub fn whole_tree(store: &Store, image: &Image) -> Result<Tree> {
    tree_of(store, image, image.manifest.layers.len())
}

/// Returns the content of a file of at most `limit` bytes that `found` in the tree of `image`;
/// `None` if it has none.
pub fn content(
    store: &Store,
    image: &Image,
    found: &Found<'_>,
    limit: u64,
) -> Result<Option<Vec<u8>>> {
    let Some((layer, diff_id)) = found.layer.and_then(|index| image.layers().nth(index)) else {
        return Ok(None);
    };
    let toc = Arc::new(store.toc(&layer.digest, diff_id)?);
    let mut reader = ContentReader::new(store.open_blob(&layer.digest)?, toc)?;
    let mut bytes = Vec::new();
    let mut file = reader.open(found.entry)?.take(limit + 1);
    file.read_to_end(&mut bytes).doing(|| format!("cannot read layer {}", layer.digest))?;
    if bytes.len() as u64 > limit {
        return Err(Error::bad_content(format!("the file exceeds {limit} bytes")));
    }
    Ok(Some(bytes))
}
