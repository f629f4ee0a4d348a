//! Lists of what is missing where an archive is read, for the place where it was made: parts that
//! are missing or damaged, or blobs that neither the archive nor the store has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::transfer::parts::list::Part;
use crate::transfer::parts::set::Fault;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_base::image::{Descriptor, Digest, Document};
use imgctl_store::store::Store;
use imgctl_store::store::images::is_platform;

/// Version of the list.
const VERSION: u32 = 1;
/// Maximum size of a list, in bytes.
const MAX_REQUEST: u64 = 32 << 20;
/// Maximum nesting depth of indexes.
const MAX_NESTING: usize = 4;

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    version: u32,
    /// Parts of an archive. With them, whether blobs are missing is not known yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blobs: Vec<Wanted>,
}

/// A blob that is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Wanted {
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
}

impl Default for Request {
    fn default() -> Self {
        Self { version: VERSION, parts: Vec::new(), blobs: Vec::new() }
    }
}

impl Request {
    /// Returns whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.blobs.is_empty()
    }

    /// Adds the parts with faults.
    pub fn add_parts(&mut self, faults: &[Fault]) {
        self.parts.extend(faults.iter().map(|fault| fault.part.clone()));
        self.parts.sort();
        self.parts.dedup();
    }

    /// Adds blobs.
    pub fn add_blobs(&mut self, blobs: impl IntoIterator<Item = (Digest, u64)>) {
        self.blobs.extend(blobs.into_iter().map(|(digest, size)| Wanted { digest, size }));
        self.blobs.sort();
        self.blobs.dedup();
    }

    /// Returns the digests of the parts.
    pub fn part_digests(&self) -> BTreeSet<Digest> {
        self.parts.iter().map(|part| part.digest.clone()).collect()
    }

    /// Reads a list.
    pub fn read(path: &Path) -> Result<Self> {
        let mut bytes = Vec::new();
        let file = File::open(path).path("open", path)?;
        file.take(MAX_REQUEST + 1).read_to_end(&mut bytes).path("read", path)?;
        let wrong = |why: &str| {
            Error::bad_content(format!("{} {why}", path.display()))
                .hint("the list is what --request-missing of load and bundle apply writes")
        };
        if bytes.len() as u64 > MAX_REQUEST {
            return Err(wrong("is too long for a list of what is missing"));
        }
        let request: Self = serde_json::from_slice(&bytes)
            .map_err(|error| wrong("is not a list of what is missing").caused_by(error))?;
        if request.version != VERSION {
            return Err(wrong("was written by a newer imgctl"));
        }
        if request.is_empty() {
            return Err(wrong("names nothing"));
        }
        Ok(request)
    }

    /// Writes the list, if it names anything, and says in the error what to do with it.
    pub fn write_for(&self, path: &Path, error: Error) -> Error {
        if self.is_empty() {
            return error;
        }
        let text = match serde_json::to_vec_pretty(self) {
            Ok(text) => text,
            Err(reason) => return error.hint(format!("the list cannot be written: {reason}")),
        };
        match output::write(path, &text, 0o644, Durability::Atomic) {
            Ok(()) => error.hint(format!(
                "{0} lists what is missing: repeat the command that made the archive with \
                 --request {0}, and it writes just that",
                path.display()
            )),
            Err(reason) => error.hint(format!("the list was not written: {reason}")),
        }
    }
}

/// Returns the blobs of `images` that the store lacks. Platforms that are absent as a whole count
/// only if no other is complete.
pub(super) fn missing_blobs(store: &Store, images: &[&Descriptor]) -> Result<Vec<(Digest, u64)>> {
    let mut missing = BTreeMap::new();
    for image in images {
        collect(store, image, MAX_NESTING, &mut missing)?;
    }
    Ok(missing.into_iter().collect())
}

fn collect(
    store: &Store,
    descriptor: &Descriptor,
    nesting: usize,
    missing: &mut BTreeMap<Digest, u64>,
) -> Result<()> {
    let document = match store.document(descriptor) {
        Err(error) if error.kind() == Kind::NotFound => {
            missing.insert(descriptor.digest.clone(), descriptor.size);
            return Ok(());
        }
        document => document?,
    };
    match document {
        Document::Manifest(manifest) => {
            for part in std::iter::once(&manifest.config).chain(&manifest.layers) {
                if part.urls.is_empty() && store.blob_size(&part.digest)? != Some(part.size) {
                    missing.insert(part.digest.clone(), part.size);
                }
            }
        }
        Document::Index(index) if nesting > 0 => {
            let mut of_children = BTreeMap::new();
            for child in index.manifests.iter().filter(|child| is_platform(child)) {
                if store.blob_size(&child.digest)?.is_none() {
                    continue;
                }
                let mut of_child = BTreeMap::new();
                collect(store, child, nesting - 1, &mut of_child)?;
                if of_child.is_empty() {
                    return Ok(());
                }
                of_children.append(&mut of_child);
            }
            missing.append(&mut of_children);
        }
        Document::Index(_) => {}
    }
    Ok(())
}
