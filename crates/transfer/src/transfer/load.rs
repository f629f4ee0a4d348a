//! `imgctl load`: imports images from an archive or a directory into the store.
//!
//! Blobs are stored and compared with their digests as they are read; documents are verified
//! afterwards. Only then are the names set, all at once. A failed load removes everything it
//! imported.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::transfer::arbiter::Arbiter;
use crate::transfer::archive::Archive;
use crate::transfer::docker_archive;
use crate::transfer::members::{Loaded, Members};
use crate::transfer::oci_layout::{self, LayoutDirectory, Listed};
use crate::transfer::request::{Request, missing_blobs};
use crate::transfer::shelf::keep_loaded;
use crate::transfer::verify::{DigestsFrom, verify};
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Origin, Platform, Reference};
use imgctl_base::progress::{Reporter, Silent, Task, Unit};
use imgctl_store::mount::privilege::Privileges;
use imgctl_store::mount::snapshots;
use imgctl_store::store::Store;

/// Where to load from.
pub enum Input<'a> {
    /// An archive, whole or in parts, or a directory in OCI layout or skopeo `dir:` format.
    Path(&'a Path),
    /// Archives that are loaded together, so that one may hold what another lacks.
    Archives(&'a [Archive]),
    /// An archive read from a stream.
    Stream(Box<dyn Read + Send + 'a>),
}

/// Options of a load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Names for the archive's only image, replacing those in the archive.
    pub tags: Vec<Reference>,
    /// Decides about the images before they get their names.
    pub arbiter: Arbiter,
    /// The name, tag or digest of the only image to load; `None` = all images.
    pub choice: Option<String>,
    /// Where to list what is missing, if parts or blobs are.
    pub request_missing: Option<PathBuf>,
    /// Also unpack the layers, so that the image can be mounted at once; of a multi-platform image,
    /// only those for this machine's platform.
    pub unpack: bool,
}

impl LoadOptions {
    /// Loads the images under their names in the archive.
    pub fn new(arbiter: Arbiter) -> Self {
        Self { tags: Vec::new(), arbiter, choice: None, request_missing: None, unpack: false }
    }
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
        Input::Archives(archives) => {
            archives.iter().map(Archive::describe).collect::<Vec<_>>().join(" and ")
        }
        Input::Stream(_) => "the archive on standard input".to_owned(),
    };
    let mut missing = Request::default();
    let loaded = load_into(&store, input, options, reporter, &mut imported, &mut missing)
        .map_err(|error| match &options.request_missing {
            Some(list) => missing.write_for(list, error),
            None => error,
        })
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
    missing: &mut Request,
) -> Result<Vec<Loaded>> {
    let given;
    let archives = match input {
        Input::Path(path) => {
            given = Archive::find(&[path])?;
            &given[..]
        }
        Input::Archives(archives) => archives,
        Input::Stream(_) => &[],
    };
    let Listed { images: mut found, artifacts, digests } = match input {
        Input::Stream(stream) => {
            let task = reporter.start("loading from a stream", Unit::Bytes, None);
            read_archive(store, stream, None, imported, (reporter, &*task))?
        }
        _ => read_all(store, archives, imported, reporter).inspect_err(|_| {
            if options.request_missing.is_some() {
                let faults = |archive: &Archive| archive.faults(&Silent).unwrap_or_default();
                archives.iter().for_each(|archive| missing.add_parts(&faults(archive)));
            }
        })?,
    };
    if found.is_empty() {
        return Err(Error::bad_content("there is no image in it"));
    }
    if let Some(choice) = &options.choice {
        let full = Reference::parse(choice).ok().map(|name| name.qualified());
        let is_named = |name: &Reference| name.tag() == Some(choice) || Some(name) == full.as_ref();
        let is_chosen = |image: &Loaded| {
            image.references.iter().any(is_named) || image.descriptor.digest.to_string() == *choice
        };
        found.retain(is_chosen);
        if found.is_empty() {
            return Err(Error::not_found(format!(
                "it has no image with the name, tag or digest {choice}"
            )));
        }
    }
    set_names(&mut found, &options.tags)?;
    let total: u64 = imported_bytes(store, imported)?;
    let task = reporter.start("verifying", Unit::Bytes, Some(total));
    let descriptors: Vec<&Descriptor> = found.iter().map(|image| &image.descriptor).collect();
    if options.request_missing.is_some() {
        missing.add_blobs(missing_blobs(store, &descriptors)?);
    }
    verify(store, &descriptors, digests, &*task)?;
    keep_loaded(store, &descriptors, &artifacts, &mut |text| reporter.note(&text))?;
    let mut names = Vec::new();
    for image in &found {
        let admit = |reference: Option<&Reference>| {
            options.arbiter.admit_arriving(store, reference, &image.descriptor, &image.origin)
        };
        if image.references.is_empty() {
            names.push((None, &image.descriptor, admit(None)?));
        }
        for reference in &image.references {
            names.push((Some(reference.clone()), &image.descriptor, admit(Some(reference))?));
        }
    }
    if options.unpack {
        for descriptor in descriptors {
            unpack(store, descriptor, imported, reporter)?;
        }
    }
    let names: Vec<_> =
        names.iter().map(|(name, image, verdict)| (name.clone(), *image, verdict)).collect();
    store.tag_all(&names)?;
    drop(names);
    Ok(found)
}

/// Unpacks the layers of the image at `descriptor`; those that are new count as imported.
fn unpack(
    store: &Store,
    descriptor: &Descriptor,
    imported: &mut Vec<Digest>,
    reporter: &dyn Reporter,
) -> Result<()> {
    let images = store.platform_images(descriptor)?;
    let (is_only, host) = (images.len() == 1, Platform::host());
    for image in images {
        if is_only || image.config.platform().distance_to(&host).is_some() {
            let ids = image.layers().map(|(_, diff_id)| diff_id);
            imported.extend(ids.filter(|id| store.snapshot(id).is_none()).cloned());
            for note in snapshots::ensure(store, &image, Privileges::current(), reporter)?.notes {
                reporter.note(&note);
            }
        }
    }
    Ok(())
}

/// Reads archives one after another. Images that several of them name are one.
fn read_all(
    store: &Store,
    archives: &[Archive],
    imported: &mut Vec<Digest>,
    reporter: &dyn Reporter,
) -> Result<Listed> {
    archives.iter().try_for_each(Archive::check_present)?;
    let mut all = Listed::default();
    for archive in archives {
        let Listed { images, artifacts, digests } =
            read_one(store, archive, imported, reporter).map_err(|error| archive.blamed(error))?;
        for image in images {
            let is_same = |other: &&mut Loaded| other.descriptor.digest == image.descriptor.digest;
            match all.images.iter_mut().find(is_same) {
                Some(other) => {
                    other.references.extend(image.references);
                    other.origin = shared(&other.origin, &image.origin);
                }
                None => all.images.push(image),
            }
        }
        all.artifacts.extend(artifacts);
        // Layers of several archives are verified together, as the one that proves least requires.
        if digests == DigestsFrom::Content {
            all.digests = digests;
        }
    }
    Ok(all)
}

fn read_one(
    store: &Store,
    archive: &Archive,
    imported: &mut Vec<Digest>,
    reporter: &dyn Reporter,
) -> Result<Listed> {
    let stem = archive.file_name().map(stem_of);
    let task = reporter.start(&format!("loading {}", archive.describe()), Unit::Bytes, None);
    let mut listed = match archive.directory() {
        Some(path) => {
            let mut note = |text: String| reporter.note(&text);
            LayoutDirectory::open(path, store, imported, &*task)?.import(stem, &mut note)?
        }
        None => read_archive(store, archive.open()?, stem, imported, (reporter, &*task))?,
    };
    for image in &mut listed.images {
        if let (Origin::Place { transport, .. }, Some(path)) = (&image.origin, archive.path()) {
            image.origin = Origin::of_path(transport, path);
        }
    }
    Ok(listed)
}

/// The origin of an image that two archives contain: what is said of only one of them does not count.
fn shared(one: &Origin, other: &Origin) -> Origin {
    match (one, other) {
        _ if one == other => one.clone(),
        (Origin::Place { transport, .. }, Origin::Place { transport: same, .. })
            if transport == same =>
        {
            Origin::without_path(transport)
        }
        _ => Origin::without_path(""),
    }
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
        let is_docker = members.document("manifest.json").is_some();
        let listed = read_layout(store, index, &members, stem, reporter);
        let usable = listed.as_ref().is_ok_and(|found| is_usable(store, found));
        if usable || !is_docker {
            return listed;
        }
        // Some versions of docker wrote a wrong index beside a right manifest.json, which is what
        // `docker load` reads.
        return match docker_archive::images(store, &members, imported) {
            Ok(images) if !images.is_empty() => {
                Ok(Listed { images, digests: DigestsFrom::Content, ..Listed::default() })
            }
            _ => listed,
        };
    }
    if members.document("manifest.json").is_some() {
        let images = docker_archive::images(store, &members, imported)?;
        return Ok(Listed { images, digests: DigestsFrom::Content, ..Listed::default() });
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

/// Returns what the layout in an archive lists.
fn read_layout(
    store: &Store,
    index: &[u8],
    members: &Members,
    stem: Option<&str>,
    reporter: &dyn Reporter,
) -> Result<Listed> {
    check_layout(members)?;
    let mut found = oci_layout::images(index, stem, &mut |text| reporter.note(&text))?;
    for image in &mut found.images {
        image.origin = Origin::without_path("oci-archive");
    }
    // Docker's archives are also OCI layouts, but only manifest.json has the full names.
    if members.document("manifest.json").is_some() {
        name_by_config(store, &mut found.images, members)?;
    }
    Ok(found)
}

/// Returns whether there are images, and all of them are whole as far as their documents say.
fn is_usable(store: &Store, found: &Listed) -> bool {
    !found.images.is_empty()
        && found.images.iter().all(|image| store.platform_images(&image.descriptor).is_ok())
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
    let mut named: BTreeMap<Digest, Vec<&mut Loaded>> = BTreeMap::new();
    for image in found {
        // Verification of the image reports anything missing.
        if let Ok(Document::Manifest(manifest)) = store.document(&image.descriptor) {
            named.entry(manifest.config.digest).or_default().push(image);
        }
    }
    for (config, mut images) in named {
        // Images that differ in the compression of their layers share a config.
        if let Some(names) = names.get(&config).filter(|names| !names.is_empty())
            && let [image] = &mut images[..]
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
        // A name with another digest belongs to another image.
        let own = &image.descriptor.digest;
        image.references.retain(|name| name.digest().is_none_or(|digest| digest == own));
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
