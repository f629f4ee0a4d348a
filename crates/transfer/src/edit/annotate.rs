//! `annotate`: changes the annotations and labels of an image; its layers stay as they are.

use std::collections::BTreeMap;

use crate::edit::document::{Draft, Edited, is_docker};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::descriptor::ATTESTED_IMAGE;
use imgctl_base::image::{Descriptor, Document, Index};
use imgctl_store::store::images::is_platform;
use imgctl_store::store::{Image, Store};

/// Changes to make.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub annotations: BTreeMap<String, String>,
    /// Annotations to remove.
    pub remove: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub remove_labels: Vec<String>,
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

/// Returns the image of `descriptor` with the changes. For an index, changes every image in it and
/// the index itself.
pub fn annotate(store: &Store, descriptor: &Descriptor, changes: &Changes) -> Result<Edited> {
    match store.document(descriptor)? {
        Document::Manifest(_) => of_image(store, &store.image_at(descriptor, None)?, changes),
        Document::Index(index) => of_index(store, index, descriptor, changes),
    }
}

fn of_image(store: &Store, image: &Image, changes: &Changes) -> Result<Edited> {
    if is_docker(image) && !(changes.annotations.is_empty() && changes.remove.is_empty()) {
        return Err(Error::usage("an image of Docker's manifest format has no annotations")
            .hint("change labels with --label, or build it with --format oci"));
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
    let mut notes = Vec::new();
    if changes.touches_labels() {
        leave_out_attestations(&mut index, &mut notes);
    }
    for entry in &mut index.manifests {
        // Attestations and similar entries have neither labels nor layers.
        if !is_platform(entry) {
            continue;
        }
        if !matches!(store.document(entry)?, Document::Manifest(_)) {
            return Err(Error::usage("an index inside an index cannot be annotated")
                .hint("annotate the inner index by its digest"));
        }
        let image = store.image_at(entry, None)?;
        // Without new labels, the images and their digests stay the same.
        if !changes.touches_labels() {
            id.get_or_insert_with(|| image.id().clone());
            continue;
        }
        let labels_only =
            Changes { annotations: BTreeMap::new(), remove: Vec::new(), ..changes.clone() };
        let edited = of_image(store, &image, &labels_only)?;
        entry.digest = edited.descriptor.digest;
        entry.size = edited.descriptor.size;
        id.get_or_insert(edited.id);
    }
    changes.apply(&mut index.annotations);
    let Some(id) = id else {
        return Err(Error::bad_content("no image is in the index"));
    };
    Ok(Edited { descriptor: store.put_document(&descriptor.media_type, &index)?, id, notes })
}

/// Removes attestations: with other labels, the image is a different one, which they do not attest.
fn leave_out_attestations(index: &mut Index, notes: &mut Vec<String>) {
    let before = index.manifests.len();
    index.manifests.retain(|entry| !entry.annotations.contains_key(ATTESTED_IMAGE));
    let gone = before - index.manifests.len();
    if gone > 0 {
        notes.push(format!("removed {gone} attestation(s) of the original image"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use imgctl_base::image::{Digest, Platform, media_type};
    use imgctl_store::store::Options;

    fn document(store: &Store, media: &str, value: &serde_json::Value) -> Descriptor {
        store.put_document(media, value).unwrap()
    }

    /// Creates what buildx does: an image, and an attestation of it that is not an image.
    fn attested(store: &Store) -> Descriptor {
        let config = json!({"architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": []}});
        let config = document(store, media_type::OCI_CONFIG, &config);
        let manifest = |layers: Vec<Descriptor>| {
            let value = json!({"schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST,
                "config": config, "layers": layers});
            document(store, media_type::OCI_MANIFEST, &value)
        };
        let mut image = manifest(Vec::new());
        let statement = document(store, "application/vnd.in-toto+json", &json!({"_type": "x"}));
        let mut attestation = manifest(vec![statement]);
        image.platform = Some(Platform::parse("linux/amd64").unwrap());
        attestation.platform = Some(Platform::parse("unknown/unknown").unwrap());
        let attested = (ATTESTED_IMAGE.to_owned(), image.digest.to_string());
        attestation.annotations.extend([attested]);
        let index = Index::new(vec![image, attestation]);
        store.put_document(media_type::OCI_INDEX, &index).unwrap()
    }

    fn members(store: &Store, edited: &Edited) -> Vec<Digest> {
        match store.document(&edited.descriptor).unwrap() {
            Document::Index(index) => index.manifests.into_iter().map(|m| m.digest).collect(),
            Document::Manifest(_) => Vec::new(),
        }
    }

    #[test]
    fn attestations_stay_with_the_image_that_they_attest() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let index = attested(&store);
        let pair = || BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let annotated = Changes { annotations: pair(), ..Changes::default() };
        let edited = annotate(&store, &index, &annotated).unwrap();
        assert_eq!(members(&store, &edited).len(), 2);
        assert!(edited.notes.is_empty());
        let labelled = Changes { labels: pair(), ..Changes::default() };
        let edited = annotate(&store, &index, &labelled).unwrap();
        assert_eq!(members(&store, &edited).len(), 1);
        assert!(edited.notes[0].contains("1 attestation"));
    }
}
