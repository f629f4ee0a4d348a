//! `imgctl save`: writes images from the store to an archive or a directory, in OCI, docker or
//! skopeo `dir:` format.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::transfer::names::CONTAINERD_NAME;
use crate::transfer::output::{Content, Directory, Tar, Target};
use crate::transfer::parts::write::Split;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::descriptor::REF_NAME;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Hasher, Index, Platform, Reference, media_type};
use imgctl_base::progress::{Reporter, Task, Unit};
use imgctl_layer::Compression;
use imgctl_layer::decompress::decompress;
use imgctl_layer::recompress;
use imgctl_store::store::blobs::copy_hashed;
use imgctl_store::store::{Image, Lease, Named, Store};

pub use crate::transfer::output::OuterCompression;

/// Format of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// A tar of an OCI image layout.
    #[default]
    OciArchive,
    /// An OCI image layout.
    OciDirectory,
    /// The format that `docker save` writes and `docker load` reads.
    DockerArchive,
    /// skopeo's `dir:` with a docker manifest; one image only.
    DockerDirectory,
}

impl ArchiveFormat {
    /// Returns whether the output is a directory.
    pub fn is_directory(self) -> bool {
        matches!(self, Self::OciDirectory | Self::DockerDirectory)
    }
}

/// Options of a save.
#[derive(Clone, Debug, Default)]
pub struct SaveOptions {
    pub format: ArchiveFormat,
    /// Compression of archives; directories are never compressed as a whole.
    pub compression: OuterCompression,
    /// Save only this platform of multi-platform images. The docker formats hold a single platform:
    /// by default that of this machine.
    pub platform: Option<Platform>,
    /// Blobs that the receiver already has (OCI formats only).
    pub leaving: Option<Leaving>,
    /// Write the archive in parts.
    pub split: Option<Split>,
    /// Add docker's `manifest.json` to an OCI archive, for a docker without containerd's image
    /// store. It has one platform of each image: this machine's, if there are several.
    pub for_docker: bool,
}

/// Blobs to leave out of an archive, and a file that lists them.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    pub blobs: BTreeSet<Digest>,
    /// Name of the file at the archive's top level.
    pub file: &'static str,
    pub content: Vec<u8>,
    /// Files that the archive holds as blobs in addition.
    pub added: BTreeMap<Digest, Arc<File>>,
}

/// Destination of a save.
pub enum Output<'a> {
    /// Replaced once everything is written.
    Path(&'a Path),
    Stream(Box<dyn Write + Send>),
}

/// Saves images; several names may refer to the same image.
pub fn save(
    store: &Store,
    images: &[Named],
    options: &SaveOptions,
    output: Output<'_>,
    reporter: &dyn Reporter,
) -> Result<()> {
    if images.is_empty() {
        return Err(Error::usage("there is no image to save"));
    }
    let path = match &output {
        Output::Path(path) => Some(path.to_path_buf()),
        Output::Stream(_) => None,
    };
    save_into(store, images, options, output, reporter).context(|| match path {
        Some(path) => format!("cannot save to {}", path.display()),
        None => "cannot save".to_owned(),
    })
}

fn save_into(
    store: &Store,
    images: &[Named],
    options: &SaveOptions,
    output: Output<'_>,
    reporter: &dyn Reporter,
) -> Result<()> {
    let mut target = match (output, options.format.is_directory()) {
        (Output::Path(_), true) | (Output::Stream(_), _) if options.split.is_some() => {
            return Err(Error::usage("only an archive in a file can be split")
                .hint("pass a file with --output, and an archive format"));
        }
        (Output::Path(path), true) => Target::Directory(Directory::create(path)?),
        (Output::Path(path), false) if let Some(split) = &options.split => {
            Target::Tar(Box::new(Tar::to_parts(path, split, options.compression)?))
        }
        (Output::Path(path), false) => {
            Target::Tar(Box::new(Tar::to_path(path, options.compression)?))
        }
        (Output::Stream(stream), false) => {
            Target::Tar(Box::new(Tar::to_stream(stream, options.compression)?))
        }
        (Output::Stream(_), true) => {
            return Err(Error::usage("a directory cannot be written to a stream")
                .hint("pass a path with --output, or choose an archive format"));
        }
    };
    let saver = Saver {
        store,
        // Protects the images from garbage collection during the save.
        lease: store.lease()?,
        platform: options.platform.as_ref(),
        leaving: options.leaving.as_ref(),
        task: &*reporter.start("saving", Unit::Bytes, None),
    };
    let for_docker = options.for_docker
        && options.format == ArchiveFormat::OciArchive
        && options.leaving.is_none();
    match options.format {
        ArchiveFormat::OciArchive | ArchiveFormat::OciDirectory => {
            saver.oci(images, for_docker, &mut target)?;
        }
        ArchiveFormat::DockerArchive => saver.docker_archive(images, &mut target)?,
        ArchiveFormat::DockerDirectory => saver.docker_directory(images, &mut target)?,
    }
    target.finish()
}

struct Saver<'a> {
    store: &'a Store,
    lease: Lease,
    platform: Option<&'a Platform>,
    leaving: Option<&'a Leaving>,
    task: &'a dyn Task,
}

/// One image entry of a docker archive's `manifest.json`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Item {
    config: String,
    repo_tags: Vec<String>,
    layers: Vec<String>,
}

impl Saver<'_> {
    fn oci(&self, images: &[Named], for_docker: bool, target: &mut Target) -> Result<()> {
        let mut entries: Vec<Descriptor> = Vec::new();
        let mut blobs: BTreeMap<Digest, u64> = BTreeMap::new();
        for named in images {
            let mut entry = named.descriptor.clone();
            if let Some(platform) = self.platform {
                entry = self.store.image_at(&entry, Some(platform))?.descriptor;
            }
            self.claim(&entry)?;
            self.store
                .check_complete_image(&entry)
                .context(|| format!("cannot save {}", shown(named)))?;
            blobs.extend(self.store.parts(&entry)?);
            entry.annotations.remove(REF_NAME);
            entry.annotations.remove(CONTAINERD_NAME);
            if let Some(reference) = &named.reference {
                let name = reference.to_string();
                entry.annotations.insert(CONTAINERD_NAME.to_owned(), name.clone());
                entry.annotations.insert(REF_NAME.to_owned(), name);
            }
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        entries.sort_by(|a, b| (a.ref_name(), &a.digest).cmp(&(b.ref_name(), &b.digest)));
        let artifacts = self.artifacts(&entries, &mut blobs)?;
        entries.extend(artifacts);
        // Files that describe the rest come first, for readers of streams.
        target.file("oci-layout", Content::Bytes(br#"{"imageLayoutVersion":"1.0.0"}"#))?;
        if let Some(leaving) = self.leaving {
            blobs.retain(|digest, _| !leaving.blobs.contains(digest));
            target.file(leaving.file, Content::Bytes(&leaving.content))?;
            for (digest, file) in &leaving.added {
                let size = file.metadata().doing(|| "cannot look at a scratch file".to_owned())?;
                blobs.insert(digest.clone(), size.len());
            }
        }
        target.file("index.json", Content::Bytes(&json(&Index::new(entries))?))?;
        if for_docker {
            target.file("manifest.json", Content::Bytes(&json(&self.docker_items(images))?))?;
        }
        target.directory("blobs")?;
        let algorithms: BTreeSet<&str> =
            blobs.keys().map(|digest| digest.algorithm().as_str()).collect();
        for algorithm in algorithms {
            target.directory(&format!("blobs/{algorithm}"))?;
        }
        for (digest, size) in &blobs {
            let path = format!("blobs/{}/{}", digest.algorithm().as_str(), digest.hex());
            self.blob(digest, *size, &path, target)?;
        }
        Ok(())
    }

    /// Returns the entries for docker of an OCI archive, whose blobs they name. Images without this
    /// machine's platform have none.
    fn docker_items(&self, images: &[Named]) -> Vec<Item> {
        let path =
            |digest: &Digest| format!("blobs/{}/{}", digest.algorithm().as_str(), digest.hex());
        let mut items: BTreeMap<Digest, Item> = BTreeMap::new();
        for named in images {
            let Ok(image) = self.store.image_at(&named.descriptor, self.platform) else {
                continue;
            };
            let item = items.entry(image.descriptor.digest.clone()).or_insert_with(|| Item {
                config: path(image.id()),
                repo_tags: Vec::new(),
                layers: image.manifest.layers.iter().map(|layer| path(&layer.digest)).collect(),
            });
            let name = named.reference.as_ref().and_then(tagged);
            item.repo_tags.extend(name.map(|(repository, tag)| format!("{repository}:{tag}")));
        }
        items
            .into_values()
            .map(|mut item| {
                item.repo_tags.sort();
                item.repo_tags.dedup();
                item
            })
            .collect()
    }

    /// Returns the entries of what is kept with the images, and adds its blobs.
    fn artifacts(
        &self,
        images: &[Descriptor],
        blobs: &mut BTreeMap<Digest, u64>,
    ) -> Result<Vec<Descriptor>> {
        let mut artifacts: BTreeMap<Digest, Descriptor> = BTreeMap::new();
        for image in images {
            for (_, artifact) in self.store.attached(image)? {
                let parts = self.store.artifact_parts(&artifact)?;
                self.lease.hold_all(parts.iter().map(|part| &part.digest))?;
                blobs.extend(parts.into_iter().map(|part| (part.digest, part.size)));
                // A signed index is only there for its signatures.
                if !media_type::is_index(&artifact.media_type) {
                    artifacts.insert(artifact.digest.clone(), artifact);
                }
            }
        }
        Ok(artifacts.into_values().collect())
    }

    fn docker_archive(&self, images: &[Named], target: &mut Target) -> Result<()> {
        let mut items: BTreeMap<Digest, Item> = BTreeMap::new();
        let mut repositories: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let mut layers: BTreeMap<Digest, Descriptor> = BTreeMap::new();
        for named in images {
            let image = self.image(named)?;
            let tar = |diff_id: &Digest| format!("{}.tar", diff_id.hex());
            let item = items.entry(image.id().clone()).or_insert_with(|| Item {
                config: format!("{}.json", image.id().hex()),
                repo_tags: Vec::new(),
                layers: image.config.rootfs.diff_ids.iter().map(tar).collect(),
            });
            layers.extend(image.layers().map(|(layer, id)| (id.clone(), layer.clone())));
            if let Some((repository, tag)) = named.reference.as_ref().and_then(tagged) {
                let name = format!("{repository}:{tag}");
                if !item.repo_tags.contains(&name) {
                    item.repo_tags.push(name);
                }
                if let Some(top) = image.config.rootfs.diff_ids.last() {
                    let tags = repositories.entry(repository).or_default();
                    tags.insert(tag, top.hex().to_owned());
                }
            }
        }
        items.values_mut().for_each(|item| item.repo_tags.sort());
        let list: Vec<&Item> = items.values().collect();
        target.file("manifest.json", Content::Bytes(&json(&list)?))?;
        target.file("repositories", Content::Bytes(&json(&repositories)?))?;
        for (id, item) in &items {
            let config = self.store.read_blob(id, MAX_CONFIG)?;
            target.file(&item.config, Content::Bytes(&config))?;
        }
        for (diff_id, layer) in &layers {
            self.plain_layer(layer, diff_id, target)
                .context(|| format!("cannot save layer {}", layer.digest))?;
        }
        Ok(())
    }

    /// Writes a layer as the plain tar that docker requires. A tar needs member sizes in advance,
    /// so a compressed layer is decompressed into a scratch file.
    fn plain_layer(&self, layer: &Descriptor, diff_id: &Digest, target: &mut Target) -> Result<()> {
        let path = format!("{}.tar", diff_id.hex());
        if layer.digest == *diff_id {
            return self.blob(diff_id, layer.size, &path, target);
        }
        let (_, mut reader) = decompress(self.store.open_blob(&layer.digest)?)?;
        let mut scratch = self.store.scratch_file()?;
        let mut hasher = Hasher::with(diff_id.algorithm());
        let size = copy_hashed(&mut reader, &mut hasher, &mut scratch)?;
        if hasher.finish() != *diff_id {
            return Err(Error::bad_content(format!(
                "its content does not match the diff-id {diff_id} in the config"
            )));
        }
        scratch.rewind().doing(|| "cannot read the scratch file".to_owned())?;
        target.file(&path, Content::File(&scratch, size))?;
        self.task.advance(layer.size);
        Ok(())
    }

    fn docker_directory(&self, images: &[Named], target: &mut Target) -> Result<()> {
        let [named] = images else {
            return Err(Error::usage("a docker directory holds one image")
                .hint("save the images one by one, or choose another format"));
        };
        let image = to_docker(self.store, &self.image(named)?)?;
        target.file("version", Content::Bytes(b"Directory Transport Version: 1.1\n"))?;
        let manifest = self.store.read_blob(&image.descriptor.digest, MAX_DOCUMENT)?;
        target.file("manifest.json", Content::Bytes(&manifest))?;
        let parts: BTreeMap<&Digest, u64> = std::iter::once(&image.manifest.config)
            .chain(&image.manifest.layers)
            .map(|part| (&part.digest, part.size))
            .collect();
        for (digest, size) in parts {
            self.blob(digest, size, digest.hex(), target)?;
        }
        Ok(())
    }

    fn blob(&self, digest: &Digest, size: u64, path: &str, target: &mut Target) -> Result<()> {
        let opened;
        let file = match self.leaving.and_then(|leaving| leaving.added.get(digest)) {
            Some(added) => {
                let mut file = &**added;
                file.rewind().doing(|| "cannot read a scratch file".to_owned())?;
                file
            }
            None => {
                opened = self.store.open_blob(digest)?;
                &opened
            }
        };
        target.file(path, Content::File(file, size))?;
        self.task.advance(size);
        Ok(())
    }

    fn image(&self, named: &Named) -> Result<Image> {
        self.store
            .image_at(&named.descriptor, self.platform)
            .context(|| format!("cannot save {}", shown(named)))
    }

    fn claim(&self, descriptor: &Descriptor) -> Result<()> {
        let parts = self.store.parts(descriptor)?;
        self.lease.hold_all(parts.keys())
    }
}

/// Repository and tag for docker; `None` for a name with only a digest.
fn tagged(reference: &Reference) -> Option<(String, String)> {
    Some((reference.name(), reference.tag()?.to_owned()))
}

fn shown(named: &Named) -> String {
    match &named.reference {
        Some(reference) => format!("image {reference}"),
        None => format!("image {}", named.descriptor.digest),
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::failed("cannot encode a document of the archive").caused_by(error))
}

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
    let mut descriptor = store.put_document(media_type::DOCKER_MANIFEST, &manifest)?;
    descriptor.platform.clone_from(&image.descriptor.platform);
    Ok(Image {
        reference: image.reference.clone(),
        descriptor,
        manifest,
        config: image.config.clone(),
    })
}

/// Recompresses a layer's tar with gzip. The resulting bytes depend only on the tar.
fn recompressed(store: &Store, layer: &Descriptor, diff_id: &Digest) -> Result<Descriptor> {
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
