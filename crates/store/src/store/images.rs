//! Names: the store's `index.json`, which maps full references to descriptors, and images read by
//! name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;

use crate::store::blobs::missing;
use crate::store::index::{MAX_TABLE, NameTable};
use crate::store::{Named, Store};
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::sync_directory;
use imgctl_base::fs::lock::Mode;
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{
    Algorithm, Descriptor, Digest, Document, ImageConfig, Index, Manifest, Platform, Reference,
    Verdict, media_type,
};
use imgctl_layer::{ContentReader, Found, Toc, Tree, chunked};

/// Maximum nesting of indexes.
pub const MAX_NESTING: usize = 4;

/// A name (`None` = an unnamed entry), what it means, and why the image may have it.
pub type Naming<'a> = (Option<Reference>, &'a Descriptor, &'a Verdict);

/// One image of one platform, read from the store.
#[derive(Clone, Debug)]
pub struct Image {
    /// Name that was used to find the image, if any.
    pub reference: Option<Reference>,
    /// Descriptor of the manifest.
    pub descriptor: Descriptor,
    pub manifest: Manifest,
    pub config: ImageConfig,
}

impl Image {
    /// Returns Docker's image ID: the config's digest.
    pub fn id(&self) -> &Digest {
        &self.manifest.config.digest
    }

    /// Returns everything in the store that belongs to the image: manifest, config, layers, and the
    /// diff IDs that its layers' snapshots and tables are stored under.
    pub fn digests(&self) -> impl Iterator<Item = &Digest> {
        [&self.descriptor.digest, &self.manifest.config.digest]
            .into_iter()
            .chain(self.manifest.layers.iter().map(|layer| &layer.digest))
            .chain(&self.config.rootfs.diff_ids)
    }

    /// Returns each layer's descriptor with its diff ID, lowest first.
    pub fn layers(&self) -> impl DoubleEndedIterator<Item = (&Descriptor, &Digest)> {
        self.manifest.layers.iter().zip(&self.config.rootfs.diff_ids)
    }
}

impl Store {
    /// Returns all names, sorted; unnamed entries last.
    pub fn names(&self) -> Result<Vec<Named>> {
        Ok(self.name_table()?.names())
    }

    /// Reads the image called `name` for `platform`. Resolves an index; fails for a single manifest
    /// of another platform unless `platform` is `None`. Checks media types, digests, and that the
    /// numbers of layers and diff IDs match.
    pub fn image(&self, name: &str, platform: Option<&Platform>) -> Result<Image> {
        let named = self.resolve(name)?;
        let mut image = self
            .image_at(&named.descriptor, platform)
            .context(|| format!("cannot use image {name}"))?;
        image.reference = named.reference;
        Ok(image)
    }

    /// Reads the image that a manifest or index descriptor refers to. Its objects are safe from
    /// `prune` while this store value lives.
    pub fn image_at(&self, descriptor: &Descriptor, platform: Option<&Platform>) -> Result<Image> {
        let image = self.read_image(descriptor, platform)?;
        self.hold_for_reading(image.digests())?;
        // The image was claimed before this check, so objects that exist now will stay.
        self.open_blob(&image.descriptor.digest)?;
        Ok(image)
    }

    /// Reads an image without claiming it.
    pub(super) fn read_image(
        &self,
        descriptor: &Descriptor,
        platform: Option<&Platform>,
    ) -> Result<Image> {
        let mut descriptor = descriptor.clone();
        for _ in 0..MAX_NESTING {
            match self.document(&descriptor)? {
                Document::Index(index) => descriptor = select(&index, platform)?.clone(),
                Document::Manifest(manifest) => {
                    let image = self.image_of(descriptor, manifest)?;
                    check_platform(&image.config, platform)?;
                    return Ok(image);
                }
            }
        }
        Err(Error::bad_content(format!(
            "index {} nests more than {MAX_NESTING} indexes",
            descriptor.digest
        )))
    }

    /// Reads a manifest's config and checks that the two belong together.
    pub fn image_of(&self, descriptor: Descriptor, manifest: Manifest) -> Result<Image> {
        let digest = &descriptor.digest;
        if !manifest.is_image() {
            let config_type = &manifest.config.media_type;
            return Err(Error::bad_content(format!(
                "{digest} is an artifact (its config is {config_type}), not an image"
            )));
        }
        if let Some(layer) =
            manifest.layers.iter().find(|layer| !media_type::is_layer(&layer.media_type))
        {
            return Err(Error::bad_content(format!(
                "layer {} of {digest} is {}, which is not a file system layer",
                layer.digest, layer.media_type
            )));
        }
        let bytes = self.read_sized(&manifest.config, MAX_CONFIG)?;
        let config = ImageConfig::parse(&bytes).context(|| format!("cannot use {digest}"))?;
        let (layers, ids) = (manifest.layers.len(), config.rootfs.diff_ids.len());
        if layers != ids {
            return Err(Error::bad_content(format!(
                "image {digest} has {layers} layers but its config lists {ids}"
            )));
        }
        Ok(Image { reference: None, descriptor, manifest, config })
    }

    /// Reads a manifest or an index and checks size, digest and format.
    pub fn document(&self, descriptor: &Descriptor) -> Result<Document> {
        let bytes = self.read_sized(descriptor, MAX_DOCUMENT)?;
        Document::parse(&bytes, Some(&descriptor.media_type))
            .context(|| format!("cannot use {}", descriptor.digest))
    }

    fn read_sized(&self, descriptor: &Descriptor, limit: u64) -> Result<Vec<u8>> {
        let bytes = self.read_blob(&descriptor.digest, limit)?;
        if bytes.len() as u64 != descriptor.size {
            return Err(Error::bad_content(format!(
                "blob {} has {} bytes; its descriptor says {}",
                descriptor.digest,
                bytes.len(),
                descriptor.size
            )));
        }
        Ok(bytes)
    }

    /// Points `references` (or, if empty, an unnamed entry) at `descriptor`, after making all
    /// previous writes durable. An image that loses its last name stays as `<none>`. Fails for an
    /// incomplete image.
    pub fn tag(
        &self,
        references: &[Reference],
        descriptor: &Descriptor,
        verdict: &Verdict,
    ) -> Result<()> {
        let named =
            references.iter().map(|reference| (Some(reference.clone()), descriptor, verdict));
        let names: Vec<Naming<'_>> = named.collect();
        if names.is_empty() {
            return self.tag_all(&[(None, descriptor, verdict)]);
        }
        self.tag_all(&names)
    }

    /// Sets several names (`None` = an unnamed entry) atomically.
    pub fn tag_all(&self, names: &[Naming<'_>]) -> Result<()> {
        let targets: Vec<&Descriptor> =
            names.iter().map(|(_, descriptor, _)| *descriptor).collect();
        self.change_names(&targets, |table| {
            names.iter().try_for_each(|(reference, target, verdict)| match reference {
                Some(reference) => table.set(&reference.qualified(), target, verdict.origin()),
                None => table.add_unnamed(target, verdict.origin()),
            })
        })
    }

    /// Points `reference` at a manifest list. The list itself must exist in the store; its members
    /// need not.
    pub fn tag_list(
        &self,
        reference: &Reference,
        list: &Descriptor,
        verdict: &Verdict,
    ) -> Result<()> {
        self.document(list)?;
        self.make_durable()?;
        let origin = verdict.origin();
        self.change_names(&[], |table| table.set(&reference.qualified(), list, origin))
    }

    /// Removes names; returns the descriptors that no longer have a name.
    pub fn untag(&self, names: &[Named]) -> Result<Vec<Descriptor>> {
        let mut gone: Vec<Descriptor> = Vec::new();
        self.change_names(&[], |table| {
            for named in names {
                table.remove(named);
            }
            for Named { descriptor, .. } in names {
                let known = gone.iter().any(|other| other.digest == descriptor.digest);
                if !known && !table.contains(&descriptor.digest) {
                    gone.push(descriptor.clone());
                }
            }
            Ok(())
        })?;
        Ok(gone)
    }

    /// Changes the table; all changes go through this function. Everything that the table names is
    /// on disk before the table is replaced.
    pub(super) fn change_names(
        &self,
        targets: &[&Descriptor],
        change: impl FnOnce(&mut NameTable) -> Result<()>,
    ) -> Result<()> {
        for target in targets {
            self.check_complete(target, MAX_NESTING)?;
        }
        if !targets.is_empty() {
            self.make_durable()?;
        }
        let _lock = self.lock(Mode::Exclusive)?;
        let mut table = self.name_table()?;
        change(&mut table)?;
        self.write_name_table(&table)
    }

    /// Replaces the table. The caller holds the exclusive lock.
    pub(super) fn write_name_table(&self, table: &NameTable) -> Result<()> {
        let path = self.path("index.json");
        let mut ingest = self.ingest()?;
        ingest.write_all(&table.to_bytes()?).path("write", &path)?;
        self.publish(ingest, &path, 0o644)?;
        if self.is_synced() {
            sync_directory(self.layout())?;
        }
        Ok(())
    }

    /// Reads the table. No lock is needed for a consistent state, because the table is replaced by
    /// rename.
    pub(super) fn name_table(&self) -> Result<NameTable> {
        let path = self.path("index.json");
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_TABLE).read_to_end(&mut bytes))
            .path("read", &path)?;
        NameTable::parse(&bytes)
    }

    /// Syncs the directories that contain new files, once per command, before a name is set; the files
    /// themselves were synced when they were complete. Does nothing in a store that does not sync.
    pub(super) fn make_durable(&self) -> Result<()> {
        if !self.is_synced() {
            return Ok(());
        }
        self.sync_unsynced()?;
        for algorithm in [Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512] {
            let directory = self.path("blobs").join(algorithm.as_str());
            if algorithm == Algorithm::Sha256 || directory.exists() {
                sync_directory(&directory)?;
            }
        }
        Ok(())
    }

    /// Fails if any part of an image is missing (platforms of an index can be missing if at least
    /// one exists).
    pub fn check_complete_image(&self, descriptor: &Descriptor) -> Result<()> {
        self.check_complete(descriptor, MAX_NESTING)
    }

    /// Checks existence and size of all parts of an image. A platform of an index can be absent as
    /// a whole, and layers that must not be distributed can stay at their URLs.
    fn check_complete(&self, descriptor: &Descriptor, nesting: usize) -> Result<()> {
        match self.document(descriptor)? {
            Document::Index(_) if nesting == 0 => {
                Err(Error::bad_content(format!("index {} is nested too deeply", descriptor.digest)))
            }
            Document::Index(index) => self.check_index(&index, nesting - 1),
            Document::Manifest(manifest) => [&manifest.config]
                .into_iter()
                .chain(&manifest.layers)
                .filter(|part| part.urls.is_empty())
                .try_for_each(|part| self.check_part(part)),
        }
        .context(|| format!("cannot name image {}", descriptor.digest))
    }

    /// Checks that at least one platform of an index is complete.
    fn check_index(&self, index: &Index, nesting: usize) -> Result<()> {
        let (mut complete, mut missing) = (false, None);
        for child in index.manifests.iter().filter(|child| is_platform(child)) {
            match self.check_complete(child, nesting) {
                Ok(()) => complete = true,
                Err(error) if error.kind() == Kind::NotFound => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
        match missing {
            Some(error) if !complete => Err(error),
            _ => Ok(()),
        }
    }

    /// Checks that the annotations of a layer name no list but the one at its end.
    fn check_lists(&self, part: &Descriptor) -> Result<()> {
        if part.annotations.is_empty() {
            return Ok(());
        }
        let blob = self.open_blob(&part.digest)?;
        chunked::check_annotations(&blob, &part.annotations)
            .context(|| format!("cannot use layer {}", part.digest))
    }

    pub(super) fn check_part(&self, part: &Descriptor) -> Result<()> {
        match self.blob_size(&part.digest)? {
            Some(size) if size == part.size => self.check_lists(part),
            Some(size) => Err(Error::bad_content(format!(
                "blob {} has {size} bytes; its descriptor says {}",
                part.digest, part.size
            ))),
            None => Err(missing(&part.digest)),
        }
    }
}

/// Reports whether an index entry is a supported manifest or index (other tools' indexes can list
/// other objects).
pub fn is_document(entry: &Descriptor) -> bool {
    media_type::is_index(&entry.media_type) || media_type::is_manifest(&entry.media_type)
}

/// Reports whether an index entry is an image of some platform. Attestations (`unknown/unknown`)
/// and unsupported entries are not.
pub fn is_platform(entry: &Descriptor) -> bool {
    is_document(entry) && entry.platform.as_ref().is_none_or(|p| p.os != "unknown")
}

/// Returns the index entry for `platform`. Without a platform, returns the host's entry or
/// otherwise the only one.
pub fn select<'a>(index: &'a Index, platform: Option<&Platform>) -> Result<&'a Descriptor> {
    let host = Platform::host();
    if let Some(entry) = index.select(platform.unwrap_or(&host))? {
        return Ok(entry);
    }
    let images: Vec<&Descriptor> =
        index.manifests.iter().filter(|entry| is_platform(entry)).collect();
    if let ([only], None) = (&images[..], platform) {
        return Ok(only);
    }
    let list = |entry: &&Descriptor| entry.platform.as_ref().map(ToString::to_string);
    let offered: Vec<String> = images.iter().filter_map(list).collect();
    Err(Error::not_found(format!(
        "the image is not available for {}, only for {}",
        platform.unwrap_or(&host),
        if offered.is_empty() { "no platform".to_owned() } else { offered.join(", ") }
    ))
    .hint("choose one of them with --platform"))
}

/// Fails unless an image with that config supports the platform.
pub fn check_platform(config: &ImageConfig, wanted: Option<&Platform>) -> Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    // Simple tools create images without a platform; such images run on any platform.
    let unknown = config.os.is_empty() && config.architecture.is_empty();
    if unknown || config.platform().distance_to(wanted).is_some() {
        return Ok(());
    }
    Err(Error::not_found(format!("the image is for {}, not for {wanted}", config.platform()))
        .hint("load the image for that platform, or choose another with --platform"))
}

/// Returns the merged tree of the lowest `count` layers of `image`.
pub fn tree_of(store: &Store, image: &Image, count: usize) -> Result<Tree> {
    let mut tree = Tree::new();
    for (layer, diff_id) in image.layers().take(count) {
        add_layer(store, image, &mut tree, store.toc(&layer.digest, diff_id)?)?;
    }
    Ok(tree)
}

/// Adds a layer of `image` to its tree. All layers together may have as many entries as one, so whoever adds
/// each when it is read never holds much more.
pub fn add_layer(
    store: &Store,
    image: &Image,
    tree: &mut Tree,
    toc: impl Into<Arc<Toc>>,
) -> Result<()> {
    tree.apply(toc)?;
    let most = store.limits().entries;
    if tree.entries() > most {
        let name = match &image.reference {
            Some(name) => name.to_string(),
            None => image.descriptor.digest.to_string(),
        };
        return Err(Error::bad_content(format!(
            "the layers of {name} have more than {most} entries together"
        ))
        .hint("--max-entries raises the limit; a million entries take about 200 MiB of memory"));
    }
    Ok(())
}

/// Returns the merged tree of all layers.
pub fn whole_tree(store: &Store, image: &Image) -> Result<Tree> {
    tree_of(store, image, image.manifest.layers.len())
}

/// Returns the content of a file of at most `limit` bytes that `found` in the tree of `image`;
/// `None` if it has none.
pub fn content(
    store: &Store,
    image: &Image,
    found: &Found<'_>,
    limit: u64,
) -> Result<Option<Vec<u8>>> {
    let bytes = beginning(store, image, found, limit + 1)?;
    if bytes.as_ref().is_some_and(|bytes| bytes.len() as u64 > limit) {
        return Err(Error::bad_content(format!("the file exceeds {limit} bytes")));
    }
    Ok(bytes)
}

/// Returns at most the first `most` bytes of a file that `found` in the tree of `image`; `None` if it
/// has no content.
pub fn beginning(
    store: &Store,
    image: &Image,
    found: &Found<'_>,
    most: u64,
) -> Result<Option<Vec<u8>>> {
    let Some((layer, diff_id)) = found.layer.and_then(|index| image.layers().nth(index)) else {
        return Ok(None);
    };
    let toc = Arc::new(store.toc(&layer.digest, diff_id)?);
    let mut reader = ContentReader::new(store.open_blob(&layer.digest)?, toc)?;
    let mut bytes = Vec::new();
    let mut file = reader.open(found.entry)?.take(most);
    file.read_to_end(&mut bytes).doing(|| format!("cannot read layer {}", layer.digest))?;
    Ok(Some(bytes))
}

/// A name and its image.
#[derive(Clone, Debug)]
pub struct ImageSummary {
    /// `None` for an image without a name, and for names of other tools that imgctl does not
    /// accept.
    pub reference: Option<Reference>,
    /// Name as written in the table.
    pub name: Option<String>,
    /// Digest of the manifest or index.
    pub digest: Digest,
    /// Docker's image ID; for an index, the ID for the host's platform (or otherwise the first).
    pub id: Option<Digest>,
    /// RFC 3339, from the config.
    pub created: Option<String>,
    /// Size of the layers of all platforms that are here, compressed, each once, in bytes: the size of an image everywhere.
    pub size: u64,
    pub platforms: Vec<Platform>,
    pub labels: BTreeMap<String, String>,
    /// Number of layers.
    pub layers: usize,
    /// Why the image cannot be used, if applicable.
    pub problem: Option<String>,
}

impl Store {
    /// Returns summaries of all names, sorted like [`Store::names`]. Lists damaged images with
    /// their problem.
    pub fn list(&self) -> Result<Vec<ImageSummary>> {
        self.names()?.iter().map(|named| self.summary(named)).collect()
    }

    /// Returns the summary of one name.
    pub fn summary(&self, named: &Named) -> Result<ImageSummary> {
        let descriptor = &named.descriptor;
        let mut summary = ImageSummary {
            reference: named.reference.clone(),
            name: descriptor.ref_name().map(str::to_owned),
            digest: descriptor.digest.clone(),
            id: None,
            created: None,
            size: 0,
            platforms: Vec::new(),
            labels: BTreeMap::new(),
            layers: 0,
            problem: None,
        };
        match self.platform_images(descriptor) {
            Ok(images) => {
                let layers = images.iter().flat_map(|image| &image.manifest.layers);
                let layers: BTreeMap<_, _> =
                    layers.map(|layer| (&layer.digest, layer.size)).collect();
                summary.size = layers.values().fold(0, |sum: u64, size| sum.saturating_add(*size));
                summary.platforms = images.iter().map(|image| image.config.platform()).collect();
                let host = Platform::host();
                let nearest = images.iter().min_by_key(|image| {
                    let distance = image.config.platform().distance_to(&host);
                    distance.unwrap_or(u32::MAX)
                });
                if let Some(image) = nearest {
                    summary.id = Some(image.id().clone());
                    summary.created.clone_from(&image.config.created);
                    summary.labels.clone_from(&image.config.config.labels);
                    summary.layers = image.manifest.layers.len();
                }
            }
            Err(error) => summary.problem = Some(error.to_string()),
        }
        Ok(summary)
    }

    /// Returns the images of all existing platforms of a descriptor. Skips artifacts inside an
    /// index (attestations).
    pub fn platform_images(&self, descriptor: &Descriptor) -> Result<Vec<Image>> {
        let index = match self.document(descriptor)? {
            Document::Manifest(manifest) => {
                return Ok(vec![self.image_of(descriptor.clone(), manifest)?]);
            }
            Document::Index(index) => index,
        };
        let mut images = Vec::new();
        for child in index.manifests {
            if !is_platform(&child) || self.blob_size(&child.digest)?.is_none() {
                continue;
            }
            if let Document::Manifest(manifest) = self.document(&child)? {
                images.push(self.image_of(child, manifest)?);
            }
        }
        Ok(images)
    }
}
