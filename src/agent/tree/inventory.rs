//! What a host has of the trees and registry layers it is asked about.

use std::collections::BTreeMap;
use std::path::Path;

use crate::agent::protocol::InventoryQuestion;
use crate::agent::tree::names::TreePaths;
use crate::agent::tree::registry_layers;
use crate::error::Result;
use crate::image::Digest;

/// Registry layers, current trees, and all trees that are there.
type Found = (
    Vec<Digest>,
    BTreeMap<String, String>,
    BTreeMap<String, Vec<String>>,
);

/// Those of the registry layers that are applied below `root`, the ids of the current trees, and
/// of all that are there.
pub(crate) fn inventory(root: &str, question: &InventoryQuestion) -> Result<Found> {
    let applied = question
        .registry_layers
        .iter()
        .filter(|layer| registry_layers::is_applied(Path::new(root), layer))
        .cloned()
        .collect();
    let (mut trees, mut made) = (BTreeMap::new(), BTreeMap::new());
    for tree in &question.trees {
        let paths = TreePaths::new(root, tree)?;
        if let Some(id) = paths.current() {
            trees.insert(tree.clone(), id);
        }
        let there = paths.made();
        if !there.is_empty() {
            made.insert(tree.clone(), there);
        }
    }
    Ok((applied, trees, made))
}
