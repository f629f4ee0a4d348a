//! Reads docker archives (`docker save` and the variants of other tools): `manifest.json` lists
//! configs and layer tars, and a manifest is generated for each image.
//!
//! Layers stay as they are in the archive, so a plain tar's digest is its diff ID. The config is
//! kept byte for byte, so the image keeps its ID.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use serde::Deserialize;

use crate::transfer::members::{Loaded, Member, Members};
use crate::transfer::names;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::manifest::MAX_LAYERS;
use imgctl_base::image::one_reading;
use imgctl_base::image::{
    Descriptor, Digest, Hasher, ImageConfig, Manifest, Origin, Reference, media_type,
};
use imgctl_layer::decompress::{Format, decompress_within};
use imgctl_store::store::Store;
use imgctl_store::store::blobs::copy_hashed;

const ITEM: one_reading::Members =
    one_reading::Members(&[("Config", None), ("RepoTags", None), ("Layers", None)]);

/// One image entry of `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Item {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// Returns the images of a docker archive, with a generated manifest stored for each. Adds the
/// digests of blobs that are new to the store to `imported`.
pub(super) fn images(
    store: &Store,
    members: &Members,
    imported: &mut Vec<Digest>,
) -> Result<Vec<Loaded>> {
    let mut found: Vec<Loaded> = Vec::new();
    for item in items(members)? {
        let references = references(&item, members)?;
        let descriptor = image(store, members, &item, imported)
            .context(|| format!("cannot load the image of {}", item.config))?;
        match found.iter_mut().find(|other| other.descriptor.digest == descriptor.digest) {
            Some(other) => other.references.extend(references),
            None => {
                let origin = Origin::without_path("docker-archive");
                found.push(Loaded { references, descriptor, origin });
            }
        }
    }
    Ok(found)
}

/// Maps configs to their names in `manifest.json`; also for archives that are OCI layouts.
pub(super) fn names_by_config(members: &Members) -> Result<BTreeMap<Digest, Vec<Reference>>> {
    let mut names: BTreeMap<Digest, Vec<Reference>> = BTreeMap::new();
    for item in items(members)? {
        let config = members.file(&item.config)?.digest.clone();
        names.entry(config).or_default().extend(references(&item, members)?);
    }
    Ok(names)
}

fn items(members: &Members) -> Result<Vec<Item>> {
    let Some(bytes) = members.document("manifest.json") else {
        return Ok(Vec::new());
    };
    let malformed = || Error::bad_content("the archive's manifest.json is malformed");
    one_reading::check(bytes, &ITEM).map_err(|error| malformed().caused_by(error))?;
    serde_json::from_slice(bytes).map_err(|error| malformed().caused_by(error))
}

/// The image's own names, or otherwise the names that `repositories` gives to its last layer's
/// directory.
fn references(item: &Item, members: &Members) -> Result<Vec<Reference>> {
    if let Some(tags) = item.repo_tags.as_deref()
        && !tags.is_empty()
    {
        return tags.iter().map(|tag| names::from_docker(tag)).collect();
    }
    let top = item.layers.iter().flatten().next_back();
    let top = top.map(|path| path.trim_end_matches("/layer.tar").trim_end_matches(".tar"));
    let repositories: BTreeMap<String, BTreeMap<String, String>> = members
        .document("repositories")
        .and_then(|bytes| serde_json::from_slice(bytes).ok())
        .unwrap_or_default();
    let mut references = Vec::new();
    for (repository, tags) in &repositories {
        for (tag, layer) in tags {
            if Some(layer.as_str()) == top {
                references.push(names::from_docker(&format!("{repository}:{tag}"))?);
            }
        }
    }
    Ok(references)
}

fn image(
    store: &Store,
    members: &Members,
    item: &Item,
    imported: &mut Vec<Digest>,
) -> Result<Descriptor> {
    let config_member = members.file(&item.config)?;
    let bytes = store.read_blob(&config_member.digest, MAX_CONFIG)?;
    let config = ImageConfig::parse(&bytes)?;
    let paths = item.layers.as_deref().unwrap_or_default();
    let diff_ids = &config.rootfs.diff_ids;
    if paths.len() != diff_ids.len() || paths.len() > MAX_LAYERS {
        return Err(Error::bad_content(format!(
            "it has {} layers but its config lists {}",
            paths.len(),
            diff_ids.len()
        )));
    }
    let mut layers = Vec::with_capacity(paths.len());
    for (path, diff_id) in paths.iter().zip(diff_ids) {
        let layer = layer(store, members.file(path)?, imported)?;
        if layer.media_type == media_type::OCI_LAYER && layer.digest != *diff_id {
            return Err(Error::bad_content(format!(
                "layer {path} has the diff-id {}, but the config says {diff_id}",
                layer.digest
            )));
        }
        layers.push(layer);
    }
    let config_type = media_type::OCI_CONFIG;
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(media_type::OCI_MANIFEST.to_owned()),
        artifact_type: None,
        config: Descriptor::new(config_type, config_member.digest.clone(), config_member.size),
        layers,
        subject: None,
        annotations: BTreeMap::new(),
    };
    let bytes = serde_json::to_vec(&manifest)
        .map_err(|error| Error::failed("cannot encode the manifest").caused_by(error))?;
    let digest = Digest::of(&bytes);
    if store.blob_size(&digest)?.is_none() {
        imported.push(digest.clone());
    }
    store.put_blob(&bytes)?;
    let mut descriptor = Descriptor::new(media_type::OCI_MANIFEST, digest, bytes.len() as u64);
    if !config.architecture.is_empty() {
        descriptor.platform = Some(config.platform());
    }
    Ok(descriptor)
}

/// Returns a layer's descriptor, with the type its bytes indicate. Decompresses formats that have
/// no media type.
fn layer(store: &Store, member: &Member, imported: &mut Vec<Digest>) -> Result<Descriptor> {
    let mut start = Vec::new();
    let file = store.open_blob(&member.digest)?;
    (&file)
        .take(16)
        .read_to_end(&mut start)
        .doing(|| format!("cannot read blob {}", member.digest))?;
    let media = match Format::sniff(&start) {
        Format::Plain => media_type::OCI_LAYER,
        Format::Gzip => media_type::OCI_LAYER_GZIP,
        Format::Zstd => media_type::OCI_LAYER_ZSTD,
        Format::Bzip2 | Format::Xz => {
            let file = store.open_blob(&member.digest)?;
            return decompressed(store, file, imported);
        }
    };
    Ok(Descriptor::new(media, member.digest.clone(), member.size))
}

fn decompressed(store: &Store, file: File, imported: &mut Vec<Digest>) -> Result<Descriptor> {
    let limits = store.limits();
    let (_, reader) = decompress_within(file, limits)?;
    let mut ingest = store.ingest()?;
    let mut hasher = Hasher::new();
    let mut limited = reader.take(limits.size.saturating_add(1));
    let size = copy_hashed(&mut limited, &mut hasher, &mut ingest)?;
    if size > limits.size {
        return Err(Error::bad_content(format!("a layer has more than {} bytes", limits.size)));
    }
    let digest = hasher.finish();
    if store.blob_size(&digest)?.is_none() {
        imported.push(digest.clone());
    }
    store.commit(ingest, &digest)?;
    Ok(Descriptor::new(media_type::OCI_LAYER, digest, size))
}
