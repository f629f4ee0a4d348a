//! How much of an image a machine would fetch that has another one, by the same rules as a pull: from
//! the lists of parts of both images' layers, which are in a store. Must not fetch anything.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use crate::transfer::partial::pieces::{Pieces, Tail};
use crate::transfer::partial::{is_worth, may_have_list, pieces::Piece};
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest};
use imgctl_layer::chunked::{Index, Part, runs_of};
use imgctl_store::store::Store;

/// Returns for each layer of `wanted` the number of bytes that a machine fetches that has exactly the
/// layers `held`: 0 for a layer that it has. Both images are in the store.
pub fn missing(store: &Store, wanted: &[Descriptor], held: &[Descriptor]) -> Result<Vec<u64>> {
    let known: HashSet<&Digest> = held.iter().map(|layer| &layer.digest).collect();
    let mut index = None;
    let mut of_layer = |layer: &Descriptor| -> Result<u64> {
        if known.contains(&layer.digest) {
            return Ok(0);
        }
        if !may_have_list(layer) {
            return Ok(layer.size);
        }
        let Some(runs) = runs_of(&store.open_blob(&layer.digest)?)? else { return Ok(layer.size) };
        let (index, files) = match &mut index {
            Some(index) => index,
            // Lists are read only if a layer can use them.
            none => none.insert(index_of(store, held)),
        };
        // The same pieces as those of a pull; nothing reads them.
        let piece = |part: Part| match part {
            Part::Missing(range) => Piece::Missing(range),
            Part::Known { length, source, start } => {
                Piece::Local { length, file: Arc::clone(&files[source]), start }
            }
        };
        let parts = index.parts(&runs, layer.size).into_iter().map(piece);
        let tail = Tail { start: runs.end(), bytes: Arc::new([]) };
        let ranges = Pieces::new(parts, tail)?;
        let in_parts: u64 = ranges.missing().map(|range| range.end - range.start).sum();
        let list = layer.size.saturating_sub(runs.end());
        Ok(if is_worth(in_parts, layer.size) { in_parts + list } else { layer.size })
    };
    wanted.iter().map(&mut of_layer).collect()
}

/// Returns the parts of layers that are here, and their blobs. A layer whose list cannot be read has
/// no parts.
fn index_of(store: &Store, held: &[Descriptor]) -> (Index, Vec<Arc<File>>) {
    let (mut index, mut files) = (Index::default(), Vec::new());
    for layer in held {
        let runs = store.open_blob(&layer.digest).and_then(|file| Ok((runs_of(&file)?, file)));
        match runs {
            Ok((Some(runs), file)) => {
                index.add(files.len(), &runs);
                files.push(Arc::new(file));
            }
            Ok((None, _)) => {}
            Err(error) => tracing::debug!("{} is not compared: {error}", layer.digest),
        }
    }
    (index, files)
}
