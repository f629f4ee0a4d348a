//! The store's names as repositories, with the content of each.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};

use crate::transfer::store_backend::lock;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::reference::{DOCKER_HUB, LOCAL_REGISTRY};
use imgctl_base::image::{Digest, Reference, media_type};
use imgctl_registry::layout::{Facts, MAX_MANIFEST, names};
use imgctl_store::store::{Lease, Named, Store};

/// Snapshot of all repositories.
#[derive(Default)]
pub(super) struct View {
    repositories: BTreeMap<String, Arc<Repository>>,
    /// Each image under one name: the short one, unless that refers to another image.
    catalog: Vec<String>,
}

/// Snapshot of one repository.
#[derive(Default)]
pub(super) struct Repository {
    tags: BTreeMap<String, Named>,
    /// All images in the repository, by name and digest.
    names: Vec<Named>,
    content: Mutex<Option<Arc<Content>>>,
}

/// Content that can be pulled from a repository; protected from `prune` while this value lives.
pub(super) struct Content {
    /// Media types by digest.
    pub(super) manifests: HashMap<Digest, String>,
    pub(super) blobs: HashSet<Digest>,
    /// Descriptors of the referrers of each manifest, by the manifest's digest.
    pub(super) referrers: HashMap<Digest, BTreeMap<Digest, Value>>,
    /// `None` if this process cannot write to the store and therefore cannot create a lease.
    lease: Option<Lease>,
}

impl View {
    /// Groups `all` into repositories. Reuses repositories that are unchanged from `old`.
    pub(super) fn new(all: &[Named], old: &Self) -> Self {
        let mut full: BTreeMap<String, Repository> = BTreeMap::new();
        let mut short: BTreeMap<String, Vec<(&Reference, &Named)>> = BTreeMap::new();
        for named in all {
            let Some(reference) = &named.reference else {
                continue;
            };
            let name = reference.name();
            // A repository name cannot contain a port.
            if names::is_repository(&name) {
                full.entry(name).or_default().add(reference.tag(), named);
            }
            let repository = reference.repository().to_owned();
            short.entry(repository).or_default().push((reference, named));
        }
        let mut catalog = Vec::new();
        let mut repositories = full;
        let mut covered: HashMap<String, HashSet<String>> = HashMap::new();
        for (name, images) in short {
            let mut is_listed = false;
            for (reference, named) in &images {
                let meant = meant(&images, reference);
                is_listed |= meant;
                if meant {
                    covered
                        .entry(reference.name())
                        .or_default()
                        .extend(reference.tag().map(str::to_owned));
                }
                let tag = reference.tag().filter(|_| meant);
                repositories.entry(name.clone()).or_default().add(tag, named);
            }
            catalog.extend(is_listed.then_some(name));
        }
        let is_uncovered = |(name, repository): &(&String, &Repository)| {
            let covered = covered.get(*name);
            let missing = |tag: &String| covered.is_none_or(|covered| !covered.contains(tag));
            repository.tags.keys().any(missing)
        };
        let uncovered = repositories.iter().filter(is_uncovered);
        catalog.extend(uncovered.map(|(name, _)| name.clone()));
        catalog.sort();
        catalog.dedup();
        let repositories = repositories.into_iter().map(|(name, fresh)| {
            let same = old.repositories.get(&name);
            let same = same.filter(|old| old.tags == fresh.tags && old.names == fresh.names);
            let kept = same.cloned().unwrap_or_else(|| Arc::new(fresh));
            (name, kept)
        });
        Self { repositories: repositories.collect(), catalog }
    }

    /// Returns all repositories with their names.
    pub(super) fn repositories(&self) -> impl Iterator<Item = (&String, &Arc<Repository>)> {
        self.repositories.iter()
    }

    /// Returns the repository called `name`.
    pub(super) fn repository(&self, name: &str) -> Option<&Arc<Repository>> {
        self.repositories.get(name)
    }

    /// Returns up to `limit` names after `after`.
    pub(super) fn catalog(&self, after: Option<&str>, limit: usize) -> Vec<String> {
        let is_later = |name: &&String| after.is_none_or(|after| name.as_str() > after);
        let later = self.catalog.iter().filter(is_later);
        later.take(limit).cloned().collect()
    }
}

/// Returns whether the name without its registry refers to `this` one of `images`. As on the
/// command line, local builds come first, then Docker Hub; other registries count only if the
/// choice is unambiguous.
fn meant(images: &[(&Reference, &Named)], this: &Reference) -> bool {
    let rank = |name: &Reference| match name.registry() {
        Some(LOCAL_REGISTRY) => 0,
        Some(DOCKER_HUB) => 1,
        _ => 2,
    };
    let others = images
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| *name != this && name.tag() == this.tag());
    this.tag().is_none() || others.map(rank).all(|other| rank(this) < other)
}

impl Repository {
    /// Adds an image. An existing tag is kept, because full names are added before short ones.
    fn add(&mut self, tag: Option<&str>, named: &Named) {
        if let Some(tag) = tag
            && !self.tags.contains_key(tag)
        {
            self.tags.insert(tag.to_owned(), named.clone());
        }
        if !self.names.contains(named) {
            self.names.push(named.clone());
        }
    }

    /// Returns the image with a tag.
    pub(super) fn tag(&self, tag: &str) -> Option<&Named> {
        self.tags.get(tag)
    }

    /// Returns the names of a manifest in this repository.
    pub(super) fn names_of(&self, digest: &Digest) -> Vec<Named> {
        let is_it = |named: &&Named| named.descriptor.digest == *digest;
        self.names.iter().filter(is_it).cloned().collect()
    }

    /// Returns the name of another image in this repository whose content satisfies `wanted`.
    pub(super) fn needs(
        &self,
        store: &Store,
        digest: &Digest,
        wanted: &dyn Fn(&Content) -> bool,
    ) -> Result<Option<String>> {
        for named in &self.names {
            if named.descriptor.digest != *digest
                && wanted(&Content::of(store, &named.descriptor.digest)?)
            {
                let name = named.reference.as_ref().map(ToString::to_string);
                return Ok(Some(name.unwrap_or_else(|| named.descriptor.digest.to_string())));
            }
        }
        Ok(None)
    }

    /// Returns whether a client can have pulled one of these manifests or blobs from this
    /// repository.
    pub(super) fn offers(&self, digests: &HashSet<Digest>) -> bool {
        let content = lock(&self.content);
        self.names.iter().any(|named| digests.contains(&named.descriptor.digest))
            || content.as_ref().is_some_and(|content| {
                digests.iter().any(|digest| {
                    content.manifests.contains_key(digest) || content.blobs.contains(digest)
                })
            })
    }

    /// Returns up to `limit` tags after `after`.
    pub(super) fn tags(&self, after: Option<&str>, limit: usize) -> Vec<String> {
        let is_later = |tag: &&String| after.is_none_or(|after| tag.as_str() > after);
        let later = self.tags.keys().filter(is_later);
        later.take(limit).cloned().collect()
    }

    /// Returns whether a client may be pulling from this repository.
    pub(super) fn was_asked_for(&self) -> bool {
        lock(&self.content).is_some()
    }

    /// Returns the content, which is read on the first request.
    pub(super) fn content(&self, store: &Store) -> Result<Arc<Content>> {
        let mut content = lock(&self.content);
        if let Some(content) = &*content {
            return Ok(Arc::clone(content));
        }
        let roots = self.names.iter().map(|named| &named.descriptor.digest);
        let fresh = Arc::new(Content::read(store, roots)?);
        *content = Some(Arc::clone(&fresh));
        Ok(fresh)
    }
}

impl Content {
    /// Returns the content of one manifest or index.
    pub(super) fn of(store: &Store, root: &Digest) -> Result<Self> {
        Self::read(store, std::iter::once(root))
    }

    /// Digests of the manifests only.
    pub(super) fn documents(&self) -> HashSet<Digest> {
        self.manifests.keys().cloned().collect()
    }

    /// Digests of manifests and blobs.
    pub(super) fn parts(&self) -> HashSet<Digest> {
        let manifests = self.manifests.keys();
        manifests.chain(&self.blobs).cloned().collect()
    }

    fn read<'a>(store: &Store, roots: impl Iterator<Item = &'a Digest>) -> Result<Self> {
        let lease = match store.lease() {
            Err(error) if error.kind() == Kind::Denied => None,
            lease => Some(lease?),
        };
        let mut content = Self {
            manifests: HashMap::new(),
            blobs: HashSet::new(),
            referrers: HashMap::new(),
            lease,
        };
        let mut pending: Vec<Digest> = roots.cloned().collect();
        while let Some(digest) = pending.pop() {
            if content.manifests.contains_key(&digest) {
                continue;
            }
            // Claimed before it is read: a document found by the read cannot be removed any more.
            if let Some(lease) = &content.lease {
                lease.hold(&digest)?;
            }
            let Some((facts, size)) = read(store, &digest)? else {
                continue;
            };
            for part in &facts.manifests {
                if is_document(&part.media_type) {
                    pending.push(part.digest.clone());
                } else {
                    _ = content.blobs.insert(part.digest.clone());
                }
            }
            let blobs = facts.blobs.iter().map(|part| part.digest.clone());
            content.blobs.extend(blobs);
            if let Some(subject) = &facts.subject {
                let referrers = content.referrers.entry(subject.digest.clone()).or_default();
                referrers.insert(digest.clone(), referrer(&digest, size, &facts));
            }
            content.manifests.insert(digest, facts.media_type);
        }
        if let Some(lease) = &content.lease {
            lease.hold_all(&content.blobs)?;
        }
        Ok(content)
    }
}

fn is_document(media_type: &str) -> bool {
    media_type::is_index(media_type) || media_type::is_manifest(media_type)
}

/// Reads a document and its size; returns `None` for a missing or damaged document.
fn read(store: &Store, digest: &Digest) -> Result<Option<(Facts, usize)>> {
    let parsed = store.read_blob(digest, MAX_MANIFEST).and_then(|bytes| {
        let facts = Facts::parse(&bytes)?;
        Ok((facts, bytes.len()))
    });
    let is_damage = |error: &Error| matches!(error.kind(), Kind::NotFound | Kind::BadContent);
    match parsed {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_damage(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// An entry in the list of referrers (distribution-spec 1.1, "Listing Referrers").
fn referrer(digest: &Digest, size: usize, facts: &Facts) -> Value {
    let mut descriptor = Map::new();
    descriptor.insert("mediaType".into(), facts.media_type.clone().into());
    descriptor.insert("digest".into(), digest.to_string().into());
    descriptor.insert("size".into(), json!(size));
    if let Some(artifact_type) = &facts.artifact_type {
        descriptor.insert("artifactType".into(), artifact_type.clone().into());
    }
    if let Some(annotations) = &facts.annotations {
        descriptor.insert("annotations".into(), Value::Object(annotations.clone()));
    }
    Value::Object(descriptor)
}
