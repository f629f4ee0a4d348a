//! The contents of an image as SPDX 2.3: its layers, the container images in its embedded registry,
//! packages recorded by a package manager, and files with their digests.
//!
//! The same image always gives the same text. Must not depend on registries.

pub mod contents;
pub mod embedded;
pub mod packages;
mod spdx;

use std::collections::BTreeSet;
use std::io::Write;

use crate::document_file::DocumentFile;
use imgctl_base::error::{Context as _, Result};
use imgctl_base::image::time::{parse_rfc3339, rfc3339};
use imgctl_base::image::{Digest, LayerKind, Reference};
use imgctl_base::progress::Reporter;
use imgctl_base::text::hex;
use imgctl_layer::LayerPath;
use imgctl_store::store::{Image, Store};

use contents::{Contents, File, Hashed};
use embedded::Embedded;
use packages::Package;

/// Media type of the document, and its artifact type as a referrer.
pub const MEDIA_TYPE: &str = "application/spdx+json";
/// Maximum size of a package database, in bytes.
const MAX_DATABASE: u64 = 64 << 20;
/// Maximum number of packages of one image.
const MAX_PACKAGES: u64 = 100_000;
const MAX_OS_RELEASE: u64 = 64 << 10;

/// Options of an SBOM.
#[derive(Clone, Debug)]
pub struct SbomOptions {
    /// List every file with its digests.
    pub files: bool,
    /// `SOURCE_DATE_EPOCH`, in seconds since 1970; the default is the time of the image.
    pub timestamp: Option<i64>,
}

/// The contents of an image.
struct Inventory<'a> {
    name: Option<Reference>,
    digest: Digest,
    architecture: String,
    /// RFC 3339, in whole seconds.
    created: String,
    layers: Vec<Layer>,
    embedded: Vec<Embedded>,
    /// `ID` of os-release.
    distribution: Option<String>,
    packages: Vec<Package>,
    files: Option<Box<dyn Files + 'a>>,
}

/// The regular files of an image, sorted by path. There may be millions: each pass finds them anew.
trait Files {
    fn paths(&self) -> Box<dyn Iterator<Item = LayerPath> + '_>;
    fn files(&self) -> Box<dyn Iterator<Item = Result<File>> + '_>;
    /// The SHA-1 of all, in hex and in order of the sums.
    fn sha1s(&self) -> Result<Box<dyn Iterator<Item = String> + '_>>;
}

impl Files for Hashed<'_> {
    fn paths(&self) -> Box<dyn Iterator<Item = LayerPath> + '_> {
        Box::new(self.paths())
    }

    fn files(&self) -> Box<dyn Iterator<Item = Result<File>> + '_> {
        Box::new(self.files())
    }

    fn sha1s(&self) -> Result<Box<dyn Iterator<Item = String> + '_>> {
        Ok(Box::new(self.sha1s()?.into_iter().map(|sum| hex(&sum))))
    }
}

struct Layer {
    digest: Digest,
    kind: Option<LayerKind>,
}

/// The contents of an image, ready to be written as often as necessary.
pub struct Sbom<'a>(Inventory<'a>);

impl Sbom<'_> {
    /// Lists the contents of `image` for `with`.
    pub fn of<T>(
        store: &Store,
        image: &Image,
        options: &SbomOptions,
        reporter: &dyn Reporter,
        with: impl FnOnce(&Sbom<'_>) -> Result<T>,
    ) -> Result<T> {
        let doing = || format!("cannot list the contents of {}", image.descriptor.digest);
        let contents = Contents::new(store, image).context(doing)?;
        let inventory = take_inventory(&contents, image, options, reporter).context(doing)?;
        with(&Sbom(inventory))
    }

    /// Writes the SPDX document, whatever its size.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        spdx::write(&self.0, out)
    }

    /// Writes the same document without white space, as a part of another one.
    pub(crate) fn write_inside(&self, out: &mut dyn Write) -> Result<()> {
        spdx::write_inside(&self.0, out)
    }

    /// Keeps the SPDX document.
    pub fn document(&self, store: &Store) -> Result<DocumentFile> {
        DocumentFile::write(store, |out| self.write(out))
    }
}

/// Returns the container images in an image's embedded registry: names without a registry host, and
/// digests.
pub(crate) fn embedded_images(store: &Store, image: &Image) -> Result<Vec<(String, Digest)>> {
    let images = embedded::all(&Contents::new(store, image)?)?;
    let name = |image: &Embedded| match &image.tag {
        Some(tag) => format!("{}:{tag}", image.repository),
        None => image.repository.clone(),
    };
    Ok(images.into_iter().map(|image| (name(&image), image.digest)).collect())
}

fn take_inventory<'a>(
    contents: &'a Contents<'a>,
    image: &Image,
    options: &SbomOptions,
    reporter: &dyn Reporter,
) -> Result<Inventory<'a>> {
    let seconds = match (options.timestamp, &image.config.created) {
        (Some(seconds), _) => seconds,
        (None, Some(created)) => parse_rfc3339(created).map_or(0, |(seconds, _)| seconds),
        (None, None) => 0,
    };
    let (distribution, packages) = installed(contents)?;
    Ok(Inventory {
        name: image.reference.clone(),
        digest: image.descriptor.digest.clone(),
        architecture: image.config.architecture.clone(),
        created: rfc3339(seconds),
        layers: image
            .layers()
            .map(|(layer, _)| Layer { digest: layer.digest.clone(), kind: layer.layer_kind() })
            .collect(),
        embedded: embedded::all(contents)?,
        distribution,
        packages,
        files: if options.files { Some(Box::new(contents.hashed(reporter)?)) } else { None },
    })
}

/// Returns the distribution and its packages, sorted.
pub fn installed(contents: &Contents<'_>) -> Result<(Option<String>, Vec<Package>)> {
    let text =
        |bytes: Option<Vec<u8>>| bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let path = |text: &str| LayerPath::parse(text.as_bytes());
    let os_release = [path("etc/os-release")?, path("usr/lib/os-release")?];
    let distribution = contents
        .read(&os_release, MAX_OS_RELEASE)?
        .into_iter()
        .find_map(text)
        .and_then(|text| packages::distribution(&text));
    let budget = packages::Budget::new(MAX_PACKAGES);
    let mut found = BTreeSet::new();
    for place in packages::DPKG.iter().chain(&packages::APK) {
        let files: Vec<LayerPath> = contents.files_below(&path(place)?).collect();
        // One at a time, and what several names share once: a small layer may name a large file very often.
        for file in contents.distinct(&files) {
            let Some(parse) = packages::database(file.as_bytes()) else { continue };
            let Some(bytes) = contents.read(&[file], MAX_DATABASE)?.pop().flatten() else {
                continue;
            };
            budget.read(parse, &String::from_utf8_lossy(&bytes), &mut found)?;
        }
    }
    Ok((distribution, found.into_iter().collect()))
}
