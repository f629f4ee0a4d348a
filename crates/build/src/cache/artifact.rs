//! The artifact that a cache is in a registry or a layout: a manifest whose config is the records and
//! whose layers are all layers that they name, so that a registry keeps them. Too many layers for one
//! manifest make several, under an index.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::time::{Duration, Instant};

use crate::cache::inline;
use crate::cache::place::{CachePlace, Named, small_blob};
use crate::cache::records::{ARTIFACT, MAX_COMPRESSED, RecordedLayer, Records};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Index, Manifest, media_type};

/// Media type of its records.
const RECORDS: &str = "application/vnd.imgctl.buildcache.records.v1.json+zstd";
/// Layers of one manifest: it has less than 1 MiB, which every registry accepts.
const LAYERS: usize = 4000;
/// Maximum number of attempts to write beside concurrent writers.
pub(crate) const TRIES: u32 = 8;
/// Minimum delay before a writer checks whether another one has replaced its cache.
const SETTLE: Duration = Duration::from_millis(20);
/// Config of BuildKit's caches.
const BUILDKIT: &str = "application/vnd.buildkit.cacheconfig.v0";
/// Maximum number of platforms of an image whose records are read.
const PLATFORMS: usize = 64;
const EMPTY_CONTENT: &[u8] = b"{}";

/// A document or small blob with its descriptor.
pub(crate) type Small = (Descriptor, Vec<u8>);

/// Blobs to write in addition to the layers, in this order; the root comes last.
pub(crate) struct Artifact {
    pub(crate) blobs: Vec<Small>,
    pub(crate) parts: Vec<Small>,
    pub(crate) root: Small,
}

impl Artifact {
    /// Writes everything but the name.
    pub(crate) fn write(&self, place: &dyn CachePlace) -> Result<()> {
        for (descriptor, bytes) in &self.blobs {
            let open = |offset: u64| -> Result<Box<dyn Read + Send>> {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                Ok(Box::new(Cursor::new(bytes[start..].to_vec())))
            };
            place.put_blob(descriptor, &open)?;
        }
        for (descriptor, bytes) in &self.parts {
            place.put_document(descriptor, bytes)?;
        }
        let (descriptor, bytes) = &self.root;
        place.prepare_root(descriptor, bytes)
    }

    /// Sets the name, which was `current`; returns false if another writer came between.
    pub(crate) fn name(&self, place: &dyn CachePlace, current: Option<&Digest>) -> Result<bool> {
        let begun = Instant::now();
        if place.digest()?.as_ref() != current {
            return Ok(false);
        }
        let (root, bytes) = &self.root;
        Ok(match place.put_root(root, bytes)? {
            Named::Surely => true,
            Named::Beaten => false,
            Named::Perhaps => {
                // Another writer may have looked before this one wrote, and write after it. It has
                // had as long as this one's own requests took.
                std::thread::sleep(begun.elapsed().min(Duration::from_secs(1)).max(SETTLE));
                place.digest()?.as_ref() == Some(&root.digest)
            }
        })
    }

    /// Returns the digests of its documents.
    pub(crate) fn documents(&self) -> Vec<&Digest> {
        self.parts.iter().chain([&self.root]).map(|(descriptor, _)| &descriptor.digest).collect()
    }
}

/// A cache that was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Digest of the manifest or index; `None` if no cache exists yet.
    pub(crate) root: Option<Digest>,
    pub(crate) records: Records,
    /// The name is that of an image; the records are those that it carries.
    pub(crate) is_image: bool,
}

/// Returns the artifact of `records`.
pub(crate) fn artifact(records: &Records) -> Result<Artifact> {
    let bytes = records.encode()?;
    let config = Descriptor::new(RECORDS, Digest::of(&bytes), bytes.len() as u64);
    let mut blobs = vec![(config.clone(), bytes)];
    let mut layers: Vec<Descriptor> =
        records.layers().into_values().map(RecordedLayer::descriptor).collect();
    if layers.is_empty() {
        let empty = EMPTY_CONTENT;
        layers.push(Descriptor::new(media_type::OCI_EMPTY, Digest::of(empty), empty.len() as u64));
        blobs.push((layers[0].clone(), empty.to_vec()));
    }
    let mut parts = layers
        .chunks(LAYERS)
        .map(|layers| {
            let manifest = Manifest {
                schema_version: 2,
                media_type: Some(media_type::OCI_MANIFEST.to_owned()),
                artifact_type: Some(ARTIFACT.to_owned()),
                config: config.clone(),
                layers: layers.to_vec(),
                subject: None,
                annotations: BTreeMap::new(),
            };
            document(media_type::OCI_MANIFEST, &manifest)
        })
        .collect::<Result<Vec<Small>>>()?;
    let root = match parts.len() {
        1 => parts.remove(0),
        _ => {
            let members = parts.iter().map(|(descriptor, _)| descriptor.clone()).collect();
            let index = Index { artifact_type: Some(ARTIFACT.to_owned()), ..Index::new(members) };
            document(media_type::OCI_INDEX, &index)?
        }
    };
    Ok(Artifact { blobs, parts, root })
}

fn document(media: &str, value: &impl serde::Serialize) -> Result<Small> {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| Error::failed("cannot write the build cache").caused_by(error))?;
    Ok((Descriptor::new(media, Digest::of(&bytes), bytes.len() as u64), bytes))
}

/// Reads and verifies the cache at `place`, which may be an image that carries one.
pub(crate) fn read(place: &dyn CachePlace) -> Result<Found> {
    let Some((root, bytes)) = place.root()? else {
        return Ok(Found::default());
    };
    let found = |records, is_image| Found { root: Some(root.digest.clone()), records, is_image };
    let is_ours = |artifact: &Option<String>| artifact.as_deref() == Some(ARTIFACT);
    match Document::parse(&bytes, Some(&root.media_type))? {
        Document::Manifest(manifest) if is_ours(&manifest.artifact_type) => {
            Ok(found(records(place, &manifest)?, false))
        }
        Document::Manifest(manifest) if manifest.config.media_type == BUILDKIT => {
            Err(of_another_tool())
        }
        Document::Manifest(manifest) => Ok(found(inline::records(place, &manifest)?, true)),
        Document::Index(index) if is_ours(&index.artifact_type) => {
            // Each member has the same records.
            let first = index.manifests.first().ok_or_else(no_cache)?;
            Ok(found(records(place, &member(place, first)?.ok_or_else(no_cache)?)?, false))
        }
        Document::Index(index) => {
            if index.manifests.iter().any(|entry| entry.media_type == BUILDKIT) {
                return Err(of_another_tool());
            }
            let is_image =
                |entry: &&Descriptor| entry.platform.as_ref().is_some_and(|p| p.os != "unknown");
            let mut all = Records::default();
            for entry in index.manifests.iter().filter(is_image).take(PLATFORMS) {
                if let Some(manifest) = member(place, entry)? {
                    all.steps.extend(inline::records(place, &manifest)?.steps);
                }
            }
            Ok(found(all, true))
        }
    }
}

/// Reads a manifest that an index lists.
fn member(place: &dyn CachePlace, entry: &Descriptor) -> Result<Option<Manifest>> {
    let bytes = place.document(entry)?;
    match Document::parse(&bytes, Some(&entry.media_type))? {
        Document::Manifest(manifest) => Ok(Some(manifest)),
        Document::Index(_) => Ok(None),
    }
}

fn records(place: &dyn CachePlace, manifest: &Manifest) -> Result<Records> {
    if manifest.config.media_type != RECORDS {
        return Err(no_cache());
    }
    Records::decode(small_blob(place, &manifest.config, MAX_COMPRESSED)?)
}

fn no_cache() -> Error {
    Error::bad_content("it has no records")
}

fn of_another_tool() -> Error {
    Error::bad_content("it is the cache of BuildKit")
        .hint("use a name of its own for the build cache: `--cache-to REGISTRY/NAME/cache`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::directory::DirectoryPlace;
    use crate::cache::records::{Basis, CachedLayer, Step};
    use imgctl_base::image::descriptor::LAYER_KIND;

    #[test]
    fn many_layers_are_listed_in_manifests_that_every_registry_takes() {
        let count = 2 * LAYERS + 1;
        let step = |number: usize| {
            let digest = Digest::of(&number.to_le_bytes());
            let mut descriptor = Descriptor::new(media_type::OCI_LAYER_ZSTD, digest.clone(), 7);
            descriptor.annotations.insert(LAYER_KIND.to_owned(), "rootfs".to_owned());
            let layer = CachedLayer { descriptor, diff_id: digest, newest: 1 };
            let layers = vec![RecordedLayer::new(&layer, std::iter::empty()).unwrap()];
            (format!("{number:064x}"), Step { basis: Basis::Run, used: 3, layers, signature: None })
        };
        let records = Records::new((0..count).map(step).collect());
        let artifact = artifact(&records).unwrap();
        assert_eq!(artifact.parts.len(), 3);
        let documents = artifact.parts.iter().chain([&artifact.root]);
        assert!(documents.map(|(_, bytes)| bytes.len()).max().unwrap() < 1 << 20);
        let directory = tempfile::tempdir().unwrap();
        let place = DirectoryPlace::new(directory.path(), "latest");
        artifact.write(&place).unwrap();
        assert!(artifact.name(&place, None).unwrap());
        let found = read(&place).unwrap();
        assert_eq!(found.root.as_ref(), Some(&artifact.root.0.digest));
        assert_eq!(found.records, records);
    }
}
