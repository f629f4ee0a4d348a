//! `imgctl load`: imports images from an archive or a directory into the store.
//!
//! Blobs are stored as they are read; documents, digests and diff IDs are verified afterwards. Only
//! then are the names set, all at once. A failed load removes everything it imported.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::transfer::docker_archive;
use crate::transfer::members::{Loaded, Members};
use crate::transfer::oci_layout::{self, LayoutDirectory, Listed};
use crate::transfer::shelf::{admit, keep_loaded};
use crate::transfer::verify::verify;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Reference};
use imgctl_base::progress::{Reporter, Task, Unit};
use imgctl_registry::Client;
use imgctl_store::store::Store;

/// Where to load from.
pub enum Input<'a> {
    /// An archive, or a directory in OCI layout or skopeo `dir:` format.
    Path(&'a Path),
    /// An archive read from a stream.
    Stream(Box<dyn Read + Send + 'a>),
}

/// Options of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Names for the archive's only image, replacing those in the archive.
    pub tags: Vec<Reference>,
    /// Its gate decides about the images before they get their names; `None` accepts all.
    pub gate: Option<Client>,
}

/// Loads all images of an archive, or none.
pub fn load(
    store: &Store,
    input: Input<'_>,
    options: &LoadOptions,
    reporter: &dyn Reporter,
) -> Result<Vec<Loaded>> {
    // A separate lease distinguishes what this load imports from what others use.
    let store = store.separate();
    let mut imported = Vec::new();
    let name = match &input {
        Input::Path(path) => path.display().to_string(),
        Input::Stream(_) => "the archive on standard input".to_owned(),
    };
    let loaded = load_into(&store, input, options, reporter, &mut imported)
        .context(|| format!("cannot load {name}"));
    if loaded.is_err()
        && !imported.is_empty()
        && let Err(error) = store.discard(&imported)
    {
        tracing::debug!("cannot remove what the archive brought in: {error}");
    }
    loaded
}

fn load_into(
    store: &Store,
    input: Input<'_>,
    options: &LoadOptions,
    reporter: &dyn Reporter,
    imported: &mut Vec<Digest>,
) -> Result<Vec<Loaded>> {
    let Listed { images: mut found, artifacts } = match input {
        Input::Stream(stream) => {
            let task = reporter.start("loading from a stream", Unit::Bytes, None);
            read_archive(store, stream, None, imported, (reporter, &*task))?
        }
        Input::Path(path) => read_path(store, path, imported, reporter)?,
    };
    if found.is_empty() {
        return Err(Error::bad_content("there is no image in it"));
    }
    set_names(&mut found, &options.tags)?;
    let total: u64 = imported_bytes(store, imported)?;
    let task = reporter.start("verifying", Unit::Bytes, Some(total));
    let descriptors: Vec<&Descriptor> = found.iter().map(|image| &image.descriptor).collect();
    verify(store, &descriptors, &*task)?;
    keep_loaded(store, &descriptors, &artifacts, &mut |text| reporter.note(&text))?;
    if let Some(client) = &options.gate {
        for image in &found {
            admit_loaded(store, client, image)?;
        }
    }
    let mut names = Vec::new();
    for image in &found {
        if image.references.is_empty() {
            names.push((None, &image.descriptor));
        }
        let references = image.references.iter();
        names.extend(references.map(|reference| (Some(reference.clone()), &image.descriptor)));
    }
    store.tag_all(&names)?;
    Ok(found)
}

/// Fails unless the image may have its names.
fn admit_loaded(store: &Store, client: &Client, image: &Loaded) -> Result<()> {
    let descriptor = &image.descriptor;
    if image.references.is_empty() {
        return admit(store, client, None, descriptor);
    }
    let mut references = image.references.iter();
    references.try_for_each(|reference| admit(store, client, Some(reference), descriptor))
}

fn read_path(
    store: &Store,
    path: &Path,
    imported: &mut Vec<Digest>,
    reporter: &dyn Reporter,
) -> Result<Listed> {
    let title = format!("loading {}", path.display());
    let metadata = std::fs::metadata(path).path("look at", path)?;
    let stem = path.file_name().and_then(|name| name.to_str()).map(stem_of);
    if metadata.is_dir() {
        let task = reporter.start(&title, Unit::Bytes, None);
        let mut note = |text: String| reporter.note(&text);
        return LayoutDirectory::open(path, store, imported, &*task)?.import(stem, &mut note);
    }
    let task = reporter.start(&title, Unit::Bytes, None);
    let file = File::open(path).path("open", path)?;
    read_archive(store, file, stem, imported, (reporter, &*task))
}

/// A file name without archive extensions.
fn stem_of(name: &str) -> &str {
    let endings = [".gz", ".tgz", ".zst", ".tzst", ".xz", ".bz2", ".tar", ".oci"];
    let mut stem = name;
    while let Some(rest) = endings.iter().find_map(|ending| stem.strip_suffix(ending)) {
        stem = rest;
    }
    stem
}

fn read_archive(
    store: &Store,
    reader: impl Read + Send,
    stem: Option<&str>,
    imported: &mut Vec<Digest>,
    (reporter, task): (&dyn Reporter, &dyn Task),
) -> Result<Listed> {
    let members = Members::read(store, reader, imported, task)?;
    if let Some(index) = members.document("index.json") {
        check_layout(&members)?;
        let mut found = oci_layout::images(index, stem, &mut |text| reporter.note(&text))?;
        // Docker's archives are also OCI layouts, but only manifest.json has the full names.
        if members.document("manifest.json").is_some() {
            name_by_config(store, &mut found.images, &members)?;
        }
        return Ok(found);
    }
    if members.document("manifest.json").is_some() {
        let images = docker_archive::images(store, &members, imported)?;
        return Ok(Listed { images, artifacts: Vec::new() });
    }
    let error = Error::bad_content(
        "it is not an image archive: it has no index.json or \
                                    manifest.json",
    );
    Err(if members.document("repositories").is_some() {
        error.hint("it was saved by docker before 1.10: load it there and save it again")
    } else {
        error.hint("load an OCI archive or a docker archive, plain or compressed")
    })
}

fn check_layout(members: &Members) -> Result<()> {
    let version = members
        .document("oci-layout")
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok())
        .and_then(|value| Some(value.get("imageLayoutVersion")?.as_str()?.to_owned()));
    match version.as_deref() {
        Some("1.0.0") => Ok(()),
        Some(other) => Err(Error::bad_content(format!(
            "it is an OCI image layout of the unknown version {other}"
        ))),
        None => Err(Error::bad_content("its oci-layout file is missing or malformed")),
    }
}

/// Assigns images the names that `manifest.json` gives to their configs.
fn name_by_config(store: &Store, found: &mut [Loaded], members: &Members) -> Result<()> {
    let names = docker_archive::names_by_config(members)?;
    for image in found {
        // Verification of the image reports anything missing.
        if let Ok(Document::Manifest(manifest)) = store.document(&image.descriptor)
            && let Some(names) = names.get(&manifest.config.digest)
            && !names.is_empty()
        {
            image.references.clone_from(names);
        }
    }
    Ok(())
}

fn set_names(found: &mut [Loaded], tags: &[Reference]) -> Result<()> {
    if !tags.is_empty() {
        let [only] = found else {
            return Err(Error::usage(format!(
                "the archive has {} images, so it cannot be given one name",
                found.len()
            ))
            .hint("load it without --tag, then use `imgctl tag`"));
        };
        only.references = tags.iter().map(Reference::qualified).collect();
    }
    let mut seen = std::collections::BTreeSet::new();
    for image in found {
        image.references.sort();
        image.references.dedup();
        for reference in &image.references {
            if !seen.insert(reference.clone()) {
                return Err(Error::bad_content(format!(
                    "the archive calls two images {reference}"
                )));
            }
        }
    }
    Ok(())
}

fn imported_bytes(store: &Store, imported: &[Digest]) -> Result<u64> {
    let mut total = 0;
    for digest in imported {
        total += store.blob_size(digest)?.unwrap_or(0);
    }
    Ok(total)
}
