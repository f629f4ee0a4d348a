//! `--squash`: merges everything that the build added to its base into one layer per kind.

use std::sync::Arc;

use crate::build::image_tree::ImageTree;
use crate::build::items::{Item, LayerTar, SourceTree as _};
use crate::build::shared::{ImageLayer, Shared, StageImage};
use imgctl_base::error::Result;
use imgctl_base::image::History;
use imgctl_store::layer::tree::Tree;
use imgctl_store::layer::whiteout::whiteout_path;
use imgctl_store::layer::{Entry, EntryKind, LayerPath};

/// Merges the layers above the base. Files of the base that they delete stay deleted.
pub(super) fn squash(shared: &Shared<'_>, image: &StageImage) -> Result<StageImage> {
    let (base, own) = image.layers.split_at(image.base_layers);
    if own.len() < 2 {
        return Ok(image.clone());
    }
    let toc = |layer: &ImageLayer| {
        shared.store.toc(&layer.descriptor.digest, &layer.diff_id).map(Arc::new)
    };
    let below = Tree::from_layers(base.iter().map(toc).collect::<Result<Vec<_>>>()?)?;
    let whole = Tree::from_layers(image.layers.iter().map(toc).collect::<Result<Vec<_>>>()?)?;
    let tars = image
        .layers
        .iter()
        .map(|layer| Arc::new(LayerTar::new(shared.store, layer.descriptor.digest.clone())));
    let tree = ImageTree::new("the image".to_owned(), Arc::new(whole), tars.collect());
    let mut items: Vec<Item> = tree
        .below(&LayerPath::root())?
        .into_iter()
        .filter(|item| !item.entry.path.is_root() && !is_same(&below, item))
        .collect();
    items.extend(deletions(&below, &tree)?);
    items.sort_by(|a, b| a.entry.path.cmp(&b.entry.path));
    let mut squashed = image.clone();
    squashed.layers = base.to_vec();
    let base_history = count_base_history(image);
    for history in squashed.config.history.iter_mut().skip(base_history) {
        history.empty_layer = true;
    }
    for made in shared.layer_maker().make(items)? {
        let kind = made.layer.descriptor.layer_kind().map(|kind| format!("{kind} layer"));
        squashed
            .layers
            .push(ImageLayer { descriptor: made.layer.descriptor, diff_id: made.layer.diff_id });
        squashed.config.history.push(History {
            created_by: Some("imgctl build --squash".to_owned()),
            comment: kind,
            ..History::default()
        });
    }
    Ok(squashed)
}

/// Counts the history entries up to the base's last layer.
fn count_base_history(image: &StageImage) -> usize {
    let mut layers = 0;
    for (index, history) in image.config.history.iter().enumerate() {
        if layers == image.base_layers {
            return index;
        }
        layers += usize::from(!history.empty_layer);
    }
    image.config.history.len()
}

fn is_same(below: &Tree, item: &Item) -> bool {
    below.lookup(&item.entry.path).is_some_and(|found| {
        let entry = Entry { path: item.entry.path.clone(), ..found.entry.entry.clone() };
        entry == item.entry
            && found.entry.content.unwrap_or_default() == item.digest.unwrap_or_default()
    })
}

fn deletions(below: &Tree, tree: &ImageTree) -> Result<Vec<Item>> {
    let mut gone: Vec<Item> = Vec::new();
    let mut last: Option<LayerPath> = None;
    for (path, _) in below.walk(&LayerPath::root()) {
        if last.as_ref().is_some_and(|last| path.starts_with(last)) {
            continue;
        }
        if tree.node(&path)?.is_none()
            && let Some(marker) = whiteout_path(&path)
        {
            gone.push(Item::bare(Entry::new(marker, EntryKind::File { size: 0 }, 0o644)));
            last = Some(path);
        }
    }
    Ok(gone)
}
