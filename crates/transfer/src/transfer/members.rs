//! Reads the tar of any image archive in one pass: blobs go straight to the store, while the few
//! documents that describe them stay in memory. Must not depend on the meaning of the documents.
//!
//! Nothing is written under a name from the archive: paths in the archive and link targets serve
//! only as map keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use crate::transfer::deltas::{self, DESCRIPTION, Deltas, MAX_DESCRIPTION};
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Hasher, Origin, Reference};
use imgctl_base::progress::Task;
use imgctl_layer::decompress::decompress_within;
use imgctl_layer::{Entry, EntryKind, LayerPath, Names, TarReader};
use imgctl_store::store::Store;
use imgctl_store::store::blobs::copy_hashed;

/// Maximum number of files in an image archive.
const MAX_MEMBERS: usize = 100_000;
/// Maximum length of a chain of links; a longer chain counts as a loop.
const MAX_LINKS: usize = 32;
/// Top-level files that identify the archive's format.
const DOCUMENTS: [&str; 4] = ["oci-layout", "index.json", "manifest.json", "repositories"];

/// One image of an archive, with its blobs in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// Its names; empty if the archive has none.
    pub references: Vec<Reference>,
    /// Its manifest or index.
    pub descriptor: Descriptor,
    /// The archive that it came from.
    pub origin: Origin,
}

/// A file of the archive that is now a blob in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) digest: Digest,
    /// Size in bytes.
    pub(super) size: u64,
}

/// Content of an archive.
#[derive(Debug, Default)]
pub(super) struct Members {
    documents: BTreeMap<&'static str, Vec<u8>>,
    files: HashMap<LayerPath, Member>,
    /// Symbolic and hard links, each resolved by one step.
    links: HashMap<LayerPath, LayerPath>,
    /// Announced by a description before them.
    deltas: Deltas,
}

impl Members {
    /// Reads an archive, compressed or not, to its end. Adds the digests of blobs that are new to
    /// the store to `imported`, even if the archive turns out to be invalid.
    pub(super) fn read(
        store: &Store,
        reader: impl Read + Send,
        imported: &mut Vec<Digest>,
        task: &dyn Task,
    ) -> Result<Self> {
        let limits = store.limits();
        let (_, plain) = decompress_within(reader, limits)?;
        let mut tar = TarReader::new(plain, limits, Names::Plain);
        let mut members = Self::default();
        let mut seen = HashSet::new();
        while let Some(entry) = tar.next_entry()? {
            if entry.is_directory() {
                continue;
            }
            if seen.len() >= MAX_MEMBERS {
                return Err(Error::bad_content(format!(
                    "the archive has more than {MAX_MEMBERS} files; no image needs so many"
                )));
            }
            // With two files of the same name, the content of the archive would depend on the
            // reader.
            if !seen.insert(entry.path.clone()) {
                return Err(Error::bad_content(format!(
                    "the archive contains {} twice",
                    entry.path
                )));
            }
            members
                .add(store, &entry, &mut tar, imported)
                .context(|| format!("cannot load {} of the archive", entry.path))?;
            task.advance(entry.size());
        }
        Ok(members)
    }

    fn add(
        &mut self,
        store: &Store,
        entry: &Entry,
        content: &mut dyn Read,
        imported: &mut Vec<Digest>,
    ) -> Result<()> {
        match &entry.kind {
            EntryKind::File { size } => {
                let is_document = |name: &&&str| name.as_bytes() == entry.path.as_bytes();
                if let Some(name) = DOCUMENTS.iter().find(is_document) {
                    self.documents.insert(name, read_document(content, *size, MAX_DOCUMENT)?);
                } else if entry.path.as_bytes() == DESCRIPTION.as_bytes() {
                    let description = read_document(content, *size, MAX_DESCRIPTION)?;
                    self.deltas = Deltas::parse(&description);
                } else if let Some(recipe) = digest_of_path(&entry.path)
                    && let Some(delta) = self.deltas.with_recipe(&recipe)
                {
                    deltas::rebuild(store, delta, content, imported)?;
                } else if !is_legacy_note(&entry.path) {
                    let member = import(store, &entry.path, *size, content, imported)?;
                    self.files.insert(entry.path.clone(), member);
                }
                Ok(())
            }
            EntryKind::Symlink { target } => {
                let target = follow(&entry.path, target)?;
                self.links.insert(entry.path.clone(), target);
                Ok(())
            }
            EntryKind::HardLink { target } => {
                self.links.insert(entry.path.clone(), target.clone());
                Ok(())
            }
            _ => Err(Error::bad_content("image archives contain no devices or pipes")),
        }
    }

    /// Returns a top-level document by name.
    pub(super) fn document(&self, name: &str) -> Option<&[u8]> {
        self.documents.get(name).map(Vec::as_slice)
    }

    /// Returns the file called `path`, following links inside the archive.
    pub(super) fn file(&self, path: &str) -> Result<&Member> {
        let mut place = LayerPath::parse(path.as_bytes())?;
        for _ in 0..MAX_LINKS {
            if let Some(member) = self.files.get(&place) {
                return Ok(member);
            }
            match self.links.get(&place) {
                Some(target) => place = target.clone(),
                None => {
                    return Err(Error::bad_content(format!(
                        "the archive names {path}, but does not contain it"
                    )));
                }
            }
        }
        Err(Error::bad_content(format!("the link {path} of the archive is part of a loop")))
    }
}

/// Stores one file's content. The content of a file in `blobs/` must match the digest in its name.
fn import(
    store: &Store,
    path: &LayerPath,
    size: u64,
    content: &mut dyn Read,
    imported: &mut Vec<Digest>,
) -> Result<Member> {
    if let Some(digest) = digest_of_path(path) {
        if store.blob_size(&digest)?.is_none() {
            imported.push(digest.clone());
        }
        store.import_blob(content, &digest, size)?;
        return Ok(Member { digest, size });
    }
    let mut ingest = store.ingest()?;
    let mut hasher = Hasher::new();
    copy_hashed(content, &mut hasher, &mut ingest)?;
    let digest = hasher.finish();
    if store.blob_size(&digest)?.is_none() {
        imported.push(digest.clone());
    }
    store.commit(ingest, &digest)?;
    Ok(Member { digest, size })
}

/// The digest in a path `blobs/<algorithm>/<hex>` of an OCI layout.
fn digest_of_path(path: &LayerPath) -> Option<Digest> {
    let components: Vec<&[u8]> = path.components().collect();
    let [b"blobs", algorithm, hex] = components[..] else {
        return None;
    };
    let (algorithm, hex) = (str::from_utf8(algorithm).ok()?, str::from_utf8(hex).ok()?);
    Digest::parse(&format!("{algorithm}:{hex}")).ok()
}

/// In old docker archives, `VERSION` and `json` next to each layer repeat the config's data.
fn is_legacy_note(path: &LayerPath) -> bool {
    let is_inside = path.parent().is_some_and(|parent| !parent.is_root());
    is_inside && matches!(path.file_name(), Some(b"VERSION" | b"json"))
}

fn read_document(content: &mut dyn Read, size: u64, most: u64) -> Result<Vec<u8>> {
    if size > most {
        return Err(Error::bad_content(format!("it has {size} bytes; at most {most} are allowed")));
    }
    let mut bytes = Vec::new();
    content
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io("cannot read it", error))?;
    Ok(bytes)
}

/// Resolves a symlink target to a path in the archive. Refuses a link that leaves the archive.
fn follow(link: &LayerPath, target: &[u8]) -> Result<LayerPath> {
    let leaves = || {
        Error::bad_content(format!(
            "the link points outside the archive, to {}",
            String::from_utf8_lossy(target)
        ))
    };
    if target.starts_with(b"/") {
        return Err(leaves());
    }
    let mut place = link.parent().unwrap_or_default();
    for component in target.split(|byte| *byte == b'/') {
        place = match component {
            b"" | b"." => place,
            b".." => place.parent().ok_or_else(leaves)?,
            name => place.join(name),
        };
    }
    Ok(place)
}
