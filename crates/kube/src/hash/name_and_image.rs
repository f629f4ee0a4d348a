//! The formula of kubelets 1.31 and newer: a hash of only the container's name and image string.

use super::ContainerHash;
use super::go_json::write_string;
use super::spew::hash_of_bytes;

/// Returns the hash of a container with this name and image, both as written in the pod's spec.
pub(crate) fn name_and_image_hash(name: &str, image: &str) -> ContainerHash {
    let mut json = b"{\"image\":".to_vec();
    write_string(image, &mut json);
    json.extend_from_slice(b",\"name\":");
    write_string(name, &mut json);
    json.push(b'}');
    hash_of_bytes(&json)
}
