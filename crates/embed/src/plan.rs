//! Assigns each file of the embedded registry to a layer.
//!
//! Each image has its own layer; blobs that several images share are in shared layers, grouped by
//! the first digit of the digest. Therefore, a changed image affects only its own layer. The tree
//! follows docker-distribution, with repository names as in sealos: without the registry. Must not
//! depend on the source of the bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::resolve::ResolvedImage;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Reference, media_type};
use imgctl_registry::layout::paths;

/// Directory of the registry tree in a cluster image.
pub const DIRECTORY: &str = "registry";
/// Maximum number of images that have a layer each; more images share layers, by a hash of their
/// repository.
pub(super) const MAX_OWN_LAYERS: usize = 100;

/// How repositories are named in the embedded registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// As sealos does: `quay.io/a/b` is `a/b`.
    #[default]
    WithoutRegistry,
    /// `quay.io/a/b` is kept (the `:` of a port becomes `-`).
    WithRegistry,
}

impl Naming {
    /// Returns the name of the repository in the embedded registry.
    pub fn repository(self, reference: &Reference) -> String {
        match (self, reference.registry()) {
            (Self::WithRegistry, Some(registry)) => {
                let host = registry.to_ascii_lowercase();
                let host = host.trim_matches(['[', ']']).replace([':', ']'], "-");
                format!("{host}/{}", reference.repository())
            }
            _ => reference.repository().to_owned(),
        }
    }
}

/// One file of the registry tree.
#[derive(Clone, Debug)]
pub enum File {
    /// A link to a digest.
    Link(Digest),
    /// A manifest or index.
    Document(Descriptor, Arc<[u8]>),
    /// A config or layer, and the number of the image that needs it.
    Blob(Descriptor, usize),
}

impl File {
    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Link(digest) => digest.to_string().len() as u64,
            Self::Document(descriptor, _) | Self::Blob(descriptor, _) => descriptor.size,
        }
    }

    /// Returns the digest that determines the content of the file.
    pub fn digest(&self) -> &Digest {
        match self {
            Self::Link(digest) => digest,
            Self::Document(descriptor, _) | Self::Blob(descriptor, _) => &descriptor.digest,
        }
    }
}

/// A planned layer.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    /// For display: the names of the images, or `shared blobs`.
    pub title: String,
    /// Files by path in the cluster image.
    pub files: BTreeMap<String, File>,
}

/// Files of the registry tree that an image already has, from its base or copied from the context.
pub trait Present {
    /// Returns the size of the regular file at `path`.
    fn size(&self, path: &str) -> Option<u64>;
    /// Returns the content of a small file at `path`.
    fn read(&self, path: &str) -> Result<Option<Vec<u8>>>;
}

/// One image as the registry serves it: one root in one repository, under any number of tags.
#[derive(Default)]
struct Served<'a> {
    names: Vec<&'a Reference>,
    tags: BTreeMap<&'a str, &'a Reference>,
    /// Number of the first image with this root.
    image: usize,
    is_pinned: bool,
}

/// Distributes `images` (sorted by reference) over layers. If two images from different registries
/// would have the same repository and tag, the error names both.
pub fn plan(
    images: &[ResolvedImage],
    naming: Naming,
    present: &dyn Present,
) -> Result<Vec<LayerPlan>> {
    let served = serve(images, naming)?;
    let units = units(&served);
    let mut users: BTreeMap<&Digest, BTreeSet<&str>> = BTreeMap::new();
    for ((_, served), unit) in served.iter().zip(&units) {
        let image = &images[served.image];
        for digest in digests(image) {
            users.entry(digest).or_default().insert(unit);
        }
    }
    let mut layers: BTreeMap<String, LayerPlan> = BTreeMap::new();
    for (((repository, _), served), unit) in served.iter().zip(&units) {
        let image = &images[served.image];
        let own = layers.entry(unit.clone()).or_insert_with(LayerPlan::empty);
        own.add_title(&served.names);
        own.add_links(repository, served, image);
        for (digest, file) in contents(image, served.image) {
            let is_shared = users.get(digest).is_some_and(|units| units.len() > 1);
            let layer = if is_shared { shared(digest) } else { unit.clone() };
            let layer = layers.entry(layer).or_insert_with(LayerPlan::empty);
            if is_shared && layer.title.is_empty() {
                layer.title = format!("shared blobs {}", &digest.hex()[..1]);
            }
            let path = format!("{DIRECTORY}/{}", paths::blob_data(digest));
            layer.files.entry(path).or_insert(file);
        }
    }
    let mut layers: Vec<LayerPlan> = layers.into_values().collect();
    for layer in &mut layers {
        layer.leave_out(present)?;
    }
    layers.retain(|layer| !layer.files.is_empty());
    Ok(layers)
}

/// Served images by repository and root digest.
type ServedImages<'a> = BTreeMap<(String, &'a Digest), Served<'a>>;

fn serve(images: &[ResolvedImage], naming: Naming) -> Result<ServedImages<'_>> {
    let mut all = ServedImages::new();
    let mut tags: BTreeMap<(String, &str), (&Reference, &Digest)> = BTreeMap::new();
    // A tag without a digest defines the meaning of the tag more reliably than a tag with one.
    let by_tag_first = |image: &&ResolvedImage| image.reference.digest().is_some();
    let mut order: Vec<&ResolvedImage> = images.iter().collect();
    order.sort_by_key(by_tag_first);
    for image in order {
        let reference = &image.reference;
        let repository = naming.repository(reference);
        let root = &image.root.digest;
        let number = images.iter().position(|other| std::ptr::eq(other, image));
        let served = all
            .entry((repository.clone(), root))
            .or_insert_with(|| Served { image: number.unwrap_or_default(), ..Served::default() });
        served.names.push(reference);
        served.is_pinned |= reference.digest().is_some();
        let Some(tag) = reference.tag() else { continue };
        match tags.get(&(repository.clone(), tag)) {
            None => {
                tags.insert((repository, tag), (reference, root));
                served.tags.insert(tag, reference);
            }
            Some((_, other)) if *other == root => {}
            Some((other, _)) if other.registry() != reference.registry() => {
                return Err(collision(other, reference, &repository, tag));
            }
            // The same tag at two points in time: both images are available by digest.
            Some(_) => {}
        }
    }
    for served in all.values_mut() {
        served.names.sort_unstable();
    }
    Ok(all)
}

fn collision(one: &Reference, other: &Reference, repository: &str, tag: &str) -> Error {
    Error::usage(format!(
        "{one} and {other} are different images, and both would be {repository}:{tag} in the embedded registry"
    ))
    .hint("exclude one with .sealignore, or pass --registry-namespace to keep the names of the \
           registries")
}

/// Returns the layer of each image: its own, or one of the hundred shared layers.
fn units(served: &ServedImages<'_>) -> Vec<String> {
    let is_crowded = served.len() > MAX_OWN_LAYERS;
    let unit = |((repository, root), served): (&(String, &Digest), &Served<'_>)| {
        if is_crowded {
            return bucket(repository);
        }
        match served.tags.keys().next() {
            Some(tag) => format!("{repository}:{tag}"),
            None => format!("{repository}@{root}"),
        }
    };
    served.iter().map(unit).collect()
}

/// Returns the layer of a repository when there are more images than layers.
pub(super) fn bucket(repository: &str) -> String {
    let hash = blake3::hash(repository.as_bytes());
    let number =
        hash.as_bytes()[..8].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{:03}", number % MAX_OWN_LAYERS as u64)
}

/// Returns the layer of a blob that several images use; its name sorts before all repository names.
pub(super) fn shared(digest: &Digest) -> String {
    format!("!{}", &digest.hex()[..1])
}

fn digests(image: &ResolvedImage) -> impl Iterator<Item = &Digest> {
    let documents = image.documents.iter().map(|document| &document.descriptor);
    documents.chain(&image.blobs).map(|part| &part.digest)
}

fn contents(image: &ResolvedImage, number: usize) -> impl Iterator<Item = (&Digest, File)> {
    let documents = image.documents.iter().map(|document| {
        let file = File::Document(document.descriptor.clone(), Arc::clone(&document.bytes));
        (&document.descriptor.digest, file)
    });
    let blobs =
        image.blobs.iter().map(move |blob| (&blob.digest, File::Blob(blob.clone(), number)));
    documents.chain(blobs)
}

impl LayerPlan {
    fn empty() -> Self {
        Self { title: String::new(), files: BTreeMap::new() }
    }

    fn add_title(&mut self, names: &[&Reference]) {
        for name in names {
            if !self.title.is_empty() {
                self.title.push_str(", ");
            }
            self.title.push_str(&name.to_string());
        }
    }

    fn add_links(&mut self, repository: &str, served: &Served<'_>, image: &ResolvedImage) {
        let mut link = |path: String, digest: &Digest| {
            let path = format!("{DIRECTORY}/{path}");
            self.files.insert(path, File::Link(digest.clone()));
        };
        for document in &image.documents {
            let digest = &document.descriptor.digest;
            link(paths::revision_link(repository, digest), digest);
        }
        for blob in &image.blobs {
            link(paths::layer_link(repository, &blob.digest), &blob.digest);
        }
        let meaning = meaning_of_tag(served, image);
        for tag in served.tags.keys() {
            link(paths::tag_link(repository, tag), meaning);
            link(paths::tag_history_link(repository, tag, meaning), meaning);
        }
    }

    /// Removes the files that the image already has.
    fn leave_out(&mut self, present: &dyn Present) -> Result<()> {
        let mut known = Vec::new();
        for (path, file) in &self.files {
            if present.size(path) != Some(file.size()) {
                continue;
            }
            let is_same = match file {
                File::Link(digest) => {
                    present.read(path)?.as_deref() == Some(digest.to_string().as_bytes())
                }
                File::Document(..) | File::Blob(..) => true,
            };
            if is_same {
                known.push(path.clone());
            }
        }
        for path in known {
            self.files.remove(&path);
        }
        Ok(())
    }
}

/// A tag refers to the index if several platforms are present or if another reference names the
/// index by digest. Otherwise, as in sealos, it refers to the manifest of the single platform, so
/// that everything it references is present.
fn meaning_of_tag<'a>(served: &Served<'_>, image: &'a ResolvedImage) -> &'a Digest {
    let root = &image.root;
    let manifests: BTreeSet<&Digest> = image.platforms.iter().map(|(_, digest)| digest).collect();
    match manifests.first() {
        Some(manifest)
            if media_type::is_index(&root.media_type)
                && manifests.len() == 1
                && !image.is_whole
                && !served.is_pinned =>
        {
            manifest
        }
        _ => &root.digest,
    }
}

#[cfg(test)]
mod tests;
