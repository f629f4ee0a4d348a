//! The packages inside embedded container images: the databases of distributions, and the modules of Go programs, of which most images
//! of Kubernetes consist. Reads each layer once; must not know how packages are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use crate::embedded::EmbeddedLayers;
use crate::go_program;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::image::Digest;
use imgctl_base::workers;
use imgctl_layer::whiteout::{Marker, marker};
use imgctl_layer::{Entry, Expected, LayerPath, Limits, scan};
use imgctl_report::model::image as model;
use imgctl_trust::sbom::contents::Contents;
use imgctl_trust::sbom::packages::{self, Package};

/// Number of layers read in parallel.
const JOBS: usize = 4;
/// Maximum size of one database, in bytes.
const MAX_DATABASE: u64 = 64 << 20;
/// Maximum size of one layer without compression, in bytes.
const LIMITS: Limits = Limits {
    entries: 1_000_000,
    size: 16 << 30,
    path: 4096,
    depth: 512,
    pax: 1 << 20,
    ratio: 1024,
    ratio_from: 1 << 30,
};

/// The files of one layer that name packages, and what the layer removes from those below.
#[derive(Default)]
struct Found {
    files: BTreeMap<LayerPath, Vec<Package>>,
    removed: Vec<LayerPath>,
}

/// The layers, each read once even if several images share it.
pub(super) struct Layers(BTreeMap<Digest, Result<Found, String>>);

impl Layers {
    /// Reads the layers of `images`, which are in the embedded registry of `contents`. A layer that cannot be read is told where an
    /// image is asked for that has it.
    pub(super) fn read<'a>(
        of: impl IntoIterator<Item = (&'a Contents<'a>, &'a EmbeddedLayers)>,
    ) -> Self {
        let mut wanted: BTreeMap<Digest, &Contents<'_>> = BTreeMap::new();
        for (contents, layers) in of {
            wanted.extend(layers.digests.iter().map(|digest| (digest.clone(), contents)));
        }
        let found = workers::map(wanted, JOBS, |(digest, contents)| {
            let found = layer(contents, &digest).map_err(|error| error.to_string());
            (digest, found)
        });
        Self(found.into_iter().collect())
    }

    /// Returns the packages of an image by name, or why they are not known.
    pub(super) fn packages(
        &self,
        layers: &EmbeddedLayers,
    ) -> Result<BTreeMap<String, String>, String> {
        let mut files: BTreeMap<&LayerPath, &Vec<Package>> = BTreeMap::new();
        for digest in &layers.digests {
            let found = match self.0.get(digest) {
                Some(Ok(found)) => found,
                Some(Err(why)) => return Err(why.clone()),
                None => return Err(format!("layer {digest} was not read")),
            };
            files.retain(|path, _| !found.removed.iter().any(|gone| path.starts_with(gone)));
            files.extend(&found.files);
        }
        let all: BTreeSet<&Package> = files.into_values().flatten().collect();
        Ok(joined(all.into_iter().map(|package| (&*package.name, &*package.version))))
    }
}

/// Returns the versions of packages by name.
pub(super) fn versions(packages: &[model::Package]) -> BTreeMap<String, String> {
    joined(packages.iter().map(|package| (&*package.name, &*package.version)))
}

/// Several versions or architectures of one package are one row.
fn joined<'a>(packages: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    let mut versions: BTreeMap<String, String> = BTreeMap::new();
    for (name, version) in packages {
        let all = versions.entry(name.to_owned()).or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(version);
    }
    versions
}

/// Reads one layer of the embedded registry.
fn layer(contents: &Contents<'_>, digest: &Digest) -> Result<Found> {
    let path = super::embedded::path(digest)?;
    let mut found = Found::default();
    let is_there = contents.with_file(&path, |blob| {
        let expected = Expected { digest: Some(digest), ..Expected::default() };
        scan(blob, expected, LIMITS, &mut |entry, content, _| add(entry, content, &mut found))
            .map(drop)
    })?;
    if is_there.is_none() {
        return Err(Error::bad_content(format!("the registry lacks layer {digest}")));
    }
    Ok(found)
}

fn add(entry: &Entry, content: &mut dyn BufRead, found: &mut Found) -> Result<()> {
    match marker(&entry.path)? {
        Marker::Whiteout(path) | Marker::Opaque(path) => found.removed.push(path),
        Marker::Leftover => {}
        Marker::None if entry.size() == 0 => {}
        Marker::None => {
            let packages = match packages::database(entry.path.as_bytes()) {
                Some(_) if entry.size() > MAX_DATABASE => {
                    return Err(Error::bad_content(format!("{} is too large", entry.path)));
                }
                Some(parse) => {
                    let mut bytes = Vec::new();
                    let doing = || format!("cannot read {}", entry.path);
                    content.read_to_end(&mut bytes).doing(doing)?;
                    parse(&String::from_utf8_lossy(&bytes))
                }
                None if entry.mode & 0o111 != 0 => go_program::modules(content)?,
                None => Vec::new(),
            };
            // A file without packages replaces one that had some.
            found.files.insert(entry.path.clone(), packages);
        }
    }
    Ok(())
}
