//! Reads an image from a directory, an OCI image layout (image-spec, image-layout.md) or skopeo's
//! `dir:`, and writes an image into an OCI image layout next to existing images.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use walkdir::WalkDir;

use crate::transfer::arbiter::Arbiter;
use crate::transfer::location::Archived;
use crate::transfer::names::CONTAINERD_NAME;
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{Blobs, ImageSource, SourceDocument};
use crate::transfer::store_shelf;
use crate::transfer::verify::check_digest;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::fs::root::Root;
use imgctl_base::image::descriptor::REF_NAME;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{
    Descriptor, Digest, Document, Hasher, Index, Origin, Reference, Verdict, media_type,
};
use imgctl_registry::client::Shelf;
use imgctl_store::store::blobs::copy_hashed;

/// One image in a directory.
pub(crate) struct LayoutSource {
    directory: Root,
    is_flat: bool,
    name: String,
    root: Descriptor,
    ref_name: Option<String>,
    /// What its index lists.
    entries: Vec<Descriptor>,
    arbiter: Arbiter,
}

/// Maximum number of manifests of a layout that are examined.
const MAX_ENTRIES: usize = 10_000;

impl LayoutSource {
    /// The image of an OCI layout that `place` names, or the only image if it gives no name.
    pub(crate) fn oci(place: &Archived, arbiter: &Arbiter) -> Result<Self> {
        let directory = Root::open(&place.path)?;
        let bytes = read(&directory, "index.json", MAX_DOCUMENT)?;
        let index = Index::parse(&bytes).map_err(|error| {
            Error::bad_content(format!("{}/index.json is malformed", place.path.display()))
                .caused_by(error)
        })?;
        let mut root = choose(&index, place)?.clone();
        let full = root.annotations.get(CONTAINERD_NAME).map(String::as_str);
        let ref_name = full.or(root.ref_name()).map(str::to_owned);
        root.annotations.clear();
        Ok(Self {
            directory,
            is_flat: false,
            name: match &place.name {
                Some(name) => format!("oci:{}:{name}", place.path.display()),
                None => format!("oci:{}", place.path.display()),
            },
            root,
            ref_name,
            entries: index.manifests,
            arbiter: arbiter.clone(),
        })
    }

    /// Returns the image's name in the layout.
    pub(super) fn ref_name(&self) -> Option<String> {
        self.ref_name.clone()
    }

    /// The image in a skopeo `dir:` directory.
    pub(crate) fn flat(path: &Path, arbiter: &Arbiter) -> Result<Self> {
        let directory = Root::open(path)?;
        let bytes = read(&directory, "manifest.json", MAX_DOCUMENT)?;
        let written = match Document::parse(&bytes, None)? {
            Document::Manifest(manifest) => (manifest.media_type, media_type::OCI_MANIFEST),
            Document::Index(index) => (index.media_type, media_type::OCI_INDEX),
        };
        let media = written.0.unwrap_or_else(|| written.1.to_owned());
        Ok(Self {
            directory,
            is_flat: true,
            name: format!("dir:{}", path.display()),
            root: Descriptor::new(&media, Digest::of(&bytes), bytes.len() as u64),
            ref_name: None,
            entries: Vec::new(),
            arbiter: arbiter.clone(),
        })
    }

    /// Returns the artifacts of a type about `subject` among `entries`.
    pub(super) fn artifacts(
        &self,
        entries: &[Descriptor],
        subject: &Digest,
        wanted: &str,
    ) -> Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        for entry in entries.iter().take(MAX_ENTRIES) {
            match self.artifact(entry, subject, wanted) {
                Ok(artifact) => found.extend(artifact),
                // Another entry of the layout is missing or damaged.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::BadContent) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Reads the manifest of an entry if it is an artifact about `subject`.
    fn artifact(
        &self,
        entry: &Descriptor,
        subject: &Digest,
        wanted: &str,
    ) -> Result<Option<Descriptor>> {
        if !media_type::is_manifest(&entry.media_type)
            || entry.artifact_type.as_deref().is_some_and(|artifact| artifact != wanted)
            || entry.size > MAX_DOCUMENT
        {
            return Ok(None);
        }
        let bytes = self.manifest(&entry.digest)?;
        let Document::Manifest(manifest) = Document::parse(&bytes, Some(&entry.media_type))? else {
            return Ok(None);
        };
        let is_about = manifest.subject.is_some_and(|found| found.digest == *subject);
        let found = store_shelf::entry(&bytes)?;
        Ok((is_about && found.artifact_type.as_deref() == Some(wanted)).then_some(found))
    }

    fn file(&self, digest: &Digest) -> Result<File> {
        let hex = digest.hex();
        if !self.is_flat {
            let path: PathBuf = ["blobs", digest.algorithm().as_str(), hex].iter().collect();
            return self.directory.open_file(&path);
        }
        let names = [hex.to_owned(), format!("{hex}.manifest.json"), "manifest.json".to_owned()];
        let count = if *digest == self.root.digest { 3 } else { 2 };
        let mut opened = Err(Error::not_found(format!("blob {digest} does not exist")));
        for name in &names[..count] {
            opened = self.directory.open_file(Path::new(name));
            if !matches!(&opened, Err(error) if error.kind() == Kind::NotFound) {
                break;
            }
        }
        opened
    }
}

/// The index entry that `place` names.
fn choose<'a>(index: &'a Index, place: &Archived) -> Result<&'a Descriptor> {
    let name_of = |entry: &'a Descriptor| {
        let full = entry.annotations.get(CONTAINERD_NAME).map(String::as_str);
        (entry.ref_name(), full)
    };
    let chosen = match &place.name {
        Some(wanted) => index.manifests.iter().find(|entry| {
            let (name, full) = name_of(entry);
            name == Some(wanted) || full == Some(wanted) || entry.digest.to_string() == *wanted
        }),
        None => {
            // Signatures and other artifacts lie beside the images.
            let mut images = index.manifests.iter().filter(|entry| !is_artifact(entry));
            images.next().filter(|_| images.next().is_none())
        }
    };
    let path = place.path.display();
    chosen.ok_or_else(|| {
        let names = index.manifests.iter().filter_map(|entry| name_of(entry).0);
        let names: Vec<&str> = names.take(20).collect();
        let error = match &place.name {
            Some(name) => Error::not_found(format!("there is no image `{name}` in {path}")),
            None if index.manifests.is_empty() => {
                Error::not_found(format!("there is no image in {path}"))
            }
            None => Error::usage(format!("there are several images in {path}")),
        };
        if names.is_empty() {
            error
        } else {
            error.hint(format!("its images are {}: write oci:{path}:NAME", names.join(", ")))
        }
    })
}

/// Whether an entry of a layout's index is an artifact about an image.
pub(super) fn is_artifact(entry: &Descriptor) -> bool {
    entry.artifact_type.is_some() && media_type::is_manifest(&entry.media_type)
}

fn read(directory: &Root, name: &str, limit: u64) -> Result<Vec<u8>> {
    let file = directory.open_file(Path::new(name))?;
    read_within(file, &directory.path().join(name), limit)
}

fn read_within(file: File, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > limit {
        return Err(Error::bad_content(format!("{} has more than {limit} bytes", path.display())));
    }
    Ok(bytes)
}

/// The documents about its image.
impl Shelf for LayoutSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        let bytes = self.document(&Descriptor::new(media_type::OCI_MANIFEST, digest.clone(), 0))?;
        check_digest(&bytes, digest)?;
        Ok(bytes)
    }

    fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>> {
        self.artifacts(&self.entries, subject, artifact_type)
    }

    fn open(&self, blob: &Descriptor) -> Result<Box<dyn Read + Send + 'static>> {
        ImageSource::open(self, blob, 0)
    }

    fn attach(&self, _: &Descriptor, _: &[(Descriptor, &[u8])], _: &[u8]) -> Result<Digest> {
        Err(Error::failed(format!("{} is only read", self.name)))
    }
}

impl ImageSource for LayoutSource {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn root(&self) -> Result<SourceDocument> {
        Ok(SourceDocument { bytes: self.document(&self.root)?, descriptor: self.root.clone() })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let file = self.file(&descriptor.digest)?;
        read_within(file, self.directory.path(), MAX_DOCUMENT)
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let mut file = self.file(&descriptor.digest)?;
        if offset > 0 {
            file.seek(SeekFrom::Start(offset)).path("read", self.directory.path())?;
        }
        Ok(Box::new(file))
    }

    fn local_file(&self, descriptor: &Descriptor) -> Option<File> {
        self.file(&descriptor.digest).ok()
    }

    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<Verdict> {
        let transport = if self.is_flat { "dir" } else { "oci" };
        let origin = Origin::of_path(transport, self.directory.path());
        let name = self.ref_name.as_deref().and_then(|name| Reference::parse(name).ok());
        let name = name.filter(|name| name.registry().is_some());
        self.arbiter.admit_elsewhere(name.as_ref(), &origin, digest, manifests, Some(self))
    }
}

/// Content of the `oci-layout` file.
const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// One name in a layout. A lock serialises imgctl processes that add names to one layout at the
/// same time; other tools do not take the lock.
pub(crate) struct LayoutSink {
    directory: PathBuf,
    name: Option<String>,
}

/// Makes temporary file names unique within the process.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl LayoutSink {
    /// Opens the layout in `directory`, creating it if missing. The image gets the name `name`
    /// (`org.opencontainers.image.ref.name`).
    pub(crate) fn open(directory: &Path, name: Option<&str>) -> Result<Self> {
        let sink = Self { directory: directory.to_owned(), name: name.map(str::to_owned) };
        let make = |path: &Path| {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            made.path("create the directory", path)
        };
        make(directory)?;
        let _alone = Lock::of_directory(directory, Mode::Exclusive)?;
        let layout = directory.join("oci-layout");
        let mut all = std::fs::read_dir(directory).path("list", directory)?;
        if !layout.exists() && all.next().is_some() {
            return Err(Error::usage(format!(
                "{} is not an OCI image layout, and is not empty",
                directory.display()
            )));
        }
        atomic::make_below(directory, &["blobs"])?;
        if !layout.exists() {
            atomic::write(&layout, LAYOUT, 0o644, Durability::Durable)?;
        }
        Ok(sink)
    }

    fn blob_path(&self, digest: &Digest) -> Result<PathBuf> {
        let names = ["blobs", digest.algorithm().as_str()];
        Ok(atomic::make_below(&self.directory, &names)?.join(digest.hex()))
    }

    /// Writes a blob of the given size and digest. Returns whether it was missing.
    pub(super) fn write<R: Read>(
        &self,
        descriptor: &Descriptor,
        open: impl FnOnce() -> Result<R>,
    ) -> Result<bool> {
        let Descriptor { digest, size, .. } = descriptor;
        let path = self.blob_path(digest)?;
        if std::fs::metadata(&path).is_ok_and(|found| found.len() == *size) {
            return Ok(false);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_file_name(format!(".imgctl-{}-{number}.tmp", std::process::id()));
        let written = copy_to(&temporary, descriptor, open);
        let placed =
            written.and_then(|()| std::fs::rename(&temporary, &path).path("create", &path));
        if placed.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        placed.map(|()| true)
    }

    /// Writes a small blob.
    pub(super) fn put(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.write(descriptor, || Ok(bytes)).map(drop)
    }

    /// Lists an artifact, without a name.
    pub(super) fn list_artifact(&self, entry: &Descriptor) -> Result<()> {
        self.sync_directories()?;
        let _alone = Lock::of_directory(&self.directory, Mode::Exclusive)?;
        let mut index = self.index()?;
        if index.manifests.iter().all(|other| other.digest != entry.digest) {
            index.manifests.push(entry.clone());
        }
        self.write_index(&index)
    }

    fn write_index(&self, index: &Index) -> Result<()> {
        let bytes = serde_json::to_vec(index)
            .map_err(|error| Error::failed("cannot encode the index").caused_by(error))?;
        atomic::write(&self.directory.join("index.json"), &bytes, 0o644, Durability::Durable)
    }

    /// Makes the blobs' directory entries durable before a name in the index refers to them.
    fn sync_directories(&self) -> Result<()> {
        let blobs = self.directory.join("blobs");
        for entry in WalkDir::new(&blobs).max_depth(1) {
            let entry = entry.path("list", &blobs)?;
            if entry.path().is_dir() {
                atomic::sync_directory(entry.path())?;
            }
        }
        Ok(())
    }

    pub(super) fn index(&self) -> Result<Index> {
        let path = self.directory.join("index.json");
        let mut bytes = Vec::new();
        match atomic::open_regular(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Index::new(Vec::new()));
            }
            file => file
                .path("open", &path)?
                .take(MAX_DOCUMENT)
                .read_to_end(&mut bytes)
                .path("read", &path)?,
        };
        Index::parse(&bytes).map_err(|error| {
            Error::bad_content(format!("{} is malformed", path.display())).caused_by(error)
        })
    }
}

fn copy_to<R: Read>(
    path: &Path,
    descriptor: &Descriptor,
    open: impl FnOnce() -> Result<R>,
) -> Result<()> {
    let Descriptor { digest, size, .. } = descriptor;
    let mut file = atomic::create_anew(path)?;
    let mut hasher = Hasher::with(digest.algorithm());
    let mut reader = open()?.take(size.saturating_add(1));
    let length = copy_hashed(&mut reader, &mut hasher, &mut file)?;
    let computed = hasher.finish();
    if length != *size || computed != *digest {
        return Err(Error::bad_content(format!(
            "blob {digest} of {size} bytes has other content: {length} bytes or more, {computed}"
        )));
    }
    file.sync_data().path("sync", path)
}

impl ImageSink for LayoutSink {
    fn describe(&self) -> String {
        match &self.name {
            Some(name) => format!("oci:{}:{name}", self.directory.display()),
            None => format!("oci:{}", self.directory.display()),
        }
    }

    fn put_blob(&self, descriptor: &Descriptor, blobs: &Blobs<'_>) -> Result<Put> {
        let copied = self.write(descriptor, || blobs.read(descriptor, 0))?;
        Ok(if copied { Put::Copied } else { Put::Existed })
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.put(descriptor, bytes)
    }

    fn finish(&self, root: &Descriptor, bytes: &[u8], _verdict: &Verdict) -> Result<()> {
        self.put_document(root, bytes)?;
        self.sync_directories()?;
        let _alone = Lock::of_directory(&self.directory, Mode::Exclusive)?;
        let mut index = self.index()?;
        let mut entry = root.clone();
        entry.annotations.remove(REF_NAME);
        match &self.name {
            Some(name) => {
                index.manifests.retain(|other| other.ref_name() != Some(name));
                entry.annotations.insert(REF_NAME.to_owned(), name.clone());
            }
            None => index
                .manifests
                .retain(|other| other.digest != root.digest || other.ref_name().is_some()),
        }
        index.manifests.push(entry);
        self.write_index(&index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::image::media_type;

    #[test]
    fn names_that_are_added_at_once_are_all_there() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("layout");
        let bytes = br#"{"schemaVersion":2,"manifests":[]}"#;
        let size = bytes.len() as u64;
        let root = Descriptor::new(media_type::OCI_INDEX, Digest::of(bytes), size);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (directory, root) = (&directory, &root);
                scope.spawn(move || {
                    let name = format!("v{number}");
                    let sink = LayoutSink::open(directory, Some(&name)).unwrap();
                    sink.finish(root, bytes, &Verdict::not_asked("a test")).unwrap();
                });
            }
        });
        let index = LayoutSink::open(&directory, None).unwrap().index().unwrap();
        let mut names: Vec<_> = index.manifests.iter().filter_map(|m| m.ref_name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"]);
    }
}
