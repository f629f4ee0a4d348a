//! Resolves the names that users type: full and short names, digests, and prefixes of image IDs.

use crate::store::images::is_document;
use crate::store::{Named, Store};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::reference::{DEFAULT_TAG, LOCAL_REGISTRY};
use imgctl_base::image::{Descriptor, Digest, Document, Reference, media_type};
use imgctl_base::suggest;

/// Minimum number of hex digits for an ID lookup: shorter text is more likely a name.
const MIN_PREFIX: usize = 4;
/// Maximum number of similar names to show.
const MAX_NEAR: usize = 3;
/// Prefix for short names of locally built images.
const LOCAL: &str = "localhost/";

impl Store {
    /// Resolves `name`: a full or short name, a digest, or an image ID prefix (at least four hex
    /// digits, unambiguous).
    pub fn resolve(&self, name: &str) -> Result<Named> {
        let names = self.names()?;
        // An identifier is never a name: an archive may bring a name that looks like one.
        if !is_identifier(name)
            && let Some(named) = by_name(&names, name, |named| self.has_own_digest(named))
        {
            return Ok(named);
        }
        if let Some(named) = self.by_digest(&names, name)? {
            return Ok(named);
        }
        if let Some(named) = self.by_prefix(&names, name)? {
            return Ok(named);
        }
        Err(not_found(&names, name))
    }

    /// Returns whether the digest in a name, if it has one, is that of its image or of an index with its image:
    /// archives bring names with any digest.
    fn has_own_digest(&self, named: &Named) -> bool {
        let own = &named.descriptor.digest;
        let digest = named.reference.as_ref().and_then(Reference::digest);
        digest.is_none_or(|digest| digest == own || self.is_member(own, digest))
    }

    /// Returns whether the store has an index of this digest that lists `member`.
    fn is_member(&self, member: &Digest, index: &Digest) -> bool {
        if !self.blob_size(index).is_ok_and(|size| size.is_some_and(|size| size <= MAX_DOCUMENT)) {
            return false;
        }
        let bytes = self.read_blob(index, MAX_DOCUMENT);
        match bytes.and_then(|bytes| Document::parse(&bytes, None)) {
            Ok(Document::Index(index)) => {
                index.manifests.iter().any(|child| child.digest == *member)
            }
            _ => false,
        }
    }

    /// Finds the `sha256:…` of a manifest, index or config, including manifests inside an index.
    fn by_digest(&self, names: &[Named], name: &str) -> Result<Option<Named>> {
        let Ok(digest) = Digest::parse(name) else {
            return Ok(None);
        };
        let found = self
            .identities(names)
            .into_iter()
            .find(|(id, _)| *id == digest)
            .map(|(_, descriptor)| unnamed(descriptor));
        if found.is_some() {
            return Ok(found);
        }
        // A manifest without a name: part of a nested index, or of an image that was just built.
        match self.blob_size(&digest)? {
            Some(size) if size <= MAX_DOCUMENT => {
                let bytes = self.read_blob(&digest, MAX_DOCUMENT)?;
                let media = match Document::parse(&bytes, None) {
                    Ok(Document::Manifest(manifest)) => {
                        manifest.media_type.unwrap_or(media_type::OCI_MANIFEST.to_owned())
                    }
                    Ok(Document::Index(index)) => {
                        index.media_type.unwrap_or(media_type::OCI_INDEX.to_owned())
                    }
                    Err(_) => return Ok(None),
                };
                Ok(Some(unnamed(Descriptor::new(&media, digest, size))))
            }
            _ => Ok(None),
        }
    }

    fn by_prefix(&self, names: &[Named], name: &str) -> Result<Option<Named>> {
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        let is_hex = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if hex.len() < MIN_PREFIX || !is_hex {
            return Ok(None);
        }
        let mut found: Vec<(Digest, Descriptor)> = Vec::new();
        for (id, descriptor) in self.identities(names) {
            let known = found.iter().any(|(_, other)| other.digest == descriptor.digest);
            if id.hex().starts_with(hex) && !known {
                found.push((id, descriptor));
            }
        }
        match &found[..] {
            [] => Ok(None),
            [(_, only)] => Ok(Some(unnamed(only.clone()))),
            several => {
                let ids: Vec<String> = several.iter().map(|(id, _)| id.to_string()).collect();
                Err(Error::new(
                    Kind::Usage,
                    format!("`{name}` is ambiguous: it may be any of {}", ids.join(", ")),
                )
                .hint("give more digits of the ID, or the image's name"))
            }
        }
    }

    /// Returns all identifiers of images besides their names: the digests of the index or manifest,
    /// of an index's manifests, and of the configs (Docker's image ID). Unreadable images only have
    /// the first.
    fn identities(&self, names: &[Named]) -> Vec<(Digest, Descriptor)> {
        let mut all = Vec::new();
        for Named { descriptor, .. } in names {
            let descriptor = unnamed(descriptor.clone()).descriptor;
            all.push((descriptor.digest.clone(), descriptor.clone()));
            match self.document(&descriptor) {
                Ok(Document::Manifest(manifest)) => all.push((manifest.config.digest, descriptor)),
                Ok(Document::Index(index)) => {
                    for child in index.manifests.into_iter().filter(is_document) {
                        if let Ok(Document::Manifest(manifest)) = self.document(&child) {
                            all.push((manifest.config.digest, child.clone()));
                        }
                        all.push((child.digest.clone(), child));
                    }
                }
                Err(_) => {}
            }
        }
        all
    }
}

/// Finds a name as written in the table, or one of the full names that a short name can mean. With
/// a digest (`name@sha256:…`), the image must have that digest. Names that are not `good` do not count.
fn by_name(names: &[Named], name: &str, good: impl Fn(&Named) -> bool) -> Option<Named> {
    let written = |text: &str| {
        let is_it = |named: &&Named| named.descriptor.ref_name() == Some(text) && good(named);
        names.iter().find(is_it).cloned()
    };
    if let Some(named) = written(name) {
        return Some(named);
    }
    let reference = Reference::parse(name).ok()?;
    for candidate in reference.candidates() {
        if let Some(named) = written(&candidate.to_string()) {
            return Some(named);
        }
        if let Some(digest) = candidate.digest() {
            let same_repository = |named: &&Named| {
                let of_digest = named.descriptor.digest == *digest;
                let of_name = |other: &Reference| other.name() == candidate.name();
                of_digest && named.reference.as_ref().is_some_and(of_name)
            };
            if let Some(named) = names.iter().find(same_repository) {
                return Some(named.clone());
            }
        }
    }
    None
}

/// Returns whether `text` is an image ID or a digest, and nothing else.
pub fn is_identifier(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or(text);
    hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn unnamed(mut descriptor: Descriptor) -> Named {
    descriptor.annotations.remove(imgctl_base::image::descriptor::REF_NAME);
    Named { reference: None, descriptor, origin: None }
}

impl Store {
    /// Returns the stored image that was probably meant by `name`, which is not in the store: one of
    /// [`LOCAL_REGISTRY`], which no registry has, with nearly the same repository, or the same one if
    /// `siblings` count. `None` for a name with a registry.
    pub fn slip(&self, name: &str, siblings: bool) -> Result<Option<String>> {
        let Ok(wanted) = Reference::parse(name) else { return Ok(None) };
        if wanted.registry().is_some() || wanted.digest().is_some() {
            return Ok(None);
        }
        let names = self.names()?;
        let local = names.iter().filter_map(|named| named.reference.as_ref());
        let local: Vec<&Reference> =
            local.filter(|one| one.registry() == Some(LOCAL_REGISTRY)).collect();
        let is_sibling = |one: &&&Reference| one.repository() == wanted.repository();
        if local.iter().any(|one| is_sibling(&one)) {
            let tag = wanted.tag().unwrap_or(DEFAULT_TAG);
            let mut tags = local.iter().filter(is_sibling).filter_map(|one| one.tag());
            let near = suggest::closest(tag, tags.clone()).or_else(|| tags.next_back());
            return Ok(near
                .filter(|_| siblings)
                .map(|tag| format!("{LOCAL_REGISTRY}/{}:{tag}", wanted.repository())));
        }
        let repositories = local.iter().map(|one| one.repository());
        let near = suggest::closest(wanted.repository(), repositories);
        let of = |near: &str| {
            let mut found = local.iter().filter(|one| one.repository() == near);
            let same_tag = found.clone().find(|one| one.tag() == wanted.tag());
            same_tag.or_else(|| found.next_back()).map(ToString::to_string)
        };
        Ok(near.and_then(of))
    }
}

/// Returns the error for a name that is a slip for `near`: no registry is asked for it.
pub fn misspelled(name: &str, near: &str) -> Error {
    Error::not_found(format!("image `{name}` is not in the store"))
        .hint(format!("did you mean {near}?"))
        .hint(format!(
            "no registry was asked; for an image of docker.io write {}",
            Reference::parse(name)
                .map_or_else(|_| name.to_owned(), |one| one.on_docker_hub().to_string())
        ))
}

fn not_found(names: &[Named], name: &str) -> Error {
    let error = Error::not_found(format!("image `{name}` is not in the store"));
    let near = near_names(names, name);
    if near.is_empty() {
        error.hint(
            "`imgctl images` lists the images in the store; `imgctl load` and `imgctl \
                    build` add images",
        )
    } else {
        error.hint(format!("did you mean {}?", near.join(" or ")))
    }
}

/// Returns names that differ only by registry or tag; otherwise the closest match within a typing
/// error.
fn near_names(names: &[Named], name: &str) -> Vec<String> {
    let wanted = Reference::parse(name).ok();
    let all: Vec<String> = names
        .iter()
        .filter_map(|named| named.reference.as_ref())
        .map(ToString::to_string)
        .collect();
    let siblings = names.iter().filter_map(|named| {
        let other = named.reference.as_ref()?;
        (other.repository() == wanted.as_ref()?.repository()).then(|| other.to_string())
    });
    let siblings: Vec<String> = siblings.take(MAX_NEAR).collect();
    if !siblings.is_empty() {
        return siblings;
    }
    let short = |full: &'_ str| full.strip_prefix(LOCAL).unwrap_or(full).to_owned();
    let shorts: Vec<String> = all.iter().map(|full| short(full)).collect();
    let candidates = shorts.iter().chain(&all).map(String::as_str);
    suggest::closest(name, candidates)
        .and_then(|near| all.iter().find(|full| *full == near || short(full) == near))
        .cloned()
        .into_iter()
        .collect()
}
