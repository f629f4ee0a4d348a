//! The packages inside embedded container images: the databases of distributions, and the modules of Go programs, of which most images
//! of Kubernetes consist. Reads each layer once; must not know how packages are shown.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
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
use imgctl_trust::sbom::packages::{self, Budget, Package};

/// Number of layers read in parallel.
const JOBS: usize = 4;
/// Maximum size of one database, in bytes.
const MAX_DATABASE: u64 = 64 << 20;
/// Maximum number of packages in all layers.
const MAX_PACKAGES: u64 = 400_000;
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
    files: BTreeMap<LayerPath, BTreeSet<Package>>,
    /// Hashes of the paths of all other files: one replaces a file below that named packages.
    others: HashSet<u64>,
    removed: HashSet<LayerPath>,
}

impl Found {
    fn hides(&self, path: &LayerPath) -> bool {
        let mut above = Some(path.clone());
        while let Some(path) = above {
            if self.removed.contains(&path) {
                return true;
            }
            above = path.parent();
        }
        self.others.contains(&hashed(path))
    }
}

fn hashed(path: &LayerPath) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
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
        let budget = Budget::new(MAX_PACKAGES);
        let found = workers::map(wanted, JOBS, |(digest, contents)| {
            let found = layer(contents, &digest, &budget).map_err(|error| error.to_string());
            (digest, found)
        });
        Self(found.into_iter().collect())
    }

    /// Returns the packages of an image by name, or why they are not known.
    pub(super) fn packages(
        &self,
        layers: &EmbeddedLayers,
    ) -> Result<BTreeMap<String, String>, String> {
        let mut files: BTreeMap<&LayerPath, &BTreeSet<Package>> = BTreeMap::new();
        for digest in &layers.digests {
            let found = match self.0.get(digest) {
                Some(Ok(found)) => found,
                Some(Err(why)) => return Err(why.clone()),
                None => return Err(format!("layer {digest} was not read")),
            };
            files.retain(|path, _| !found.hides(path));
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
fn layer(contents: &Contents<'_>, digest: &Digest, budget: &Budget) -> Result<Found> {
    let path = super::embedded::path(digest)?;
    let mut found = Found::default();
    let is_there = contents.with_file(&path, |blob| {
        let expected = Expected { digest: Some(digest), ..Expected::default() };
        scan(blob, expected, LIMITS, &mut |entry, content, _| {
            add(entry, content, budget, &mut found)
        })
        .map(drop)
    })?;
    if is_there.is_none() {
        return Err(Error::bad_content(format!("the registry lacks layer {digest}")));
    }
    Ok(found)
}

fn add(entry: &Entry, content: &mut dyn BufRead, budget: &Budget, found: &mut Found) -> Result<()> {
    match marker(&entry.path)? {
        Marker::Whiteout(path) | Marker::Opaque(path) => {
            budget.name()?;
            found.removed.insert(path);
        }
        Marker::Leftover => {}
        Marker::None if entry.size() == 0 => {}
        Marker::None => {
            let mut packages = BTreeSet::new();
            match packages::database(entry.path.as_bytes()) {
                Some(_) if entry.size() > MAX_DATABASE => {
                    return Err(Error::bad_content(format!("{} is too large", entry.path)));
                }
                Some(parse) => {
                    let mut bytes = Vec::new();
                    let doing = || format!("cannot read {}", entry.path);
                    content.read_to_end(&mut bytes).doing(doing)?;
                    budget.read(parse, &String::from_utf8_lossy(&bytes), &mut packages)?;
                }
                None if entry.mode & 0o111 != 0 => {
                    for package in go_program::modules(content)? {
                        budget.keep(package, &mut packages)?;
                    }
                }
                None => {}
            }
            budget.name()?;
            // A file without packages replaces one that had some.
            if packages.is_empty() {
                found.files.remove(&entry.path);
                found.others.insert(hashed(&entry.path));
            } else {
                found.files.insert(entry.path.clone(), packages);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_layer::EntryKind;

    fn put(found: &mut Found, budget: &Budget, name: &str, content: &str) -> Result<()> {
        let size = u64::try_from(content.len()).unwrap();
        let path = LayerPath::parse(name.as_bytes()).unwrap();
        let entry = Entry::new(path, EntryKind::File { size }, 0o644);
        add(&entry, &mut content.as_bytes(), budget, found)
    }

    #[test]
    fn layers_share_one_budget() {
        let budget = Budget::new(3);
        let (mut lower, mut upper) = (Found::default(), Found::default());
        let record = |name: &str| format!("Package: {name}\nVersion: 1\n\n");
        let many = record("a").repeat(10_000);
        put(&mut lower, &budget, "var/lib/dpkg/status.d/a", &many).unwrap();
        put(&mut lower, &budget, "var/lib/dpkg/status.d/b", &record("b")).unwrap();
        put(&mut upper, &budget, "var/lib/dpkg/status.d/c", &record("c")).unwrap();
        let error = put(&mut upper, &budget, "var/lib/dpkg/status.d/d", &record("d")).unwrap_err();
        assert!(error.to_string().contains("more than 3 packages"), "{error}");
    }

    #[test]
    fn a_file_or_a_marker_hides_the_packages_of_layers_below() {
        let budget = Budget::new(100);
        let mut lower = Found::default();
        let record = "Package: a\nVersion: 1\n";
        for name in ["a", "b", "c"] {
            put(&mut lower, &budget, &format!("var/lib/dpkg/status.d/{name}"), record).unwrap();
        }
        let mut upper = Found::default();
        put(&mut upper, &budget, "var/lib/dpkg/status.d/a", "none").unwrap();
        put(&mut upper, &budget, "var/lib/dpkg/status.d/.wh.b", "").unwrap();
        let hidden: Vec<bool> = lower.files.keys().map(|path| upper.hides(path)).collect();
        assert_eq!(hidden, [true, true, false]);
        put(&mut upper, &budget, "var/lib/.wh.dpkg", "").unwrap();
        assert!(lower.files.keys().all(|path| upper.hides(path)));
    }
}
