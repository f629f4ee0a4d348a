//! What a host has of the trees and registry layers it is asked about.

use std::collections::BTreeMap;
use std::path::Path;

use crate::agent::protocol::InventoryQuestion;
use crate::agent::tree::names::TreePaths;
use crate::agent::tree::registry_layers;
use crate::error::Result;
use crate::image::Digest;

/// Those of the registry layers that are applied below `root`, and the ids of the current trees.
pub(crate) fn inventory(
    root: &str,
    question: &InventoryQuestion,
) -> Result<(Vec<Digest>, BTreeMap<String, String>)> {
    let applied = question
        .registry_layers
        .iter()
        .filter(|layer| registry_layers::is_applied(Path::new(root), layer))
        .cloned()
        .collect();
    let mut trees = BTreeMap::new();
    for tree in &question.trees {
        if let Some(id) = TreePaths::new(root, tree)?.current() {
            trees.insert(tree.clone(), id);
        }
    }
    Ok((applied, trees))
}
