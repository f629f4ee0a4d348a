//! Finishes a build: squashes layers, writes config, manifest and index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::build::context::ImageTree;
use crate::build::items::{Item, SourceTree as _};
use crate::build::options::{Format, Options};
use crate::build::shared::{ImageLayer, Shared, StageImage};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::time::rfc3339;
use imgctl_base::image::{Descriptor, Digest, History, Index, Manifest, Platform, media_type};
use imgctl_layer::tree::Tree;
use imgctl_layer::whiteout::whiteout_path;
use imgctl_layer::{Compression, Entry, EntryKind, LayerPath};
use imgctl_store::store::Store;
use imgctl_transfer::transfer::recompress_image::gzipped;
use imgctl_trust::provenance::Material;

/// Annotations defined by image-spec, annotations.md.
const CREATED: &str = "org.opencontainers.image.created";
const BASE_NAME: &str = "org.opencontainers.image.base.name";
const BASE_DIGEST: &str = "org.opencontainers.image.base.digest";

/// One platform's finished image.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub descriptor: Descriptor,
    pub config: Digest,
    /// What was taken from outside for it.
    pub materials: BTreeSet<Material>,
}

/// Writes config and manifest of one platform's image.
///
/// `created` is the build's timestamp or, without one, the newest time inside the image: using the
/// clock would change the bytes with each build.
pub(crate) fn write_image(
    store: &Store,
    options: &Options,
    image: &StageImage,
    materials: BTreeSet<Material>,
) -> Result<Written> {
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
    let converts = is_docker && !matches!(options.compression, Compression::Zstd { .. });
    for (layer, ImageLayer { diff_id, .. }) in layers.iter_mut().zip(&image.layers) {
        // A layer of the base: those of this build have the compression that was asked for.
        if converts && layer.media_type.ends_with("zstd") {
            *layer = gzipped(store, layer, diff_id)?;
        }
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
    Ok(Written { descriptor, config: config_digest, materials })
}

/// Writes the index of several platforms' images and of the attestations about them.
pub(super) fn write_index(
    store: &Store,
    options: &Options,
    images: &[Written],
    attestations: Vec<Descriptor>,
) -> Result<Descriptor> {
    let images = images.iter().map(|image| image.descriptor.clone());
    let mut index = Index::new(images.chain(attestations).collect());
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
    let overrides = &options.overrides;
    if overrides.omit_history {
        config.history.clear();
    }
    if overrides.os_version.is_some() {
        config.os_version.clone_from(&overrides.os_version);
    }
    if !overrides.os_features.is_empty() {
        config.os_features.clone_from(&overrides.os_features);
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
        let platform = platform_of(image);
        let own = options.platform_annotations.iter().filter(|(wanted, ..)| *wanted == platform);
        annotations.extend(own.map(|(_, name, value)| (name.clone(), value.clone())));
    }
    annotations
}

fn json<T: serde::Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::failed("cannot write an image document").caused_by(error))
}

/// Merges the layers above the base. Files of the base that they delete stay deleted.
pub(super) fn squash(shared: &Shared<'_>, image: &StageImage) -> Result<StageImage> {
    let (base, own) = image.layers.split_at(image.base_layers);
    if own.len() < 2 {
        return Ok(image.clone());
    }
    let toc = |layer: &ImageLayer| shared.toc_of(layer);
    let below = Tree::from_layers(base.iter().map(toc).collect::<Result<Vec<_>>>()?)?;
    let whole = Tree::from_layers(image.layers.iter().map(toc).collect::<Result<Vec<_>>>()?)?;
    let tars = image.layers.iter().map(|layer| Arc::new(shared.tar_of(layer)));
    let tree = ImageTree::new("the image".to_owned(), Arc::new(whole), tars.collect());
    let mut items: Vec<Item> = tree
        .below(&LayerPath::root())?
        .into_iter()
        .filter(|item| !item.entry.path.is_root() && !is_same(&below, item))
        .collect();
    items.extend(deletions(&below, &tree)?);
    items.sort_by(|a, b| a.entry.path.cmp(&b.entry.path));
    let mut squashed = image.clone();
    squashed.layers = base.to_vec();
    let base_history = count_base_history(image);
    for history in squashed.config.history.iter_mut().skip(base_history) {
        history.empty_layer = true;
    }
    for made in shared.layer_maker().make(items)? {
        let kind = made.layer.descriptor.layer_kind().map(|kind| format!("{kind} layer"));
        squashed
            .layers
            .push(ImageLayer { descriptor: made.layer.descriptor, diff_id: made.layer.diff_id });
        squashed.config.history.push(History {
            created_by: Some("imgctl build --squash".to_owned()),
            comment: kind,
            ..History::default()
        });
    }
    Ok(squashed)
}

/// Counts the history entries up to the base's last layer.
fn count_base_history(image: &StageImage) -> usize {
    let mut layers = 0;
    for (index, history) in image.config.history.iter().enumerate() {
        if layers == image.base_layers {
            return index;
        }
        layers += usize::from(!history.empty_layer);
    }
    image.config.history.len()
}

fn is_same(below: &Tree, item: &Item) -> bool {
    below.lookup(&item.entry.path).is_some_and(|found| {
        let entry = Entry { path: item.entry.path.clone(), ..found.entry.entry.clone() };
        entry == item.entry
            && found.entry.content.unwrap_or_default() == item.digest.unwrap_or_default()
    })
}

fn deletions(below: &Tree, tree: &ImageTree) -> Result<Vec<Item>> {
    let mut gone: Vec<Item> = Vec::new();
    let mut last: Option<LayerPath> = None;
    for (path, _) in below.walk(&LayerPath::root()) {
        if last.as_ref().is_some_and(|last| path.starts_with(last)) {
            continue;
        }
        if tree.node(&path)?.is_none()
            && let Some(marker) = whiteout_path(&path)
        {
            gone.push(Item::bare(Entry::new(marker, EntryKind::File { size: 0 }, 0o644)));
            last = Some(path);
        }
    }
    Ok(gone)
}
