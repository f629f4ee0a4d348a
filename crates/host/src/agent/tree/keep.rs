//! Keeps the layers of trees in the host's store: each tree has a name there, which `prune`
//! respects, so that its layers need not be sent again and other hosts can fetch them.

use serde_json::json;

use crate::agent::protocol::CheckoutLayer;
use crate::agent::tree::names::{TreePaths, shown};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Reference, media_type};
use imgctl_store::store::Store;

/// Registry of these names; nothing is ever fetched from it.
const REGISTRY: &str = "trees.imgctl.local";

/// Names the layers of tree `id`, except for those that hold only registry data: these are in the
/// registry directory.
pub(super) fn keep(
    store: &Store,
    paths: &TreePaths,
    id: &str,
    layers: &[CheckoutLayer],
) -> Result<()> {
    let kept: Vec<&CheckoutLayer> = layers.iter().filter(|layer| !layer.registry).collect();
    let diff_ids: Vec<&Digest> = kept.iter().map(|layer| &layer.diff_id).collect();
    let descriptors: Vec<&Descriptor> = kept.iter().map(|layer| &layer.descriptor).collect();
    let config = document(&json!({
        "architecture": imgctl_base::image::Platform::host().architecture,
        "os": "linux",
        "config": {"Labels": {"imgctl.tree": shown(&paths.directory(id))}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }))?;
    let config_digest = store.put_blob(&config)?;
    let manifest = document(&json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": {
            "mediaType": media_type::OCI_CONFIG,
            "digest": config_digest,
            "size": config.len(),
        },
        "layers": descriptors,
    }))?;
    let digest = store.put_blob(&manifest)?;
    let size = manifest.len() as u64;
    let descriptor = Descriptor::new(media_type::OCI_MANIFEST, digest, size);
    store.tag(&[name(paths, id)?], &descriptor)
}

/// Returns the diff IDs of the layers that tree `id` was made from, or `None` if the store no
/// longer has the record.
pub(super) fn layers(store: &Store, paths: &TreePaths, id: &str) -> Option<Vec<Digest>> {
    let name = name(paths, id).ok()?;
    let image = store.image(&name.to_string(), None).ok()?;
    Some(image.config.rootfs.diff_ids)
}

/// Removes the name of tree `id`, if it has one.
pub(super) fn forget(store: &Store, paths: &TreePaths, id: &str) -> Result<()> {
    let name = name(paths, id)?;
    let named: Vec<_> = store
        .names()?
        .into_iter()
        .filter(|named| named.reference.as_ref() == Some(&name))
        .collect();
    if !named.is_empty() {
        store.untag(&named)?;
    }
    Ok(())
}

/// Returns `trees.imgctl.local/<cluster and tree, hashed>:<id, hashed>`. The parts are hashed
/// because cluster names need not be valid in references; the label identifies the tree.
fn name(paths: &TreePaths, id: &str) -> Result<Reference> {
    let place = Digest::of(shown(&paths.link()).as_bytes());
    let id = Digest::of(id.as_bytes());
    let text = format!("{REGISTRY}/{}:{}", place.short(), id.short());
    Ok(Reference::parse(&text)?.qualified())
}

fn document(value: &serde_json::Value) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::failed("cannot write the record of a tree").caused_by(error))
}
