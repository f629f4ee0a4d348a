//! The container images in an embedded registry: platforms, sizes, and blobs that are missing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use imgctl_base::error::Result;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, ImageConfig, Platform, config::MAX_CONFIG};
use imgctl_layer::LayerPath;
use imgctl_registry::layout::paths;
use imgctl_report::model::image::EmbeddedImage;
use imgctl_trust::sbom::contents::Contents;
use imgctl_trust::sbom::{embedded, embedded::ROOT};

/// Maximum number of levels of indexes.
const DEEPEST: usize = 4;

/// Embedded images, and what is wrong with them.
pub(super) struct Embedded {
    pub(super) images: Vec<EmbeddedImage>,
    /// The layers of each, in the same order.
    pub(super) layers: Vec<EmbeddedLayers>,
    /// Images, each with a blob that the registry lacks.
    pub(super) missing: Vec<(String, Digest)>,
}

/// The layers of an image for one platform, lowest first.
#[derive(Clone, Debug, Default)]
pub(super) struct EmbeddedLayers {
    pub(super) digests: Vec<Digest>,
}

/// What is known of the blobs that images consist of.
#[derive(Default)]
struct Known {
    documents: HashMap<Digest, Option<Document>>,
    platforms: HashMap<Digest, String>,
}

/// Describes all embedded images, sorted by name. Layers are those for the platform `wanted`.
pub(super) fn all(contents: &Contents<'_>, wanted: &Platform) -> Result<Embedded> {
    let listed = embedded::all(contents)?;
    let roots: BTreeSet<Digest> = listed.iter().map(|image| image.digest.clone()).collect();
    let known = read(contents, &roots)?;
    let parts: Vec<BTreeMap<Digest, u64>> =
        listed.iter().map(|image| parts(&known, &image.digest)).collect();
    let mut users: HashMap<&Digest, usize> = HashMap::new();
    for digest in parts.iter().flat_map(BTreeMap::keys) {
        *users.entry(digest).or_default() += 1;
    }
    let mut found = Embedded { images: Vec::new(), layers: Vec::new(), missing: Vec::new() };
    for (image, parts) in listed.iter().zip(&parts) {
        let name = match &image.tag {
            Some(tag) => format!("{}:{tag}", image.repository),
            None => image.repository.clone(),
        };
        for digest in parts.keys() {
            let is_there = path(digest).is_ok_and(|path| contents.tree().lookup(&path).is_some());
            if !is_there {
                found.missing.push((name.clone(), digest.clone()));
            }
        }
        let own = parts.iter().filter(|(digest, _)| users.get(digest) == Some(&1));
        found.layers.push(layers(&known, &image.digest, wanted));
        found.images.push(EmbeddedImage {
            digest: image.digest.to_string(),
            platforms: platforms(&known, &image.digest),
            size: parts.values().fold(0, |sum, size| sum.saturating_add(*size)),
            own_size: own.fold(0, |sum, (_, size)| sum.saturating_add(*size)),
            name,
        });
    }
    Ok(found)
}

/// Returns the place of a blob in the embedded registry.
pub(super) fn path(digest: &Digest) -> Result<LayerPath> {
    LayerPath::parse(format!("{ROOT}/{}", paths::blob_data(digest)).as_bytes())
}

/// Reads the documents from `roots` down, level by level, each blob once.
fn read(contents: &Contents<'_>, roots: &BTreeSet<Digest>) -> Result<Known> {
    let mut known = Known::default();
    let mut level: BTreeSet<Digest> = roots.clone();
    let mut configs: BTreeSet<Digest> = BTreeSet::new();
    for _ in 0..DEEPEST {
        level.retain(|digest| !known.documents.contains_key(digest));
        if level.is_empty() {
            break;
        }
        let places = level.iter().map(path).collect::<Result<Vec<_>>>()?;
        let mut parsed = Vec::with_capacity(places.len());
        for some in places.chunks(embedded::AT_ONCE) {
            let blobs = contents.read(some, MAX_DOCUMENT)?.into_iter();
            let parse = |bytes: Option<Vec<u8>>| Document::parse(&bytes?, None).ok();
            parsed.extend(blobs.map(parse));
        }
        let mut below = BTreeSet::new();
        for (digest, document) in std::mem::take(&mut level).into_iter().zip(parsed) {
            match &document {
                Some(Document::Index(index)) => {
                    below.extend(index.manifests.iter().map(|child| child.digest.clone()));
                }
                // Only an image outside an index has its platform in its config alone.
                Some(Document::Manifest(manifest)) if roots.contains(&digest) => {
                    configs.insert(manifest.config.digest.clone());
                }
                _ => {}
            }
            known.documents.insert(digest, document);
        }
        level = below;
    }
    let places = configs.iter().map(path).collect::<Result<Vec<_>>>()?;
    for (digest, bytes) in configs.into_iter().zip(contents.read(&places, MAX_CONFIG)?) {
        if let Some(config) = bytes.and_then(|bytes| ImageConfig::parse(&bytes).ok()) {
            known.platforms.insert(digest, config.platform().to_string());
        }
    }
    Ok(known)
}

/// Returns the blobs of an image with their sizes. The manifests that an index lists and the registry
/// lacks are of platforms that were not embedded.
fn parts(known: &Known, root: &Digest) -> BTreeMap<Digest, u64> {
    let mut parts = BTreeMap::new();
    let mut pending = vec![root];
    while let Some(digest) = pending.pop() {
        match known.documents.get(digest) {
            Some(Some(Document::Index(index))) => {
                for child in &index.manifests {
                    let is_there = matches!(known.documents.get(&child.digest), Some(Some(_)));
                    if is_there && parts.insert(child.digest.clone(), child.size).is_none() {
                        pending.push(&child.digest);
                    }
                }
            }
            Some(Some(Document::Manifest(manifest))) => {
                let blobs = [&manifest.config].into_iter().chain(&manifest.layers);
                let blobs = blobs.filter(|blob| blob.urls.is_empty());
                parts.extend(blobs.map(|blob| (blob.digest.clone(), blob.size)));
            }
            _ => {}
        }
    }
    parts
}

/// Returns the layers for the platform `wanted`, or for the first that is there.
fn layers(known: &Known, root: &Digest, wanted: &Platform) -> EmbeddedLayers {
    let mut digest = root;
    for _ in 0..DEEPEST {
        match known.documents.get(digest) {
            Some(Some(Document::Manifest(manifest))) => {
                let digests = manifest.layers.iter().map(|layer| layer.digest.clone());
                return EmbeddedLayers { digests: digests.collect() };
            }
            Some(Some(Document::Index(index))) => {
                let is_image = |child: &&Descriptor| {
                    child.platform.as_ref().is_none_or(|platform| platform.os != "unknown")
                        && matches!(known.documents.get(&child.digest), Some(Some(_)))
                };
                let there: Vec<&Descriptor> = index.manifests.iter().filter(is_image).collect();
                let fits = there.iter().find(|child| child.platform.as_ref() == Some(wanted));
                let Some(child) = fits.or(there.first()) else { break };
                digest = &child.digest;
            }
            _ => break,
        }
    }
    EmbeddedLayers::default()
}

fn platforms(known: &Known, root: &Digest) -> Vec<String> {
    match known.documents.get(root) {
        Some(Some(Document::Index(index))) => {
            let is_there = |child: &&Descriptor| {
                matches!(known.documents.get(&child.digest), Some(Some(_)))
                    && child.platform.as_ref().is_some_and(|platform| platform.os != "unknown")
            };
            let children = index.manifests.iter().filter(is_there);
            children.filter_map(|child| Some(child.platform.as_ref()?.to_string())).collect()
        }
        Some(Some(Document::Manifest(manifest))) => {
            known.platforms.get(&manifest.config.digest).cloned().into_iter().collect()
        }
        _ => Vec::new(),
    }
}
