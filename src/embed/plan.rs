//! Which file of the embedded registry lies in which layer.
//!
//! Each image has a layer of its own; what several images need lies in layers of shared blobs, by
//! the first digit of the digest. So an image that changes moves its own layer and nothing else.
//! The tree is docker-distribution's, with the names that sealos gives: without the registry. Must
//! not know where bytes come from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::embed::resolve::ResolvedImage;
use crate::error::{Error, Result};
use crate::image::{Descriptor, Digest, Reference, media_type};
use crate::registry::layout::paths;

/// The tree's directory in a cluster image.
pub(crate) const DIRECTORY: &str = "registry";
/// More images than this share layers, by a hash of their repository.
pub(super) const MAX_OWN_LAYERS: usize = 100;

/// How repositories are called in the embedded registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Naming {
    /// As sealos does: `quay.io/a/b` is `a/b`.
    #[default]
    WithoutRegistry,
    /// `quay.io/a/b` stays so (`:` of a port becomes `-`).
    WithRegistry,
}

impl Naming {
    /// The repository's name in the embedded registry.
    pub(crate) fn repository(self, reference: &Reference) -> String {
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

/// One file of the tree.
#[derive(Clone, Debug)]
pub(crate) enum File {
    /// A link to a digest.
    Link(Digest),
    /// A manifest or index.
    Document(Descriptor, Arc<[u8]>),
    /// A config or layer, needed by the image with that number.
    Blob(Descriptor, usize),
}

impl File {
    /// Its length in bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Link(digest) => digest.to_string().len() as u64,
            Self::Document(descriptor, _) | Self::Blob(descriptor, _) => descriptor.size,
        }
    }

    /// What its content is determined by.
    pub(crate) fn digest(&self) -> &Digest {
        match self {
            Self::Link(digest) => digest,
            Self::Document(descriptor, _) | Self::Blob(descriptor, _) => &descriptor.digest,
        }
    }
}

/// One layer to be.
#[derive(Clone, Debug)]
pub(crate) struct LayerPlan {
    /// For people: the images' names, or `shared blobs`.
    pub(crate) title: String,
    /// By path in the cluster image.
    pub(crate) files: BTreeMap<String, File>,
}

/// What an image has of the tree already (from its base, or copied from the context).
pub(crate) trait Present {
    /// The size of the regular file at `path`.
    fn size(&self, path: &str) -> Option<u64>;
    /// The content of a small file at `path`.
    fn read(&self, path: &str) -> Result<Option<Vec<u8>>>;
}

/// One image as the registry serves it: one root in one repository, under any number of tags.
#[derive(Default)]
struct Served<'a> {
    names: Vec<&'a Reference>,
    tags: BTreeMap<&'a str, &'a Reference>,
    /// Number of the first image of it.
    image: usize,
    is_pinned: bool,
}

/// Spreads `images` (sorted by reference) over layers. Two images of different registries that
/// would be one tag of one repository are an error that names both.
pub(crate) fn plan(
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
            let layer = match is_shared {
                true => shared(digest),
                false => unit.clone(),
            };
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

/// By repository and root digest.
type ServedImages<'a> = BTreeMap<(String, &'a Digest), Served<'a>>;

fn serve(images: &[ResolvedImage], naming: Naming) -> Result<ServedImages<'_>> {
    let mut all = ServedImages::new();
    let mut tags: BTreeMap<(String, &str), (&Reference, &Digest)> = BTreeMap::new();
    // A tag alone says more about what the tag means than one beside a digest.
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
            .or_insert_with(|| Served {
                image: number.unwrap_or_default(),
                ..Served::default()
            });
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
            // The same tag at two times: both are there by digest.
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
    .hint("leave one out with .sealignore, or keep the registries' names apart with --registry-namespace")
}

/// The layer of each image: its own, or one of a hundred.
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

/// The layer of a repository where there are more images than layers.
pub(super) fn bucket(repository: &str) -> String {
    let hash = blake3::hash(repository.as_bytes());
    let number = hash.as_bytes()[..8]
        .iter()
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{:03}", number % MAX_OWN_LAYERS as u64)
}

/// The layer of a blob that several images use; its name sorts before every repository's.
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
    let blobs = image
        .blobs
        .iter()
        .map(move |blob| (&blob.digest, File::Blob(blob.clone(), number)));
    documents.chain(blobs)
}

impl LayerPlan {
    fn empty() -> Self {
        Self {
            title: String::new(),
            files: BTreeMap::new(),
        }
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

    /// Takes out what the image has already.
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

/// A tag means the index if several platforms are there, or if somebody names the index by its
/// digest; else, as in sealos, the one platform's manifest: then nothing that it leads to is missing.
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
