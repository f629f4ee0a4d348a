//! Checks whether an image's layers can be stacked unchanged on other images' trees. Files are
//! merged as if each image's tree were copied over those before it, so a layer that deletes or
//! hides another image's files must not be used unchanged.

use std::sync::Arc;

use imgctl_base::error::{Error, Result};
use imgctl_store::layer::whiteout::{Marker, marker};
use imgctl_store::layer::{EntryKind, LayerPath, Toc, Tree};

/// Fails for conflicts that a copy over `below` cannot resolve: a directory in place of something
/// else, or the reverse.
pub(super) fn check_types(below: &Tree, own: &Tree, below_name: &str, name: &str) -> Result<()> {
    for (path, found) in own.walk(&LayerPath::root()) {
        let Some(other) = below.lookup(&path) else {
            continue;
        };
        let (is_directory, was_directory) =
            (found.entry().is_directory(), other.entry().is_directory());
        if is_directory != was_directory {
            let what = |directory: bool| if directory { "a directory" } else { "a file" };
            return Err(Error::usage(format!(
                "`{path}` is {} in {name} and {} in {below_name}",
                what(is_directory),
                what(was_directory)
            ))
            .hint("remove one of the two, or merge the images in a Kubefile with COPY --from"));
        }
    }
    Ok(())
}

/// Whether one of an image's layers would remove something of `below`: with a whiteout, an opaque
/// directory, or a file where `below` has a directory.
pub(super) fn hides(below: &Tree, layers: &[Arc<Toc>]) -> Result<bool> {
    for listed in layers.iter().flat_map(|toc| &toc.entries) {
        let entry = &listed.entry;
        let hidden = match marker(&entry.path)? {
            Marker::Whiteout(path) => below.lookup(&path).is_some(),
            Marker::Opaque(path) => below.children(&path).next().is_some(),
            Marker::Leftover => false,
            Marker::None => {
                !entry.is_directory()
                    && below.lookup(&entry.path).is_some_and(|found| found.entry().is_directory())
            }
        };
        if hidden {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether applying `toc` again to `tree`, which already has it as layer number `number`, changes
/// nothing: all of its entries are still visible.
pub(super) fn shows(tree: &Tree, toc: &Toc, number: usize) -> Result<bool> {
    for listed in &toc.entries {
        let entry = &listed.entry;
        if marker(&entry.path)? != Marker::None {
            return Ok(false);
        }
        let Some(found) = tree.lookup(&entry.path) else {
            return Ok(false);
        };
        let is_own = found.layer == Some(number);
        let is_link = matches!(entry.kind, EntryKind::HardLink { .. });
        // A hard link to a file of its own layer, or of a lower one.
        let is_below = found.layer.is_some_and(|layer| layer < number);
        if !(is_own || is_link && is_below) {
            return Ok(false);
        }
    }
    Ok(true)
}
