//! The trees and registry layers of a host, out of those requested.

use std::path::Path;

use crate::agent::protocol::{Inventory, InventoryQuestion};
use crate::agent::tree::names::TreePaths;
use crate::agent::tree::{keep, registry_layers};
use imgctl_base::error::Result;
use imgctl_store::store::Store;

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
            if let Some(layers) = keep::layers(store, &paths, &id) {
                found.layers.insert(tree.clone(), layers);
            }
            found.trees.insert(tree.clone(), id);
        }
        let there = paths.made();
        if !there.is_empty() {
            found.made.insert(tree.clone(), there);
        }
    }
    Ok(found)
}
