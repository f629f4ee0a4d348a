//! An image that comes into the store: blobs that can be gone on with after a cut, and, if asked
//! for, layers that are unpacked while they are downloaded.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::error::{Context, Error, Kind, Result};
use crate::image::{Descriptor, Digest, ImageConfig, Manifest, Platform, Reference, media_type};
use crate::layer::Limits;
use crate::mount::layers::{Consume, LayerBlobs, LayerOf, distinct_layers};
use crate::mount::snapshots;
use crate::store::Store;
use crate::store::images::is_platform;
use crate::transfer::plan::{Plan, read_small};
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{ImageSource, counted};
use crate::transfer::workers::lock;

/// Layers downloaded and unpacked side by side: each keeps several threads busy once its bytes
/// are there, but they come from far away. Each takes about 10 MiB of memory.
const UNPACKING: usize = 3;

/// A name, or several, of the store.
pub(crate) struct StoreSink {
    store: Store,
    references: Vec<Reference>,
    unpack: bool,
}

impl StoreSink {
    /// For an image that is going to be called `references`; without any it gets no name.
    pub(crate) fn new(store: &Store, references: &[Reference]) -> Self {
        Self {
            store: store.clone(),
            references: references.to_vec(),
            unpack: false,
        }
    }

    /// Unpacks layers, too, so that the image can be mounted at once. Of several platforms only
    /// this machine's.
    pub(crate) fn unpacking(mut self, unpack: bool) -> Self {
        self.unpack = unpack;
        self
    }

    fn download(
        &self,
        blob: &Descriptor,
        source: &dyn ImageSource,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<bool> {
        let rest = |offset| Ok(counted(source.open(blob, offset)?, moved));
        self.store.complete_blob(&blob.digest, blob.size, &rest)
    }

    /// The layers that are to be unpacked; their config is brought in.
    fn layers(
        &self,
        manifest: &Manifest,
        source: &dyn ImageSource,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<(Vec<LayerOf>, bool)> {
        let is_new = self.download(&manifest.config, source, moved)?;
        let bytes = self
            .store
            .read_blob(&manifest.config.digest, crate::image::config::MAX_CONFIG)?;
        let config = ImageConfig::parse(&bytes)?;
        let (layers, ids) = (&manifest.layers, config.rootfs.diff_ids);
        if layers.len() != ids.len() {
            return Err(Error::bad_content(format!(
                "the image has {} layers but its config lists {}",
                layers.len(),
                ids.len()
            )));
        }
        let layers = layers.iter().cloned().zip(ids);
        let layers = layers.map(|(blob, diff_id)| LayerOf { blob, diff_id });
        Ok((distinct_layers(layers), is_new))
    }
}

impl ImageSink for StoreSink {
    fn describe(&self) -> String {
        "the store".to_owned()
    }

    fn prepare(
        &self,
        plan: &Plan,
        source: &dyn ImageSource,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<HashSet<Digest>> {
        for (descriptor, manifest) in &plan.manifests {
            let is_root = descriptor.digest == plan.root.descriptor.digest;
            if is_root || is_platform(descriptor) {
                check_is_image(descriptor, manifest)?;
            }
        }
        let mut brought = HashSet::new();
        if !self.unpack {
            return Ok(brought);
        }
        for manifest in to_unpack(plan, source)? {
            let (layers, config_is_new) = self.layers(manifest, source, moved)?;
            if config_is_new {
                brought.insert(manifest.config.digest.clone());
            }
            let downloads = Downloads {
                store: &self.store,
                source,
                moved,
                brought: Mutex::new(HashSet::new()),
                retry: Mutex::new(false),
            };
            let mut unpacked = snapshots::unpack_from(&self.store, &layers, &downloads, UNPACKING);
            if unpacked.is_err() && std::mem::take(&mut *lock(&downloads.retry)) {
                unpacked = snapshots::unpack_from(&self.store, &layers, &downloads, UNPACKING);
            }
            for note in unpacked? {
                tracing::warn!("{note}");
            }
            brought.extend(std::mem::take(&mut *lock(&downloads.brought)));
        }
        Ok(brought)
    }

    fn takes_foreign_layers(&self) -> bool {
        true
    }

    fn put_blob(
        &self,
        descriptor: &Descriptor,
        source: &dyn ImageSource,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<Put> {
        Ok(match self.download(descriptor, source, moved)? {
            true => Put::Copied,
            false => Put::Existed,
        })
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        let Descriptor { digest, size, .. } = descriptor;
        self.store.import_blob(&mut &*bytes, digest, *size)
    }

    fn finish(&self, root: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.put_document(root, bytes)?;
        // Reads every config: layers and diff-ids must agree in number.
        self.store.platform_images(root)?;
        let references: Vec<Reference> = self.references.iter().map(Reference::qualified).collect();
        self.store.tag(&references, root)
    }
}

/// The store is for images: what else a registry may hold cannot be mounted or built on.
fn check_is_image(descriptor: &Descriptor, manifest: &Manifest) -> Result<()> {
    let digest = &descriptor.digest;
    let refuse = |why: String| {
        Err(
            Error::bad_content(format!("{digest} cannot be kept in the store: {why}"))
                .hint("`imgctl copy` moves it from one registry to another, or to oci:DIRECTORY"),
        )
    };
    let config = &*manifest.config.media_type;
    if !matches!(config, media_type::OCI_CONFIG | media_type::DOCKER_CONFIG) {
        return refuse(format!("it is an artifact (its config is {config})"));
    }
    match manifest
        .layers
        .iter()
        .find(|layer| !media_type::is_layer(&layer.media_type))
    {
        Some(layer) => refuse(format!(
            "its layer {} is {}, which is no file system layer",
            layer.digest, layer.media_type
        )),
        None => Ok(()),
    }
}

/// The only image there is, else those for this machine.
fn to_unpack<'a>(plan: &'a Plan, source: &dyn ImageSource) -> Result<Vec<&'a Manifest>> {
    if let [(_, only)] = &plan.manifests[..] {
        return Ok(vec![only]);
    }
    let host = Platform::host();
    let mut chosen = Vec::new();
    for (descriptor, manifest) in &plan.manifests {
        if !is_platform(descriptor) {
            continue;
        }
        let platform = match &descriptor.platform {
            Some(platform) => platform.clone(),
            None => ImageConfig::parse(&read_small(source, &manifest.config)?)?.platform(),
        };
        if platform.distance_to(&host).is_some() {
            chosen.push(manifest);
        }
    }
    Ok(chosen)
}

/// Layers as they are unpacked: out of the store where they are there, else from the source, kept
/// on the way.
struct Downloads<'a> {
    store: &'a Store,
    source: &'a dyn ImageSource,
    moved: &'a (dyn Fn(u64) + Sync),
    /// Blobs that were not here before.
    brought: Mutex<HashSet<Digest>>,
    /// What an earlier attempt left may have been the cause of a failure: worth another try.
    retry: Mutex<bool>,
}

impl LayerBlobs for Downloads<'_> {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    fn read(&self, layer: &LayerOf, consume: &mut Consume<'_>) -> Result<()> {
        let Descriptor { digest, size, .. } = &layer.blob;
        let Some(mut partial) = self.store.partial(digest, *size)? else {
            return consume(&mut self.store.open_blob(digest)?);
        };
        let is_resumed = partial.length() > 0;
        let rest = |offset| Ok(counted(self.source.open(&layer.blob, offset)?, self.moved));
        let consumed = consume(&mut partial.reader(&rest));
        if let Err(error) = consumed {
            let is_about_content = matches!(error.kind(), Kind::BadContent | Kind::Failed);
            if partial.is_cut() || !is_about_content {
                return Err(error);
            }
            // A blob of other content fails in many ways; its digest tells that it is one.
            return Err(match self.store.finish_partial(partial, &rest) {
                Ok(()) => {
                    lock(&self.brought).insert(digest.clone());
                    *lock(&self.retry) |= is_resumed;
                    error
                }
                Err(cause) if cause.kind() == Kind::BadContent => cause,
                Err(_) => error,
            });
        }
        self.store
            .commit_partial(partial)
            .context(|| format!("cannot keep blob {digest}"))?;
        lock(&self.brought).insert(digest.clone());
        Ok(())
    }
}
