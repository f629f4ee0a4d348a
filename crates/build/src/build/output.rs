//! Finishes a build: writes config, manifest and index.

use std::collections::BTreeMap;

use crate::build::options::{Format, Options};
use crate::build::shared::StageImage;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::time::rfc3339;
use imgctl_base::image::{Descriptor, Digest, Index, Manifest, Platform, media_type};
use imgctl_store::store::Store;

/// Annotations defined by image-spec, annotations.md.
const CREATED: &str = "org.opencontainers.image.created";
const BASE_NAME: &str = "org.opencontainers.image.base.name";
const BASE_DIGEST: &str = "org.opencontainers.image.base.digest";

/// One platform's finished image.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub descriptor: Descriptor,
    pub config: Digest,
}

/// Writes config and manifest of one platform's image.
///
/// `created` is the build's timestamp or, without one, the newest time inside the image: using the
/// clock would change the bytes with each build.
pub(crate) fn write_image(store: &Store, options: &Options, image: &StageImage) -> Result<Written> {
    let created = options.timestamp.or(image.newest).map(rfc3339);
    let config_bytes = config(options, image, created.as_deref())?;
    let config_digest = store.put_blob(&config_bytes)?;
    let is_docker = options.format == Format::Docker;
    let (manifest_type, config_type) = if is_docker {
        (media_type::DOCKER_MANIFEST, media_type::DOCKER_CONFIG)
    } else {
        (media_type::OCI_MANIFEST, media_type::OCI_CONFIG)
    };
    let mut layers: Vec<Descriptor> =
        image.layers.iter().map(|layer| layer.descriptor.clone()).collect();
    for layer in &mut layers {
        layer.media_type = media_type::in_family(&layer.media_type, is_docker)?.to_owned();
    }
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(manifest_type.to_owned()),
        artifact_type: None,
        config: Descriptor::new(config_type, config_digest.clone(), config_bytes.len() as u64),
        layers,
        subject: None,
        annotations: annotations(options, image, created),
    };
    let bytes = json(&manifest)?;
    let digest = store.put_blob(&bytes)?;
    let mut descriptor = Descriptor::new(manifest_type, digest, bytes.len() as u64);
    descriptor.platform = Some(platform_of(image));
    Ok(Written { descriptor, config: config_digest })
}

/// Writes the index of several platforms' images.
pub(super) fn write_index(
    store: &Store,
    options: &Options,
    images: &[Written],
) -> Result<Descriptor> {
    let mut index = Index::new(images.iter().map(|image| image.descriptor.clone()).collect());
    let index_type = match options.format {
        Format::Oci => media_type::OCI_INDEX,
        Format::Docker => media_type::DOCKER_LIST,
    };
    index.media_type = Some(index_type.to_owned());
    let bytes = json(&index)?;
    let digest = store.put_blob(&bytes)?;
    Ok(Descriptor::new(index_type, digest, bytes.len() as u64))
}

fn platform_of(image: &StageImage) -> Platform {
    image.config.platform()
}

fn config(options: &Options, image: &StageImage, created: Option<&str>) -> Result<Vec<u8>> {
    let mut config = image.config.clone();
    config.created = created.map(str::to_owned);
    config.rootfs.diff_ids = image.layers.iter().map(|layer| layer.diff_id.clone()).collect();
    for history in &mut config.history {
        // Entries of the base image keep their time; those of this build have none yet.
        history.created = history.created.take().or_else(|| config.created.clone());
    }
    let container = &mut config.config;
    container.env.retain(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        !options.unset_env.iter().any(|unset| unset == name)
    });
    for (name, value) in &options.env {
        container.env.retain(|pair| pair.split('=').next() != Some(name));
        container.env.push(format!("{name}={value}"));
    }
    container.labels.extend(options.labels.clone());
    json(&config)
}

fn annotations(
    options: &Options,
    image: &StageImage,
    created: Option<String>,
) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    // Docker manifests have no annotations.
    if options.format == Format::Oci {
        annotations.extend(created.map(|created| (CREATED.to_owned(), created)));
        if let Some((name, digest)) = &image.base {
            annotations.insert(BASE_NAME.to_owned(), name.clone());
            annotations.insert(BASE_DIGEST.to_owned(), digest.to_string());
        }
        annotations.extend(options.annotations.clone());
    }
    annotations
}

fn json<T: serde::Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::failed("cannot write an image document").caused_by(error))
}
