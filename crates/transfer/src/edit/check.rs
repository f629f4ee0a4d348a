//! `imgctl bundle verify`: checks every digest of an archive without loading it.
//!
//! One pass over the archive: parts, blobs, then whether the documents name anything that is
//! neither there nor assumed. Works without a store.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use crate::edit::bundle::{Bundle, DESCRIPTION, parse_description};
use crate::transfer::Archive;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Hasher, Index};
use imgctl_base::progress::{Reporter, Task, Unit};
use imgctl_layer::decompress::decompress_within;
use imgctl_layer::{Entry, EntryKind, LayerPath, Limits, Names, TarReader};
use imgctl_store::store::blobs::copy_hashed;

/// Maximum number of files in an archive.
const MAX_MEMBERS: usize = 100_000;
/// Maximum size of all documents that are kept in memory, in bytes.
const MAX_KEPT: usize = 64 << 20;
/// Files at the top level that describe the rest.
const DOCUMENTS: [&str; 3] = ["index.json", "manifest.json", DESCRIPTION];
/// Maximum nesting depth of indexes.
const MAX_NESTING: usize = 4;

/// What a check of one archive found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// The archive as named.
    pub archive: String,
    /// Number of parts; 1 of an archive in one piece.
    pub parts: usize,
    /// Number and total size of the blobs whose digests hold.
    pub blobs: u64,
    pub bytes: u64,
    /// Files without a digest: layers of docker archives.
    pub unchecked: u64,
    /// Digests of the images.
    pub images: Vec<Digest>,
    pub problems: Vec<Problem>,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong: a part, a blob, a file of the archive.
    pub subject: String,
    pub detail: String,
}

/// Checks an archive. What is wrong with it is in the result; only what prevents the check is an
/// error.
pub fn check(archive: &Archive, limits: Limits, reporter: &dyn Reporter) -> Result<Checked> {
    let title = format!("checking {}", archive.describe());
    let task = reporter.start(&title, Unit::Bytes, archive.size()?);
    let mut pass = Pass {
        found: Checked { archive: archive.describe(), parts: 1, ..Checked::default() },
        blobs: BTreeMap::new(),
        documents: BTreeMap::new(),
        kept: 0,
        top: BTreeMap::new(),
        files: BTreeSet::new(),
        task: &*task,
    };
    let count = archive.parts().map_or(1, |set| set.list().parts.len());
    pass.found.parts = count;
    let absent = archive.parts().is_some_and(|set| !set.absent().is_empty());
    let read = if absent { Ok(()) } else { pass.read(archive, limits) };
    let faults = if absent || read.is_err() { archive.faults(&*task)? } else { Vec::new() };
    if !faults.is_empty() {
        // The blobs of a damaged stream prove nothing.
        pass.found.problems = faults
            .iter()
            .map(|fault| Problem {
                subject: format!("part {} of {count}, {}", fault.number, fault.part.name),
                detail: fault.detail(),
            })
            .collect();
        return Ok(pass.found);
    }
    match read {
        Ok(()) => pass.check_documents(),
        Err(error) if error.kind() == Kind::BadContent => {
            let detail = format!("cannot be read to its end: {error}");
            pass.problem(archive.describe(), detail);
        }
        Err(error) => return Err(error.context(format!("cannot check {}", archive.describe()))),
    }
    task.done(&format!("checked {}", archive.describe()));
    Ok(pass.found)
}

struct Pass<'a> {
    found: Checked,
    /// Blobs whose digests hold, with their sizes.
    blobs: BTreeMap<Digest, u64>,
    /// Blobs that may be documents.
    documents: BTreeMap<Digest, Vec<u8>>,
    /// Size of the documents, in bytes.
    kept: usize,
    /// Documents at the top level.
    top: BTreeMap<String, Vec<u8>>,
    /// Names of all files.
    files: BTreeSet<LayerPath>,
    task: &'a dyn Task,
}

impl Pass<'_> {
    fn problem(&mut self, subject: impl Into<String>, detail: impl Into<String>) {
        let (subject, detail) = (subject.into(), detail.into());
        self.found.problems.push(Problem { subject, detail });
    }

    fn read(&mut self, archive: &Archive, limits: Limits) -> Result<()> {
        if let Some(path) = archive.directory() {
            return self.read_directory(path);
        }
        let (_, plain) = decompress_within(archive.open()?, limits)?;
        let mut tar = TarReader::new(plain, limits, Names::Plain);
        while let Some(entry) = tar.next_entry()? {
            if self.files.len() >= MAX_MEMBERS {
                return Err(Error::bad_content(format!("it has more than {MAX_MEMBERS} files")));
            }
            if entry.is_directory() {
                continue;
            }
            if !self.files.insert(entry.path.clone()) {
                self.problem(entry.path.to_string(), "is there twice");
            }
            if let EntryKind::File { size } = entry.kind {
                self.file(&entry, size, &mut tar)?;
            }
        }
        Ok(())
    }

    fn read_directory(&mut self, path: &std::path::Path) -> Result<()> {
        for name in DOCUMENTS {
            let file = path.join(name);
            if let Ok(content) = atomic::open_regular(&file) {
                let bytes = bounded(content).path("read", &file)?;
                self.top.insert(name.to_owned(), bytes);
            }
        }
        let blobs = path.join("blobs");
        if !blobs.is_dir() {
            return Ok(());
        }
        for algorithm in std::fs::read_dir(&blobs).path("read", &blobs)? {
            let algorithm = algorithm.path("read", &blobs)?;
            let directory = algorithm.path();
            if !directory.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(&directory).path("read", &directory)? {
                let entry = entry.path("read", &directory)?;
                let name = [algorithm.file_name(), entry.file_name()];
                let digest =
                    Digest::parse(&name.map(|n| n.to_string_lossy().into_owned()).join(":"));
                let file = entry.path();
                if let Ok(digest) = digest {
                    let mut content = atomic::open_regular(&file).path("open", &file)?;
                    self.blob(&digest, &mut content)?;
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, entry: &Entry, size: u64, content: &mut dyn Read) -> Result<()> {
        let path = String::from_utf8_lossy(entry.path.as_bytes()).into_owned();
        let digest = match path.split('/').collect::<Vec<_>>()[..] {
            ["blobs", algorithm, hex] => Digest::parse(&format!("{algorithm}:{hex}")).ok(),
            // Configs of docker archives.
            [name] => name
                .strip_suffix(".json")
                .and_then(|hex| Digest::parse(&format!("sha256:{hex}")).ok()),
            _ => None,
        };
        match digest {
            Some(digest) => self.blob(&digest, content),
            None if DOCUMENTS.contains(&&*path) => {
                let bytes = bounded(content).doing(|| format!("cannot read {path}"))?;
                self.top.insert(path, bytes);
                Ok(())
            }
            None => {
                self.found.unchecked +=
                    u64::from(size > 0 && path != "oci-layout" && path != "repositories");
                self.task.advance(size);
                Ok(())
            }
        }
    }

    /// Reads a blob, which must have its digest.
    fn blob(&mut self, digest: &Digest, content: &mut dyn Read) -> Result<()> {
        let mut hasher = Hasher::with(digest.algorithm());
        let mut start = Vec::new();
        let doing = || format!("cannot read blob {digest}");
        content.take(1).read_to_end(&mut start).doing(doing)?;
        if start == b"{" && self.kept < MAX_KEPT {
            content.take(MAX_DOCUMENT).read_to_end(&mut start).doing(doing)?;
        }
        hasher.update(&start);
        let rest = copy_hashed(content, &mut hasher, &mut std::io::sink())?;
        let size = start.len() as u64 + rest;
        self.task.advance(size);
        let computed = hasher.finish();
        if computed != *digest {
            let detail = format!("its content has the digest {computed}");
            self.problem(format!("blob {digest}"), detail);
            return Ok(());
        }
        self.found.blobs += 1;
        self.found.bytes += size;
        self.blobs.insert(digest.clone(), size);
        if rest == 0 && start.len() > 1 {
            self.kept += start.len();
            self.documents.insert(digest.clone(), start);
        }
        Ok(())
    }

    /// Checks that what the documents name is there, or assumed to be at the receiver's.
    fn check_documents(&mut self) {
        let mut bundle = None;
        if let Some(content) = self.top.get(DESCRIPTION) {
            match parse_description(content) {
                Ok(parsed) => bundle = Some(parsed),
                Err(error) => self.problem(DESCRIPTION, error.to_string()),
            }
        }
        if let Some(bundle) = &bundle {
            self.check_included(bundle);
        }
        // What deltas yield is not there before they are applied.
        let assumed: BTreeMap<Digest, u64> = bundle
            .map(|bundle| {
                let deltas = bundle.deltas.into_iter().map(|delta| (delta.digest, delta.size));
                bundle
                    .assumed
                    .into_iter()
                    .map(|blob| (blob.digest, blob.size))
                    .chain(deltas)
                    .collect()
            })
            .unwrap_or_default();
        if let Some(content) = self.top.get("index.json") {
            match Index::parse(content) {
                Ok(index) => {
                    for entry in index.manifests {
                        self.found.images.push(entry.digest.clone());
                        self.check_image(&entry, &assumed, MAX_NESTING);
                    }
                }
                Err(error) => self.problem("index.json", format!("is malformed: {error}")),
            }
        } else if let Some(content) = self.top.get("manifest.json").cloned() {
            self.check_docker(&content);
        } else {
            let detail = "is not an image archive: it has no index.json or manifest.json";
            self.problem(self.found.archive.clone(), detail);
        }
    }

    fn check_included(&mut self, bundle: &Bundle) {
        let included = bundle.included.iter().map(|blob| (&blob.digest, blob.size));
        let recipes = bundle.deltas.iter().map(|delta| (&delta.recipe.digest, delta.recipe.size));
        for (digest, wanted) in included.chain(recipes) {
            let detail = match self.blobs.get(digest) {
                Some(size) if *size == wanted => continue,
                Some(size) => format!("has {size} bytes; {DESCRIPTION} says {wanted}"),
                None => format!("is missing, though {DESCRIPTION} lists it"),
            };
            self.problem(format!("blob {digest}"), detail);
        }
    }

    fn check_image(
        &mut self,
        descriptor: &Descriptor,
        assumed: &BTreeMap<Digest, u64>,
        nesting: usize,
    ) {
        if !self.check_there(descriptor, assumed) {
            return;
        }
        let Some(bytes) = self.documents.get(&descriptor.digest) else {
            let detail = "is not checked: it is assumed, or no document";
            if !assumed.contains_key(&descriptor.digest) {
                self.problem(format!("blob {}", descriptor.digest), detail);
            }
            return;
        };
        match Document::parse(bytes, Some(&descriptor.media_type)) {
            Ok(Document::Manifest(manifest)) => {
                for part in std::iter::once(&manifest.config).chain(&manifest.layers) {
                    if part.urls.is_empty() {
                        self.check_there(part, assumed);
                    }
                }
            }
            Ok(Document::Index(index)) if nesting > 0 => {
                // Platforms may be absent as a whole.
                for child in index.manifests {
                    if self.blobs.contains_key(&child.digest) {
                        self.check_image(&child, assumed, nesting - 1);
                    }
                }
            }
            Ok(Document::Index(_)) => {
                self.problem(format!("blob {}", descriptor.digest), "is nested too deeply");
            }
            Err(error) => self.problem(format!("blob {}", descriptor.digest), error.to_string()),
        }
    }

    /// Returns whether a blob is there or assumed, with the size of its descriptor.
    fn check_there(&mut self, wanted: &Descriptor, assumed: &BTreeMap<Digest, u64>) -> bool {
        let subject = format!("blob {}", wanted.digest);
        match self.blobs.get(&wanted.digest).or_else(|| assumed.get(&wanted.digest)) {
            Some(size) if *size == wanted.size => return true,
            Some(size) => {
                self.problem(subject, format!("has {size} bytes; its image says {}", wanted.size));
            }
            // That its content is wrong has been said.
            None if self.found.problems.iter().any(|problem| problem.subject == subject) => {}
            None => self.problem(subject, "is missing"),
        }
        false
    }

    fn check_docker(&mut self, content: &[u8]) {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Item {
            config: String,
            #[serde(default)]
            layers: Vec<String>,
        }
        let items: Vec<Item> = match serde_json::from_slice(content) {
            Ok(items) => items,
            Err(error) => return self.problem("manifest.json", format!("is malformed: {error}")),
        };
        for item in items {
            for name in std::iter::once(&item.config).chain(&item.layers) {
                let is_there =
                    LayerPath::parse(name.as_bytes()).is_ok_and(|path| self.files.contains(&path));
                if !is_there {
                    self.problem(name.clone(), "is missing");
                }
            }
            let hex = item.config.strip_suffix(".json").unwrap_or_default();
            self.found.images.extend(Digest::parse(&format!("sha256:{hex}")));
        }
    }
}

fn bounded(reader: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MAX_DOCUMENT).read_to_end(&mut bytes)?;
    Ok(bytes)
}
