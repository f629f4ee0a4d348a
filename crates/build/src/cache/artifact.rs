//! The artifact that a cache is in a registry or a layout: a manifest whose config is the records and
//! whose layers are all layers that they name, so that a registry keeps them. Too many layers for one
//! manifest make several, under an index.

use std::collections::BTreeMap;
use std::io::Read as _;

use crate::cache::place::CachePlace;
use crate::cache::records::{ARTIFACT, MAX_COMPRESSED, RecordedLayer, Records};
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Hasher, Index, Manifest, media_type};

/// Media type of its records.
const RECORDS: &str = "application/vnd.imgctl.buildcache.records.v1.json+zstd";
/// Layers of one manifest: it has less than 1 MiB, which every registry accepts.
const LAYERS: usize = 4000;
/// OCI's empty blob, for a cache without layers (image-spec, manifest.md).
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const EMPTY_CONTENT: &[u8] = b"{}";

/// A document or small blob with its descriptor.
pub(crate) type Small = (Descriptor, Vec<u8>);

/// Blobs to write in addition to the layers, in this order; the root comes last.
pub(crate) struct Artifact {
    pub(crate) blobs: Vec<Small>,
    pub(crate) parts: Vec<Small>,
    pub(crate) root: Small,
}

/// A cache that was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Digest of the manifest or index; `None` if no cache exists yet.
    pub(crate) root: Option<Digest>,
    pub(crate) records: Records,
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
        layers.push(Descriptor::new(EMPTY, Digest::of(empty), empty.len() as u64));
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

/// Reads and verifies the cache at `place`.
pub(crate) fn read(place: &dyn CachePlace) -> Result<Found> {
    let Some((root, bytes)) = place.root()? else {
        return Ok(Found::default());
    };
    let manifest = match Document::parse(&bytes, Some(&root.media_type))? {
        Document::Manifest(manifest) => manifest,
        Document::Index(index) if index.artifact_type.as_deref() == Some(ARTIFACT) => {
            // Each member has the same records.
            let first = index.manifests.first().ok_or_else(no_cache)?;
            let bytes = place.document(first)?;
            match Document::parse(&bytes, Some(&first.media_type))? {
                Document::Manifest(manifest) => manifest,
                Document::Index(_) => return Err(no_cache()),
            }
        }
        Document::Index(_) => return Err(no_cache()),
    };
    if manifest.artifact_type.as_deref() != Some(ARTIFACT) || manifest.config.media_type != RECORDS
    {
        return Err(no_cache());
    }
    let records = Records::decode(small_blob(place, &manifest.config)?)?;
    Ok(Found { root: Some(root.digest), records })
}

fn no_cache() -> Error {
    Error::bad_content("it is an image, or the cache of another tool")
        .hint("use a name of its own for the build cache: `--cache-to REGISTRY/NAME/cache`")
}

/// Reads a blob into memory and verifies it.
fn small_blob(place: &dyn CachePlace, blob: &Descriptor) -> Result<Vec<u8>> {
    if blob.size > MAX_COMPRESSED {
        return Err(Error::bad_content(format!(
            "the records have {} bytes; at most {MAX_COMPRESSED} are allowed",
            blob.size
        )));
    }
    let mut bytes = Vec::new();
    place
        .open(blob, 0)?
        .take(blob.size + 1)
        .read_to_end(&mut bytes)
        .doing(|| format!("cannot read blob {}", blob.digest))?;
    let mut hasher = Hasher::with(blob.digest.algorithm());
    hasher.update(&bytes);
    if bytes.len() as u64 != blob.size || hasher.finish() != blob.digest {
        return Err(Error::bad_content(format!("blob {} has other content", blob.digest)));
    }
    Ok(bytes)
}
