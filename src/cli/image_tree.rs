//! The merged tree of an image's layers, for verbs that only read files.

use std::sync::Arc;

use imgctl_base::error::Result;
use imgctl_store::layer::{LayerPath, Tree};
use imgctl_store::store::{Image, Store};

/// Returns the merged tree of the lowest `count` layers of `image`.
pub(crate) fn tree_of(store: &Store, image: &Image, count: usize) -> Result<Tree> {
    let tocs = image
        .layers()
        .take(count)
        .map(|(layer, diff_id)| Ok(Arc::new(store.toc(&layer.digest, diff_id)?)))
        .collect::<Result<Vec<_>>>()?;
    Tree::from_layers(tocs)
}

/// Returns the merged tree of all layers.
pub(crate) fn whole_tree(store: &Store, image: &Image) -> Result<Tree> {
    tree_of(store, image, image.manifest.layers.len())
}

/// Returns the names nearest to a missing one, for a hint.
pub(crate) fn hint(tree: &Tree, path: &LayerPath) -> Option<String> {
    let parent = path.parent()?;
    if tree.lookup(&parent).is_none() {
        return hint(tree, &parent);
    }
    let mut names: Vec<String> = tree
        .children(&parent)
        .take(8)
        .map(|(name, _)| crate::cli::names::printable(name))
        .collect();
    if tree.children(&parent).nth(8).is_some() {
        names.push("…".to_owned());
    }
    if names.is_empty() {
        Some(format!("{parent} is empty"))
    } else {
        Some(format!("{parent} contains {}", names.join(", ")))
    }
}
