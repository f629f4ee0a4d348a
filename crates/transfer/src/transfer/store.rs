//! Reads images from the store and writes them there: interrupted downloads of blobs can be
//! resumed, and layers are optionally unpacked during the download.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::sync::Mutex;

use crate::transfer::arbiter::Arbiter;
use crate::transfer::artifacts;
use crate::transfer::partial::local::{LocalBlobs, StoreBlobs};
use crate::transfer::plan::{Plan, read_small};
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{Blobs, ImageSource, Kept, SourceDocument, from_offset};
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{
    Descriptor, Digest, ImageConfig, Manifest, Platform, Reference, Verdict, media_type,
};
use imgctl_base::workers::lock;
use imgctl_layer::Limits;
use imgctl_store::mount::layers::{Consume, LayerBlobs, LayerOf, distinct_layers};
use imgctl_store::mount::snapshots;
use imgctl_store::store::images::is_platform;
use imgctl_store::store::{Lease, Named, Store};

/// One image in the store.
pub(crate) struct StoreSource {
    store: Store,
    name: String,
    descriptor: Descriptor,
    lease: Lease,
    named: Named,
    arbiter: Arbiter,
}

impl StoreSource {
    /// Creates a source for the image `named`. All its content is protected from `prune` while this
    /// value lives.
    pub(crate) fn new(store: &Store, named: &Named, arbiter: &Arbiter) -> Result<Self> {
        let descriptor = Descriptor {
            annotations: std::collections::BTreeMap::new(),
            ..named.descriptor.clone()
        };
        let source = Self {
            store: store.clone(),
            name: match &named.reference {
                Some(reference) => reference.to_string(),
                None => descriptor.digest.to_string(),
            },
            descriptor,
            lease: store.lease()?,
            named: named.clone(),
            arbiter: arbiter.clone(),
        };
        let parts = store.parts(&source.descriptor)?;
        source.lease.hold_all(parts.keys())?;
        Ok(source)
    }

    /// Sets another name for messages.
    pub(crate) fn called(mut self, name: String) -> Self {
        self.name = name;
        self
    }
}

impl ImageSource for StoreSource {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn root(&self) -> Result<SourceDocument> {
        Ok(SourceDocument {
            bytes: self.document(&self.descriptor)?,
            descriptor: self.descriptor.clone(),
        })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.store.read_blob(&descriptor.digest, MAX_DOCUMENT)
    }

    fn admit(&self, _: &Digest, _: &[Digest]) -> Result<Verdict> {
        self.arbiter.admit_output(&self.store, &self.named)
    }

    fn kept(&self) -> Result<Option<Kept<'_>>> {
        artifacts::of(&self.store, &self.descriptor).map(Some)
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let digest = &descriptor.digest;
        from_offset(self.store.open_blob(digest)?, offset, digest)
    }

    fn local_file(&self, descriptor: &Descriptor) -> Option<File> {
        self.store.open_blob(&descriptor.digest).ok()
    }
}

/// Number of layers downloaded and unpacked in parallel: each keeps several threads busy once its
/// bytes have arrived, but the download takes time. Each takes about 10 MiB of memory.
const UNPACKING: usize = 3;

/// One or more names in the store.
pub(crate) struct StoreSink {
    store: Store,
    references: Vec<Reference>,
    unpack: bool,
    /// Missing layers stay in the registry.
    has_remote_layers: bool,
}

impl StoreSink {
    /// Creates a sink for an image with the names `references`; without any, the image stays
    /// unnamed.
    pub(crate) fn new(store: &Store, references: &[Reference]) -> Self {
        let references = references.to_vec();
        Self { store: store.clone(), references, unpack: false, has_remote_layers: false }
    }

    /// Also unpacks the layers, so that the image can be mounted at once; of a multi-platform
    /// image, only those for this machine's platform.
    pub(crate) fn unpacking(mut self, unpack: bool) -> Self {
        self.unpack = unpack;
        self
    }

    /// Marks the image's names: some of its layers stay in the registry.
    pub(crate) fn with_remote_layers(mut self) -> Self {
        self.has_remote_layers = true;
        self
    }

    fn download(&self, blob: &Descriptor, blobs: &Blobs<'_>) -> Result<bool> {
        self.store.complete_blob(&blob.digest, blob.size, &|offset| blobs.read(blob, offset))
    }

    /// Returns the layers to unpack, after importing their config.
    fn layers(&self, manifest: &Manifest, blobs: &Blobs<'_>) -> Result<(Vec<LayerOf>, bool)> {
        let is_new = self.download(&manifest.config, blobs)?;
        let bytes = self
            .store
            .read_blob(&manifest.config.digest, imgctl_base::image::config::MAX_CONFIG)?;
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

    fn prepare(&self, plan: &Plan, blobs: &Blobs<'_>) -> Result<HashSet<Digest>> {
        for (descriptor, manifest) in &plan.manifests {
            let is_root = descriptor.digest == plan.root.descriptor.digest;
            if is_root || is_platform(descriptor) {
                check_is_image(descriptor, manifest)?;
            }
        }
        self.store.check_room_for(&plan.blobs)?;
        let mut brought = HashSet::new();
        if !self.unpack {
            return Ok(brought);
        }
        for manifest in to_unpack(plan, blobs.source)? {
            let (layers, config_is_new) = self.layers(manifest, blobs)?;
            if config_is_new {
                brought.insert(manifest.config.digest.clone());
            }
            let downloads = Downloads {
                store: &self.store,
                blobs,
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

    fn local(&self) -> Option<Box<dyn LocalBlobs>> {
        StoreBlobs::of(&self.store)
    }

    fn takes_foreign_layers(&self) -> bool {
        true
    }

    fn put_blob(&self, descriptor: &Descriptor, blobs: &Blobs<'_>) -> Result<Put> {
        Ok(if self.download(descriptor, blobs)? { Put::Copied } else { Put::Existed })
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        let Descriptor { digest, size, .. } = descriptor;
        self.store.import_blob(&mut &*bytes, digest, *size)
    }

    fn finish(&self, root: &Descriptor, bytes: &[u8], verdict: &Verdict) -> Result<()> {
        self.put_document(root, bytes)?;
        // Reads every config: the number of layers and of diff IDs must match.
        self.store.platform_images(root)?;
        let references: Vec<Reference> = self.references.iter().map(Reference::qualified).collect();
        if self.has_remote_layers {
            self.store.tag_with_remote_layers(&references, root, verdict)
        } else {
            self.store.tag(&references, root, verdict)
        }
    }
}

/// Refuses artifacts: the store holds only images, because other registry content cannot be mounted
/// or built on.
fn check_is_image(descriptor: &Descriptor, manifest: &Manifest) -> Result<()> {
    let digest = &descriptor.digest;
    let refuse = |why: String| {
        Err(Error::bad_content(format!("cannot store {digest}: {why}")).hint(
            "use `imgctl copy` to copy it from one registry to another, or to \
                       oci:DIRECTORY",
        ))
    };
    if !manifest.is_image() {
        let config = &*manifest.config.media_type;
        return refuse(format!("it is an artifact (its config is {config})"));
    }
    match manifest.layers.iter().find(|layer| !media_type::is_layer(&layer.media_type)) {
        Some(layer) => refuse(format!(
            "its layer {} is {}, which is not a file system layer",
            layer.digest, layer.media_type
        )),
        None => Ok(()),
    }
}

/// The only image, or otherwise the images for this machine's platform.
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

/// Provides layers for unpacking: from the store if they are there, otherwise from the source,
/// storing them along the way.
struct Downloads<'a> {
    store: &'a Store,
    blobs: &'a Blobs<'a>,
    /// Blobs that were not in the store before.
    brought: Mutex<HashSet<Digest>>,
    /// Set if data from an earlier attempt may have caused a failure, so that a retry is
    /// worthwhile.
    retry: Mutex<bool>,
}

impl LayerBlobs for Downloads<'_> {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    fn are_verified(&self) -> bool {
        false
    }

    fn read(&self, layer: &LayerOf, consume: &mut Consume<'_>) -> Result<()> {
        let Descriptor { digest, size, .. } = &layer.blob;
        let Some(mut partial) = self.store.partial(digest, *size)? else {
            return consume(&mut self.store.open_blob(digest)?);
        };
        let is_resumed = partial.length() > 0;
        let rest = |offset| self.blobs.read(&layer.blob, offset);
        let consumed = consume(&mut partial.reader(&rest));
        if let Err(error) = consumed {
            let is_about_content = matches!(error.kind(), Kind::BadContent | Kind::Failed);
            if partial.is_cut() || !is_about_content {
                return Err(error);
            }
            // A blob with other content can fail in many ways; checking its digest identifies this
            // case.
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
        self.store.commit_partial(partial).context(|| format!("cannot store blob {digest}"))?;
        lock(&self.brought).insert(digest.clone());
        Ok(())
    }
}
