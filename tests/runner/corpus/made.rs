//! The images that the two builders made: trees and configurations, read from the files of their stores, because
//! starting a tool for each would take most of the time.

use std::path::Path;

use serde_json::Value;

use crate::common::tree::{self, Tree};
use crate::common::{TestEnv, json};

/// Number of images per storage of buildah, which gets slow with many.
pub(super) const PER_STORAGE: usize = 50;

/// Tree and configuration of an image in buildah's storage, whose vfs driver keeps each image as a
/// plain directory.
pub(super) fn by_buildah(storage: &Path, image: &str) -> (Tree, Value) {
    let (layer, config) = known_to_buildah(storage, "vfs", image);
    let tree = layer.map(|layer| tree::list(&storage.join("vfs/dir").join(layer)));
    (tree.unwrap_or_default(), config)
}

/// The uppermost layer, if there is one, and the configuration of an image in buildah's storage.
pub(super) fn known_to_buildah(
    storage: &Path,
    driver: &str,
    image: &str,
) -> (Option<String>, Value) {
    let place = storage.join(format!("{driver}-images"));
    let images = json(&place.join("images.json"));
    let named = |entry: &&Value| {
        let names = entry["names"].as_array();
        names.is_some_and(|names| names.iter().any(|name| name == image))
    };
    let entry = images.as_array().unwrap().iter().find(named).unwrap();
    let data = place.join(text(&entry["id"]));
    // Of the data items, only the configuration has a `rootfs`.
    let config = std::fs::read_dir(data)
        .unwrap()
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .filter_map(|item| serde_json::from_slice::<Value>(&item).ok())
        .find(|item| item.get("rootfs").is_some())
        .unwrap();
    let layer = entry["layer"].as_str().filter(|layer| !layer.is_empty());
    (layer.map(str::to_owned), config)
}

/// Tree and configuration of an image in the store of `env`, exported to `to` temporarily.
pub(super) fn by_imgctl(env: &TestEnv, image: &str, to: &str) -> (Tree, Value) {
    let store = env.root().join("store");
    let index = json(&store.join("index.json"));
    let named = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == image;
    let entry = index["manifests"].as_array().unwrap().iter().find(named).unwrap();
    let manifest = blob(&store, &entry["digest"]);
    let config = blob(&store, &manifest["config"]["digest"]);
    let exported = env.export(image, to);
    let tree = tree::list(&exported);
    std::fs::remove_dir_all(&exported).unwrap();
    (tree, config)
}

fn blob(store: &Path, digest: &Value) -> Value {
    json(&store.join("blobs").join(text(digest).replace(':', "/")))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
