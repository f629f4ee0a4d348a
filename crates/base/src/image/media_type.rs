//! Media types of manifests, configs and layers, OCI and Docker.

use crate::error::{Error, Result};

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// Config of an artifact that needs none.
pub const OCI_EMPTY: &str = "application/vnd.oci.empty.v1+json";

pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
pub const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
pub const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

/// Returns whether `media_type` is an index or a manifest list.
pub fn is_index(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | DOCKER_LIST)
}

/// Returns whether `media_type` is an image manifest.
pub fn is_manifest(media_type: &str) -> bool {
    matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST)
}

/// Returns whether `media_type` is the config of an image.
pub fn is_config(media_type: &str) -> bool {
    matches!(media_type, OCI_CONFIG | DOCKER_CONFIG)
}

/// Returns whether `media_type` is a tar layer, compressed or not, of either family.
pub fn is_layer(media_type: &str) -> bool {
    matches!(
        media_type,
        OCI_LAYER | OCI_LAYER_GZIP | OCI_LAYER_ZSTD | DOCKER_LAYER | DOCKER_LAYER_GZIP
    ) || media_type.starts_with("application/vnd.oci.image.layer.nondistributable.v1.tar")
        || media_type == "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
        || media_type == "application/vnd.docker.image.rootfs.diff.tar.zstd"
}

/// Returns the corresponding media type of a layer in the Docker or OCI family. Docker has no media
/// type for zstd layers, so that is an error.
pub fn in_family(media_type: &str, docker: bool) -> Result<&'static str> {
    let compressed = media_type.ends_with("gzip");
    let is_zstd = media_type.ends_with("zstd");
    Ok(match (docker, compressed, is_zstd) {
        (true, _, true) => {
            return Err(Error::usage("Docker's manifest format has no zstd layers")
                .hint("build with --compression gzip or --format oci"));
        }
        (true, true, _) => DOCKER_LAYER_GZIP,
        (true, false, _) => DOCKER_LAYER,
        (false, true, _) => OCI_LAYER_GZIP,
        (false, _, true) => OCI_LAYER_ZSTD,
        (false, false, _) => OCI_LAYER,
    })
}
