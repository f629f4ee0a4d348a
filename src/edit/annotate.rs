//! `annotate`: annotations and labels of an image changed; its layers stay as they are.

use std::collections::BTreeMap;

use crate::edit::document::{Draft, Edited, is_docker, put};
use crate::error::{Error, Result};
use crate::image::{Descriptor, Document, Index};
use crate::store::{Image, Store};

/// What to change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    pub(crate) annotations: BTreeMap<String, String>,
    /// Annotations to take away.
    pub(crate) remove: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) remove_labels: Vec<String>,
}

impl Changes {
    fn apply(&self, annotations: &mut BTreeMap<String, String>) {
        annotations.retain(|key, _| !self.remove.contains(key));
        annotations.extend(self.annotations.clone());
    }

    fn touches_labels(&self) -> bool {
        !self.labels.is_empty() || !self.remove_labels.is_empty()
    }
}

/// The image behind `descriptor` with the changes: of an index every image in it and the index
/// itself.
pub(crate) fn annotate(
    store: &Store,
    descriptor: &Descriptor,
    changes: &Changes,
) -> Result<Edited> {
    match store.document(descriptor)? {
        Document::Manifest(_) => of_image(store, &store.image_at(descriptor, None)?, changes),
        Document::Index(index) => of_index(store, index, descriptor, changes),
    }
}

fn of_image(store: &Store, image: &Image, changes: &Changes) -> Result<Edited> {
    if is_docker(image) && !(changes.annotations.is_empty() && changes.remove.is_empty()) {
        return Err(
            Error::usage("an image of Docker's manifest format has no annotations")
                .hint("change labels with --label, or build it with --format oci"),
        );
    }
    let mut draft = Draft::of(image);
    changes.apply(&mut draft.annotations);
    let labels = &mut draft.config.config.labels;
    labels.retain(|key, _| !changes.remove_labels.contains(key));
    labels.extend(changes.labels.clone());
    draft.write(store)
}

fn of_index(
    store: &Store,
    mut index: Index,
    descriptor: &Descriptor,
    changes: &Changes,
) -> Result<Edited> {
    let mut id = None;
    for entry in &mut index.manifests {
        if !matches!(store.document(entry)?, Document::Manifest(_)) {
            return Err(Error::usage("an index inside an index cannot be annotated")
                .hint("annotate the inner index by its digest"));
        }
        let image = store.image_at(entry, None)?;
        // Without new labels the images stay what they are, and so do their digests.
        if !changes.touches_labels() {
            id.get_or_insert_with(|| image.id().clone());
            continue;
        }
        let labels_only = Changes {
            annotations: BTreeMap::new(),
            remove: Vec::new(),
            ..changes.clone()
        };
        let edited = of_image(store, &image, &labels_only)?;
        entry.digest = edited.descriptor.digest;
        entry.size = edited.descriptor.size;
        id.get_or_insert(edited.id);
    }
    changes.apply(&mut index.annotations);
    let Some(id) = id else {
        return Err(Error::bad_content("the index is empty"));
    };
    Ok(Edited {
        descriptor: put(store, &descriptor.media_type, &index)?,
        id,
        notes: Vec::new(),
    })
}
