//! Trees on a host: the rendered files of one or more images in a directory of their own, a link to
//! the current one, and the registry's data beside them.
//!
//! ```text
//! <root>/rootfs -> rootfs.<id>        the current tree
//! <root>/rootfs.<id>/                 a complete, rendered tree: never changed again by imgctl
//! <root>/rootfs.<id>.partial/         an unfinished one; removed by the next checkout
//! <root>/trees/<tree>.json            the trees that were made, newest first
//! <root>/registry/                    the content of `registry/` of all images
//! <root>/registry-layers/<digest>     one for each layer that has been applied there
//! ```
//!
//! Must not depend on clusters, connections or where layers come from: they are in the store.

mod history;
mod make;
mod names;
mod registry_data;
pub mod registry_gc;
mod registry_layers;

use std::path::Path;

use crate::agent::protocol::{Inventory, InventoryQuestion};
use crate::agent::tree::history::History;
use crate::agent::tree::names::TreePaths;
use imgctl_base::error::Result;
use imgctl_store::store::Store;

pub use make::{checkout, switch_tree};

/// Returns everything except the blobs: the requested registry layers that are applied below
/// `root`, the current trees with their layers, and all existing trees.
pub fn inventory(store: &Store, root: &str, question: &InventoryQuestion) -> Result<Inventory> {
    let mut found = Inventory {
        registry_layers: question
            .registry_layers
            .iter()
            .filter(|layer| registry_layers::is_applied(Path::new(root), layer))
            .cloned()
            .collect(),
        ..Inventory::default()
    };
    for tree in &question.trees {
        let paths = TreePaths::new(root, tree)?;
        if let Some(id) = paths.current() {
            if let Some(layers) = history::layers(store, &paths, &id) {
                found.layers.insert(tree.clone(), layers);
            }
            if let Some(made_from) = History::read(&paths).made_from.remove(&id) {
                found.made_from.insert(tree.clone(), made_from);
            }
            found.held.extend(history::held(store, &paths, &id)?);
            found.trees.insert(tree.clone(), id);
        }
        let there = paths.made();
        if !there.is_empty() {
            found.made.insert(tree.clone(), there);
        }
    }
    Ok(found)
}
