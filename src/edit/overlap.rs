//! Whether an image's layers may lie on other images' trees as they are: files come together as if
//! each image's tree was copied over those before it, so a layer that deletes or hides what another
//! image brought must not be used as it is.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::layer::whiteout::{Marker, marker};
use crate::layer::{EntryKind, LayerPath, Toc, Tree};

/// What a copy over `below` cannot do: a directory in the place of something else, or the reverse.
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

/// Whether one of an image's layers would take away something of `below` on the way to its final
/// tree: a whiteout, an opaque directory, or a file where `below` has a directory.
pub(super) fn hides(below: &Tree, layers: &[Arc<Toc>]) -> Result<bool> {
    for listed in layers.iter().flat_map(|toc| &toc.entries) {
        let entry = &listed.entry;
        let hidden = match marker(&entry.path)? {
            Marker::Whiteout(path) => below.lookup(&path).is_some(),
            Marker::Opaque(path) => below.children(&path).next().is_some(),
            Marker::Leftover => false,
            Marker::None => {
                !entry.is_directory()
                    && below
                        .lookup(&entry.path)
                        .is_some_and(|found| found.entry().is_directory())
            }
        };
        if hidden {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether putting `toc` once more on `tree`, where it already is layer number `number`, changes
/// nothing: all that it brought still shows.
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
        // Another name of a file of its own layer, or of one below it.
        let is_below = found.layer.is_some_and(|layer| layer < number);
        if !(is_own || is_link && is_below) {
            return Ok(false);
        }
    }
    Ok(true)
}
