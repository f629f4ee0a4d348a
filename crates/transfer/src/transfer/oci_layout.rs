//! Reads OCI image layouts (image-spec, image-layout.md) and skopeo's `dir:` layout: lists their
//! images and the blobs these need.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::transfer::deltas::{self, DESCRIPTION, Deltas, MAX_DESCRIPTION};
use crate::transfer::layout::is_artifact;
use crate::transfer::members::Loaded;
use crate::transfer::names;
use crate::transfer::verify::DigestsFrom;
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Index, Origin, media_type};
use imgctl_base::progress::Task;
use imgctl_store::store::Store;

/// Maximum number of descriptors followed in one layout.
const MAX_DESCRIPTORS: usize = 1_000_000;
/// Beginning of the annotations that a store of imgctl writes into its own table of names.
const PRIVATE: &str = "io.imgctl.";

/// What an `index.json` lists.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) images: Vec<Loaded>,
    /// Signatures and other artifacts about the images.
    pub(super) artifacts: Vec<Descriptor>,
    pub(super) digests: DigestsFrom,
}

/// Returns the images that an `index.json` lists, and the artifacts. Skips other entries and reports
/// them to `note`.
pub(super) fn images(
    index: &[u8],
    stem: Option<&str>,
    note: &mut dyn FnMut(String),
) -> Result<Listed> {
    let index: Index = Index::parse(index)
        .map_err(|error| Error::bad_content("index.json is malformed").caused_by(error))?;
    let mut listed = Listed::default();
    let found = &mut listed.images;
    for mut entry in index.manifests {
        if is_artifact(&entry) {
            listed.artifacts.push(entry);
            continue;
        }
        let media = entry.media_type.as_str();
        if !media_type::is_index(media) && !media_type::is_manifest(media) {
            note(format!("skipping {}: it is {media}, not an image", entry.digest));
            continue;
        }
        // What a store notes about its own names would count as this store's notes.
        entry.annotations.retain(|key, _| !key.starts_with(PRIVATE));
        let name = names::from_index(&entry, stem);
        match found.iter_mut().find(|other| other.descriptor.digest == entry.digest) {
            Some(other) => other.references.extend(name),
            None => {
                let references = name.into_iter().collect();
                let origin = Origin::without_path("oci");
                found.push(Loaded { references, descriptor: entry, origin });
            }
        }
    }
    Ok(listed)
}

/// How a directory stores its blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `blobs/<algorithm>/<hex>`.
    Oci,
    /// `<hex>`, and `<hex>.manifest.json` for the manifests of a list.
    Flat,
}

/// A layout in a directory.
pub(super) struct LayoutDirectory<'a> {
    root: Root,
    shape: Shape,
    store: &'a Store,
    imported: &'a mut Vec<Digest>,
    task: &'a dyn Task,
    deltas: Deltas,
}

impl<'a> LayoutDirectory<'a> {
    /// Opens a directory. If it is not a layout, the error says what is missing.
    pub(super) fn open(
        path: &Path,
        store: &'a Store,
        imported: &'a mut Vec<Digest>,
        task: &'a dyn Task,
    ) -> Result<Self> {
        let root = Root::open(path)?;
        let has = |name: &str| root.metadata(Path::new(name)).is_ok();
        let shape = if has("index.json") {
            Shape::Oci
        } else if has("manifest.json") {
            Shape::Flat
        } else {
            return Err(Error::usage(format!(
                "{} is not an image directory: it has neither index.json nor manifest.json",
                path.display()
            ))
            .hint("load an OCI layout (skopeo's oci:) or a directory written by skopeo's dir:"));
        };
        let deltas = match root.open_file(Path::new(DESCRIPTION)) {
            Ok(file) => Deltas::parse(&read_bounded(file, DESCRIPTION, MAX_DESCRIPTION)?),
            Err(_) => Deltas::default(),
        };
        Ok(Self { root, shape, store, imported, task, deltas })
    }

    /// Imports all images of the directory into the store.
    pub(super) fn import(
        &mut self,
        stem: Option<&str>,
        note: &mut dyn FnMut(String),
    ) -> Result<Listed> {
        let found = match self.shape {
            Shape::Oci => images(&self.read("index.json")?, stem, note)?,
            Shape::Flat => Listed { images: vec![self.flat_image()?], ..Listed::default() },
        };
        let mut seen = HashSet::new();
        for image in &found.images {
            self.import_all(&image.descriptor, &mut seen)
                .context(|| format!("cannot load image {}", image.descriptor.digest))?;
        }
        for artifact in &found.artifacts {
            self.import_artifact(artifact, &mut seen)
                .context(|| format!("cannot load {}", artifact.digest))?;
        }
        Ok(found)
    }

    /// Returns the only image of a `dir:` directory, and stores its manifest.
    fn flat_image(&mut self) -> Result<Loaded> {
        let bytes = self.read("manifest.json")?;
        let media = match Document::parse(&bytes, None).context(|| "manifest.json".to_owned())? {
            Document::Manifest(manifest) => {
                manifest.media_type.unwrap_or(media_type::OCI_MANIFEST.to_owned())
            }
            Document::Index(index) => index.media_type.unwrap_or(media_type::OCI_INDEX.to_owned()),
        };
        let digest = Digest::of(&bytes);
        if self.store.blob_size(&digest)?.is_none() {
            self.imported.push(digest.clone());
        }
        self.store.put_blob(&bytes)?;
        Ok(Loaded {
            references: Vec::new(),
            descriptor: Descriptor::new(&media, digest, bytes.len() as u64),
            origin: Origin::without_path("dir"),
        })
    }

    /// Imports an artifact, and the index that it is about if no image has brought it.
    fn import_artifact(&mut self, artifact: &Descriptor, seen: &mut HashSet<Digest>) -> Result<()> {
        self.import_all(artifact, seen)?;
        if let Document::Manifest(manifest) = self.store.document(artifact)?
            && let Some(subject) = manifest.subject
            && media_type::is_index(&subject.media_type)
            && subject.size <= MAX_DOCUMENT
            && seen.insert(subject.digest.clone())
        {
            self.import_one(&subject, true)?;
        }
        Ok(())
    }

    /// Imports a descriptor's blob and everything it references. Entries of an index may be
    /// missing.
    fn import_all(&mut self, top: &Descriptor, seen: &mut HashSet<Digest>) -> Result<()> {
        let mut pending = vec![(top.clone(), false)];
        while let Some((descriptor, optional)) = pending.pop() {
            if seen.len() > MAX_DESCRIPTORS {
                return Err(Error::bad_content("the images reference too many blobs"));
            }
            if !seen.insert(descriptor.digest.clone()) {
                continue;
            }
            if !self.import_one(&descriptor, optional)? {
                continue;
            }
            let media = descriptor.media_type.as_str();
            if !media_type::is_index(media) && !media_type::is_manifest(media) {
                continue;
            }
            match self.store.document(&descriptor)? {
                Document::Index(index) => {
                    pending.extend(index.manifests.into_iter().map(|child| (child, true)));
                }
                Document::Manifest(manifest) => {
                    let parts = std::iter::once(manifest.config).chain(manifest.layers);
                    pending.extend(parts.map(|part| {
                        let optional = !part.urls.is_empty();
                        (part, optional)
                    }));
                }
            }
        }
        Ok(())
    }

    /// Returns whether the blob is in the store afterwards.
    fn import_one(&mut self, descriptor: &Descriptor, optional: bool) -> Result<bool> {
        let digest = &descriptor.digest;
        let known = self.store.blob_size(digest)?;
        if known == Some(descriptor.size) {
            // The import claims the blob and makes it durable.
            self.store.import_blob(&mut std::io::empty(), digest, descriptor.size)?;
            return Ok(true);
        }
        let mut file = match self.open_blob(digest) {
            Err(error)
                if error.kind() == Kind::NotFound
                    && let Some(delta) = self.deltas.yielding(digest) =>
            {
                let mut recipe = self.open_blob(&delta.recipe.digest)?;
                deltas::rebuild(self.store, delta, &mut recipe, self.imported)?;
                self.task.advance(delta.recipe.size);
                return Ok(true);
            }
            Err(error) if error.kind() == Kind::NotFound && optional => return Ok(false),
            Err(error) if error.kind() == Kind::NotFound => {
                return Err(Error::bad_content(format!(
                    "{} does not contain blob {digest}",
                    self.root.path().display()
                )));
            }
            file => file?,
        };
        if known.is_none() {
            self.imported.push(digest.clone());
        }
        self.store.import_blob(&mut file, digest, descriptor.size)?;
        self.task.advance(descriptor.size);
        Ok(true)
    }

    fn open_blob(&self, digest: &Digest) -> Result<std::fs::File> {
        let hex = digest.hex();
        match self.shape {
            Shape::Oci => {
                let path: PathBuf = ["blobs", digest.algorithm().as_str(), hex].iter().collect();
                self.root.open_file(&path)
            }
            Shape::Flat => match self.root.open_file(Path::new(hex)) {
                Err(error) if error.kind() == Kind::NotFound => {
                    self.root.open_file(Path::new(&format!("{hex}.manifest.json")))
                }
                opened => opened,
            },
        }
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        read_bounded(self.root.open_file(Path::new(name))?, name, MAX_DOCUMENT)
    }
}

fn read_bounded(file: std::fs::File, name: &str, most: u64) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io(format!("cannot read {name}"), error))?;
    if bytes.len() as u64 > most {
        return Err(Error::bad_content(format!("{name} has more than {most} bytes")));
    }
    Ok(bytes)
}
