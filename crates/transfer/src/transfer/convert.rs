//! Converts OCI manifests to Docker schema 2. Layers and configs stay as they are, except zstd
//! layers, which Docker schema 2 does not support: these are recompressed with gzip.

use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::{Descriptor, Manifest, media_type};
use imgctl_store::layer::Compression;
use imgctl_store::layer::recompress::recompress;
use imgctl_store::store::{Image, Store};

/// Compression level of recompressed layers.
const GZIP_LEVEL: u32 = 6;

/// Stores a Docker schema 2 manifest for the image and returns the image with it.
pub(crate) fn to_docker(store: &Store, image: &Image) -> Result<Image> {
    let mut manifest = image.manifest.clone();
    manifest.media_type = Some(media_type::DOCKER_MANIFEST.to_owned());
    media_type::DOCKER_CONFIG.clone_into(&mut manifest.config.media_type);
    // Docker's schema has none of these fields (its parsers refuse or drop them).
    manifest.annotations.clear();
    manifest.artifact_type = None;
    manifest.subject = None;
    for (layer, (_, diff_id)) in manifest.layers.iter_mut().zip(image.layers()) {
        layer.annotations.clear();
        let media = match layer.media_type.as_str() {
            media_type::OCI_LAYER | media_type::DOCKER_LAYER => media_type::DOCKER_LAYER,
            media_type::OCI_LAYER_GZIP | media_type::DOCKER_LAYER_GZIP => {
                media_type::DOCKER_LAYER_GZIP
            }
            zstd if zstd.ends_with("zstd") => {
                let gzip = recompressed(store, layer, diff_id)
                    .context(|| format!("cannot compress layer {} with gzip", layer.digest))?;
                *layer = gzip;
                continue;
            }
            other => {
                return Err(Error::usage(format!(
                    "layer {} is {other}, which Docker's schema 2 does not have",
                    layer.digest
                ))
                .hint("use an OCI format"));
            }
        };
        media.clone_into(&mut layer.media_type);
    }
    stored(store, image, manifest)
}

fn stored(store: &Store, image: &Image, manifest: Manifest) -> Result<Image> {
    let bytes = serde_json::to_vec(&manifest)
        .map_err(|error| Error::failed("cannot encode the manifest").caused_by(error))?;
    let media = manifest.media_type.clone().unwrap_or_default();
    let mut descriptor = Descriptor::new(&media, store.put_blob(&bytes)?, bytes.len() as u64);
    descriptor.platform.clone_from(&image.descriptor.platform);
    Ok(Image {
        reference: image.reference.clone(),
        descriptor,
        manifest,
        config: image.config.clone(),
    })
}

/// Recompresses a layer's tar with gzip. The resulting bytes depend only on the tar.
fn recompressed(
    store: &Store,
    layer: &Descriptor,
    diff_id: &imgctl_base::image::Digest,
) -> Result<Descriptor> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let compression = Compression::Gzip { level: GZIP_LEVEL };
    let blob = store.open_blob(&layer.digest)?;
    let done = recompress(blob, store.ingest()?, compression, threads)?;
    if done.diff_id != *diff_id {
        return Err(Error::bad_content(format!(
            "its content has the diff-id {}, the config says {diff_id}",
            done.diff_id
        )));
    }
    store.commit(done.sink, &done.digest)?;
    Ok(Descriptor::new(media_type::DOCKER_LAYER_GZIP, done.digest, done.size))
}
