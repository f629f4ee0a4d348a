//! Reads an image from a directory: an OCI image layout (image-spec, image-layout.md) or skopeo's
//! `dir:`.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::transfer::location::Archived;
use crate::transfer::names::CONTAINERD_NAME;
use crate::transfer::source::{ImageSource, SourceDocument};
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Index, media_type};

/// One image in a directory.
pub(crate) struct LayoutSource {
    directory: Root,
    is_flat: bool,
    name: String,
    root: Descriptor,
}

impl LayoutSource {
    /// The image of an OCI layout that `place` names, or the only image if it gives no name.
    pub(crate) fn oci(place: &Archived) -> Result<Self> {
        let directory = Root::open(&place.path)?;
        let bytes = read(&directory, "index.json", MAX_DOCUMENT)?;
        let index: Index = serde_json::from_slice(&bytes).map_err(|error| {
            Error::bad_content(format!("{}/index.json is malformed", place.path.display()))
                .caused_by(error)
        })?;
        let mut root = choose(&index, place)?.clone();
        root.annotations.clear();
        Ok(Self {
            directory,
            is_flat: false,
            name: match &place.name {
                Some(name) => format!("oci:{}:{name}", place.path.display()),
                None => format!("oci:{}", place.path.display()),
            },
            root,
        })
    }

    /// The image in a skopeo `dir:` directory.
    pub(crate) fn flat(path: &Path) -> Result<Self> {
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
        })
    }

    fn file(&self, digest: &Digest) -> Result<std::fs::File> {
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
        None => match &index.manifests[..] {
            [only] => Some(only),
            _ => None,
        },
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

fn read(directory: &Root, name: &str, limit: u64) -> Result<Vec<u8>> {
    let file = directory.open_file(Path::new(name))?;
    read_within(file, &directory.path().join(name), limit)
}

fn read_within(file: std::fs::File, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > limit {
        return Err(Error::bad_content(format!("{} has more than {limit} bytes", path.display())));
    }
    Ok(bytes)
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
}
