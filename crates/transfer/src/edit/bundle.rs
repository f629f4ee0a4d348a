//! Bundles: an OCI archive with only what an image adds to another one, for transferring an update
//! to a place that already has the older image.
//!
//! A bundle is an ordinary OCI archive with missing blobs, plus `bundle.json`, which names the base
//! and every assumed blob. With deltas, it also names blobs that recipes yield from those of the
//! base. Applying a bundle checks all that it needs first.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::edit::deltas;
use crate::transfer::arbiter::Arbiter;
pub(crate) use crate::transfer::deltas::DESCRIPTION;
use crate::transfer::deltas::{Delta, MAX_DESCRIPTION, WITH_DELTAS};
use crate::transfer::parts::write::Split;
use crate::transfer::request::Request;
use crate::transfer::save::Leaving;
use crate::transfer::{
    Archive, ArchiveFormat, Input, LoadOptions, OuterCompression, Output, SaveOptions, load, save,
};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::{Digest, Platform};
use imgctl_base::progress::{Reporter, Silent, Unit};
use imgctl_layer::decompress::decompress_within;
use imgctl_layer::{Limits, Names, TarReader};
use imgctl_store::store::{Named, Store};

/// Version of a description without deltas.
const VERSION: u32 = 1;
/// Maximum number of members before the description.
const LEADING_MEMBERS: usize = 8;
/// Maximum number of missing blobs in a message.
const SHOWN: usize = 5;

/// Description of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    version: u32,
    /// Image that must be present.
    pub base: Subject,
    /// Image that is present afterwards.
    pub image: Subject,
    /// Blobs of the image that the bundle omits.
    pub assumed: Vec<Blob>,
    /// Blobs of the image that the bundle contains.
    pub included: Vec<Blob>,
    /// Blobs of the image of which the bundle contains recipes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deltas: Vec<Delta>,
}

/// An image by name and digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub digest: Digest,
}

/// One blob, with its size in bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blob {
    pub digest: Digest,
    pub size: u64,
}

impl Bundle {
    /// Returns the number of bytes of whole blobs, and of blobs that are left out.
    pub fn sizes(&self) -> (u64, u64) {
        let add = |sum: u64, blob: &Blob| sum.saturating_add(blob.size);
        let sum = |blobs: &[Blob]| blobs.iter().fold(0, add);
        (sum(&self.included), sum(&self.assumed))
    }

    /// Returns the number of bytes of recipes, and of what they yield.
    pub fn delta_sizes(&self) -> (u64, u64) {
        self.deltas.iter().fold((0, 0), |(recipes, blobs), delta| {
            (recipes.saturating_add(delta.recipe.size), blobs.saturating_add(delta.size))
        })
    }

    /// Returns what must be there: the blobs that are left out, and those that deltas refer to.
    fn needed(&self) -> Vec<Blob> {
        let bases = self.deltas.iter().flat_map(|delta| &delta.bases);
        let bases = bases.map(|base| Blob { digest: base.digest.clone(), size: base.size });
        let mut needed: Vec<Blob> = self.assumed.iter().cloned().chain(bases).collect();
        needed.sort();
        needed.dedup();
        needed
    }
}

/// Options for writing a bundle.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Write a layout in a directory instead of an archive.
    pub directory: bool,
    /// Compression of the archive as a whole.
    pub compression: OuterCompression,
    /// Take only this platform of both images.
    pub platform: Option<Platform>,
    /// Write changed files as patches against those of the base.
    pub delta: bool,
    /// Write the archive in parts.
    pub split: Option<Split>,
    /// Include only these blobs, whatever the base has.
    pub request: Option<Request>,
}

/// Options for applying bundles.
#[derive(Clone, Debug)]
pub struct ApplyOptions {
    /// Also read and check the content of every assumed blob.
    pub verify: bool,
    /// Where to list what is missing, if parts or blobs are.
    pub request_missing: Option<PathBuf>,
    /// Decides about the image before it gets its name.
    pub arbiter: Arbiter,
}

/// Writes what `new` adds to `old`.
pub fn create(
    store: &Store,
    old: &Named,
    new: &Named,
    options: &CreateOptions,
    output: Output<'_>,
    reporter: &dyn Reporter,
) -> Result<Bundle> {
    let mut new = new.clone();
    let mut old = old.clone();
    if let Some(platform) = &options.platform {
        new.descriptor = store.image_at(&new.descriptor, Some(platform))?.descriptor;
        old.descriptor = store.image_at(&old.descriptor, Some(platform))?.descriptor;
    }
    let lease = store.lease()?;
    let there = store.parts(&old.descriptor)?;
    let all: BTreeMap<Digest, u64> = store.parts(&new.descriptor)?.into_iter().collect();
    lease.hold_all(all.keys())?;
    // Documents are always included: they describe everything else.
    let images = store.platform_images(&new.descriptor)?;
    let layers: BTreeSet<&Digest> =
        images.iter().flat_map(|image| &image.manifest.layers).map(|layer| &layer.digest).collect();
    let requested = requested_blobs(options, &all)?;
    let is_there = |digest: &Digest| match &requested {
        Some(requested) => !requested.contains(digest),
        None => there.contains_key(digest),
    };
    let is_assumed = |digest: &Digest| layers.contains(digest) && is_there(digest);
    let mut made = Vec::new();
    // Who asks for a blob may lack what its delta refers to.
    if options.delta && requested.is_none() {
        let old_images = store.platform_images(&old.descriptor)?;
        let is_wanted = |digest: &Digest| !is_assumed(digest);
        made = deltas::make(store, &old_images, &images, &is_wanted, reporter)?;
    }
    let deltas: Vec<Delta> = made.iter().map(|made| made.delta.clone()).collect();
    let yielded: BTreeSet<&Digest> = deltas.iter().map(|delta| &delta.digest).collect();
    let blobs = |assumed: bool| {
        all.iter()
            .filter(|(digest, _)| is_assumed(digest) == assumed && !yielded.contains(digest))
            .map(|(digest, size)| Blob { digest: digest.clone(), size: *size })
            .collect::<Vec<_>>()
    };
    let bundle = Bundle {
        version: if deltas.is_empty() { VERSION } else { WITH_DELTAS },
        base: subject(&old),
        image: subject(&new),
        assumed: blobs(true),
        included: blobs(false),
        deltas: deltas.clone(),
    };
    let description = serde_json::to_vec(&bundle)
        .map_err(|error| Error::failed("cannot write the bundle's description").caused_by(error))?;
    let save_options = SaveOptions {
        format: if options.directory {
            ArchiveFormat::OciDirectory
        } else {
            ArchiveFormat::OciArchive
        },
        compression: options.compression,
        platform: None,
        for_docker: false,
        leaving: Some(Leaving {
            blobs: bundle
                .assumed
                .iter()
                .map(|blob| &blob.digest)
                .chain(yielded.iter().copied())
                .cloned()
                .collect(),
            file: DESCRIPTION,
            content: description,
            added: made.into_iter().map(|made| (made.delta.recipe.digest, made.recipe)).collect(),
        }),
        split: options.split.clone(),
    };
    save(store, &[new], &save_options, output, reporter)?;
    Ok(bundle)
}

/// Returns the requested blobs, which must be those of the image.
fn requested_blobs(
    options: &CreateOptions,
    all: &BTreeMap<Digest, u64>,
) -> Result<Option<BTreeSet<Digest>>> {
    let Some(request) = options.request.as_ref().filter(|request| !request.blobs.is_empty()) else {
        return Ok(None);
    };
    for blob in &request.blobs {
        if !all.contains_key(&blob.digest) {
            return Err(Error::not_found(format!(
                "the image has no blob {}, which is requested",
                blob.digest
            ))
            .hint("the list is about another image: name that one"));
        }
    }
    Ok(Some(request.blobs.iter().map(|blob| blob.digest.clone()).collect()))
}

fn subject(named: &Named) -> Subject {
    Subject {
        name: named.reference.as_ref().map(ToString::to_string),
        digest: named.descriptor.digest.clone(),
    }
}

/// Reads the description of a bundle (archive or directory).
pub fn inspect(archive: &Archive) -> Result<Bundle> {
    let name = archive.describe();
    let content = read_description(archive)
        .map_err(|error| archive.blamed(error))
        .context(|| format!("cannot read {name}"))?;
    parse_description(&content).context(|| format!("cannot use {name}"))
}

/// Parses a `bundle.json`.
pub(super) fn parse_description(content: &[u8]) -> Result<Bundle> {
    let bundle: Bundle = serde_json::from_slice(content).map_err(|error| {
        Error::bad_content(format!("its {DESCRIPTION} is malformed")).caused_by(error)
    })?;
    if ![VERSION, WITH_DELTAS].contains(&bundle.version) {
        return Err(Error::bad_content(format!(
            "it is a bundle of version {}; this imgctl reads versions {VERSION} to {WITH_DELTAS}",
            bundle.version
        ))
        .hint("use a newer imgctl"));
    }
    Ok(bundle)
}

fn read_description(archive: &Archive) -> Result<Vec<u8>> {
    let none = || {
        Error::usage(format!("it is not a bundle: it has no {DESCRIPTION}"))
            .hint("use imgctl load to load a whole image")
    };
    let bounded = |reader: &mut dyn Read, size: u64| {
        if size > MAX_DESCRIPTION {
            return Err(Error::bad_content(format!(
                "its {DESCRIPTION} has {size} bytes; at most {MAX_DESCRIPTION} are read"
            )));
        }
        let mut content = Vec::new();
        reader
            .take(size)
            .read_to_end(&mut content)
            .doing(|| format!("cannot read {DESCRIPTION}"))?;
        Ok(content)
    };
    if let Some(path) = archive.directory() {
        let inner = path.join(DESCRIPTION);
        let mut file = match File::open(&inner) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(none()),
            opened => opened.path("open", &inner)?,
        };
        let size = file.metadata().path("look at", &inner)?.len();
        return bounded(&mut file, size);
    }
    let limits = Limits::default();
    let (_, plain) = decompress_within(archive.open()?, limits)?;
    let mut tar = TarReader::new(plain, limits, Names::Plain);
    for _ in 0..LEADING_MEMBERS {
        match tar.next_entry()? {
            Some(entry) if entry.path.as_bytes() == DESCRIPTION.as_bytes() => {
                return bounded(&mut tar, entry.size());
            }
            Some(_) => {}
            None => break,
        }
    }
    Err(none())
}

/// Checks that the store has the base of a bundle, then loads the bundle's content and names the
/// image. Several bundles of one image are applied together: one may hold what another assumes.
pub fn apply(
    store: &Store,
    archives: &[Archive],
    options: &ApplyOptions,
    reporter: &dyn Reporter,
) -> Result<Bundle> {
    let mut wanted = Request::default();
    apply_all(store, archives, options, reporter, &mut wanted).map_err(|error| {
        match &options.request_missing {
            Some(list) => wanted.write_for(list, error),
            None => error,
        }
    })
}

fn apply_all(
    store: &Store,
    archives: &[Archive],
    options: &ApplyOptions,
    reporter: &dyn Reporter,
    wanted: &mut Request,
) -> Result<Bundle> {
    let bundle = joined(archives).inspect_err(|_| add_faults(archives, options, wanted))?;
    let lease = store.lease()?;
    let needed = bundle.needed();
    lease.hold_all(needed.iter().map(|blob| &blob.digest))?;
    let mut missing = Vec::new();
    for blob in &needed {
        if store.blob_size(&blob.digest)? != Some(blob.size) {
            missing.push(blob);
        }
    }
    if !missing.is_empty() {
        wanted.add_blobs(lacking(&bundle, &missing));
        return Err(base_missing(&bundle, &missing, needed.len()));
    }
    if options.verify {
        check_contents(store, &needed, reporter)?;
    }
    // What one has whole need not be rebuilt from another's delta.
    let mut archives = archives.to_vec();
    if archives.len() > 1 {
        let has_deltas =
            |archive: &Archive| inspect(archive).is_ok_and(|bundle| !bundle.deltas.is_empty());
        archives.sort_by_cached_key(has_deltas);
    }
    let archives = &archives[..];
    let load_options = LoadOptions::new(options.arbiter.clone());
    let loaded = load(store, Input::Archives(archives), &load_options, reporter)
        .inspect_err(|_| add_faults(archives, options, wanted))?;
    let is_there = loaded.iter().any(|image| image.descriptor.digest == bundle.image.digest);
    if !is_there {
        return Err(Error::bad_content(format!(
            "{} does not contain the image {} that it announces",
            archives.iter().map(Archive::describe).collect::<Vec<_>>().join(" and "),
            bundle.image.digest
        )));
    }
    Ok(bundle)
}

fn add_faults(archives: &[Archive], options: &ApplyOptions, wanted: &mut Request) {
    if options.request_missing.is_some() {
        for archive in archives {
            wanted.add_parts(&archive.faults(&Silent).unwrap_or_default());
        }
    }
}

/// Returns what several bundles of one image are together.
fn joined(archives: &[Archive]) -> Result<Bundle> {
    let mut joined: Option<Bundle> = None;
    for archive in archives {
        archive.check_present().context(|| format!("cannot read {}", archive.describe()))?;
        let bundle = inspect(archive)?;
        match &mut joined {
            None => joined = Some(bundle),
            Some(first) if first.image.digest != bundle.image.digest => {
                return Err(Error::usage(format!(
                    "{} is about {}, not {}",
                    archive.describe(),
                    bundle.image.digest,
                    first.image.digest
                ))
                .hint("apply bundles of different images one by one"));
            }
            Some(first) => {
                first.included.extend(bundle.included);
                first.included.sort();
                first.included.dedup();
                first.deltas.extend(bundle.deltas);
            }
        }
    }
    let mut joined = joined.ok_or_else(|| Error::usage("there is no bundle to apply"))?;
    let included: BTreeSet<&Digest> = joined.included.iter().map(|blob| &blob.digest).collect();
    joined.assumed.retain(|blob| !included.contains(&blob.digest));
    joined.deltas.retain(|delta| !included.contains(&delta.digest));
    Ok(joined)
}

/// The blobs of the image that cannot be had without these: what refers to them is wanted whole.
fn lacking(bundle: &Bundle, missing: &[&Blob]) -> Vec<(Digest, u64)> {
    let is_missing = |digest: &Digest| missing.iter().any(|blob| blob.digest == *digest);
    let assumed = bundle.assumed.iter().filter(|blob| is_missing(&blob.digest));
    let deltas = bundle.deltas.iter();
    let deltas = deltas.filter(|delta| delta.bases.iter().any(|base| is_missing(&base.digest)));
    assumed
        .map(|blob| (blob.digest.clone(), blob.size))
        .chain(deltas.map(|delta| (delta.digest.clone(), delta.size)))
        .collect()
}

fn base_missing(bundle: &Bundle, missing: &[&Blob], needed: usize) -> Error {
    let base = match &bundle.base.name {
        Some(name) => format!("{name} ({})", bundle.base.digest),
        None => bundle.base.digest.to_string(),
    };
    let mut list: Vec<String> =
        missing.iter().take(SHOWN).map(|blob| blob.digest.to_string()).collect();
    if missing.len() > SHOWN {
        list.push(format!("and {} more", missing.len() - SHOWN));
    }
    Error::new(
        Kind::NotFound,
        format!(
            "the bundle needs image {base}, but {} of its {needed} blobs {} missing here: {}",
            missing.len(),
            if missing.len() == 1 { "is" } else { "are" },
            list.join(", ")
        ),
    )
    .hint("load or pull that image first, or carry the whole image (imgctl save)")
}

fn check_contents(store: &Store, needed: &[Blob], reporter: &dyn Reporter) -> Result<()> {
    let total = needed.iter().map(|blob| blob.size).sum();
    let task = reporter.start("verifying the base", Unit::Bytes, Some(total));
    for blob in needed {
        if !store.verify_blob(&blob.digest)? {
            return Err(Error::bad_content(format!(
                "blob {} of the base is damaged in the store",
                blob.digest
            ))
            .hint("imgctl scrub --repair, then load the base again"));
        }
        task.advance(blob.size);
    }
    task.done("verified the base");
    Ok(())
}
