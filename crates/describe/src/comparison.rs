//! What an image changes compared with an older one.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use crate::configuration::settings;
use crate::embedded::{self, EmbeddedLayers};
use crate::embedded_packages::{Layers, versions};
use crate::objects::Candidates;
use crate::{Inspected, cut};
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest, LayerKind};
use imgctl_base::semver::Version;
use imgctl_layer::tree;
use imgctl_layer::{EntryKind, Found, LayerPath};
use imgctl_report::model::comparison::{
    Amount, Change, Comparison, FileChange, FileChanges, ImageChange, ImageVersion, LayerChange,
    NamedChange, Transfer,
};
use imgctl_store::store::{Image, Store};
use imgctl_transfer::transfer::partial::estimate;

/// Maximum number of files that are listed.
const MOST_FILES: usize = 1000;
/// Where an image has its embedded registry.
const REGISTRY: &str = "registry/docker/registry";
/// Maximum length of a path, in bytes.
const LONGEST_PATH: usize = 1024;

/// Compares `after` with `before`.
pub(super) fn compare(
    store: &Store,
    before: &Inspected<'_>,
    after: &Inspected<'_>,
) -> Result<Comparison> {
    let (old, new) = (&before.image.manifest.layers, &after.image.manifest.layers);
    let forward = estimate::missing(store, new, old)?;
    let back = estimate::missing(store, old, new)?;
    let lacks =
        |layers: &[Descriptor], digest: &Digest| layers.iter().all(|layer| layer.digest != *digest);
    let mut layers = Vec::new();
    for (change, these, described, others, bytes) in
        [(Change::Added, new, after, old, &forward), (Change::Removed, old, before, new, &back)]
    {
        let mut steps = described.image.config.history.iter().filter(|step| !step.empty_layer);
        for (layer, missing) in these.iter().zip(bytes) {
            let instruction = steps.next().and_then(|step| step.created_by.clone());
            if lacks(others, &layer.digest) {
                layers.push(LayerChange {
                    change,
                    digest: layer.digest.to_string(),
                    kind: layer.layer_kind().map(LayerKind::as_str).map(str::to_owned),
                    size: layer.size,
                    missing: if change == Change::Added { *missing } else { 0 },
                    instruction: instruction.unwrap_or_default(),
                });
            }
        }
    }
    let transfer = |these: &[Descriptor], others: &[Descriptor], bytes: &[u64]| {
        let other = these.iter().filter(|layer| lacks(others, &layer.digest));
        let sizes: Vec<u64> = other.map(|layer| layer.size).collect();
        Transfer {
            layers: sizes.len() as u64,
            whole: sizes.into_iter().fold(0, u64::saturating_add),
            missing: bytes.iter().copied().fold(0, u64::saturating_add),
        }
    };
    let image: &Image = before.image;
    let (files, candidates) = files(before, after)?;
    Ok(Comparison {
        name: image.reference.as_ref().map(ToString::to_string),
        digest: image.descriptor.digest.to_string(),
        compressed: old.iter().map(|layer| layer.size).fold(0, u64::saturating_add),
        forward: transfer(new, old, &forward),
        back: transfer(old, new, &back),
        layers_kept: new.iter().filter(|layer| !lacks(old, &layer.digest)).count() as u64,
        layers,
        configuration: changes(&settings(&before.image.config), &settings(&after.image.config)),
        embedded: images(before, after),
        charts: candidates.charts(before, after)?,
        objects: candidates.objects(before, after)?,
        files,
        packages: changes(&versions(&before.packages.list), &versions(&after.packages.list)),
    })
}

/// Returns the files that differ, without those of the embedded registry, and which of them hold objects and charts.
fn files(before: &Inspected<'_>, after: &Inspected<'_>) -> Result<(FileChanges, Candidates)> {
    let registry = LayerPath::parse(REGISTRY.as_bytes())?;
    let mut candidates = Candidates::default();
    let (old, new) = (before.contents.tree(), after.contents.tree());
    let size = |found: Option<Found<'_>>| match found.map(|found| &found.entry().kind) {
        Some(EntryKind::File { size }) => Some(*size),
        Some(EntryKind::Directory) | None => None,
        Some(_) => Some(0),
    };
    let mut changes = FileChanges::default();
    // The largest; of the same size, the first.
    let mut all: Vec<(Change, LayerPath, u64, u64)> = Vec::new();
    let keep_largest = |all: &mut Vec<(Change, LayerPath, u64, u64)>| {
        all.sort_by_key(|(_, _, was, is)| Reverse(*was.max(is)));
        all.truncate(MOST_FILES);
    };
    let mut count = 0;
    for (change, path) in tree::compare(old, new) {
        // Its content is told as images.
        if path.starts_with(&registry) {
            continue;
        }
        let (was, is) = (size(old.lookup(&path)), size(new.lookup(&path)));
        // What directories contain is listed itself.
        if was.is_none() && is.is_none() {
            continue;
        }
        candidates.add(&path, [old, new]);
        let (was, is) = (was.unwrap_or(0), is.unwrap_or(0));
        let (change, sum, bytes) = match change {
            tree::Change::Added => (Change::Added, &mut changes.added, is),
            tree::Change::Modified => (Change::Changed, &mut changes.changed, is),
            tree::Change::Deleted => (Change::Removed, &mut changes.removed, was),
        };
        *sum = Amount { count: sum.count + 1, bytes: sum.bytes.saturating_add(bytes) };
        all.push((change, path, was, is));
        count += 1;
        if all.len() >= 4 * MOST_FILES {
            keep_largest(&mut all);
        }
    }
    keep_largest(&mut all);
    changes.omitted = count - all.len() as u64;
    let listed = all.into_iter().map(|(change, path, before, after)| FileChange {
        change,
        path: cut(&String::from_utf8_lossy(path.as_bytes()), LONGEST_PATH),
        before,
        after,
    });
    changes.list = listed.collect();
    Ok((changes, candidates))
}

/// An embedded image: its version and its layers.
type Embedded<'a> = (ImageVersion, &'a EmbeddedLayers);

/// The embedded images of each repository.
fn by_repository<'a>(described: &'a Inspected<'_>) -> BTreeMap<&'a str, Vec<Embedded<'a>>> {
    let mut all: BTreeMap<&str, Vec<Embedded<'_>>> = BTreeMap::new();
    let embedded::Embedded { images, layers, .. } = &described.embedded;
    for (image, layers) in images.iter().zip(layers) {
        let (repository, tag) = match image.name.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag.to_owned())),
            None => (&*image.name, None),
        };
        let version = ImageVersion { tag, digest: image.digest.clone() };
        all.entry(repository).or_default().push((version, layers));
    }
    all
}

/// Returns the changed embedded images, sorted by repository.
fn images(before: &Inspected<'_>, after: &Inspected<'_>) -> Vec<ImageChange> {
    let (mut old, mut new) = (by_repository(before), by_repository(after));
    let repositories: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let mut pairs: Vec<(&str, Option<Embedded<'_>>, Option<Embedded<'_>>)> = Vec::new();
    for repository in repositories {
        let (was, is) = (old.remove(repository), new.remove(repository));
        let paired = pair(&was.unwrap_or_default(), &is.unwrap_or_default());
        pairs.extend(paired.into_iter().map(|(was, is)| (repository, was, is)));
    }
    let both = pairs.iter().filter_map(|(_, was, is)| Some((was.as_ref()?, is.as_ref()?)));
    let layers = Layers::read(
        both.flat_map(|(was, is)| [(&before.contents, was.1), (&after.contents, is.1)]),
    );
    let change = |(repository, was, is): (&str, Option<Embedded<'_>>, Option<Embedded<'_>>)| {
        let (change, packages) = match (&was, &is) {
            (None, _) => (Change::Added, Ok(Vec::new())),
            (_, None) => (Change::Removed, Ok(Vec::new())),
            (Some(was), Some(is)) => {
                let both = layers.packages(was.1).and_then(|was| Ok((was, layers.packages(is.1)?)));
                (Change::Changed, both.map(|(was, is)| changes(&was, &is)))
            }
        };
        let unread = packages.as_ref().err().cloned();
        ImageChange {
            change,
            repository: repository.to_owned(),
            before: was.map(|(version, _)| version),
            after: is.map(|(version, _)| version),
            packages: packages.unwrap_or_default(),
            unread,
        }
    };
    pairs.into_iter().map(change).collect()
}

/// Pairs the versions of one repository that differ: those with the same tag, then the newest with the newest.
fn pair<'a>(
    old: &[Embedded<'a>],
    new: &[Embedded<'a>],
) -> Vec<(Option<Embedded<'a>>, Option<Embedded<'a>>)> {
    let (mut old, mut new): (Vec<_>, Vec<_>) = {
        let is_in =
            |list: &[Embedded<'_>], one: &Embedded<'_>| list.iter().any(|other| other.0 == one.0);
        let only_old: Vec<_> = old.iter().filter(|one| !is_in(new, one)).cloned().collect();
        let only_new = new.iter().filter(|one| !is_in(old, one)).cloned().collect();
        (only_old, only_new)
    };
    let mut pairs = Vec::new();
    old.retain(|was| {
        let same = |is: &Embedded<'_>| was.0.tag.is_some() && is.0.tag == was.0.tag;
        let Some(at) = new.iter().position(same) else { return true };
        pairs.push((Some(was.clone()), Some(new.remove(at))));
        false
    });
    for list in [&mut old, &mut new] {
        list.sort_by(|one, other| newest_first(&one.0, &other.0));
    }
    let (mut old, mut new) = (old.into_iter(), new.into_iter());
    loop {
        let next = (old.next(), new.next());
        if let (None, None) = next {
            return pairs;
        }
        pairs.push(next);
    }
}

fn newest_first(one: &ImageVersion, other: &ImageVersion) -> Ordering {
    let version = |image: &ImageVersion| {
        let tag = image.tag.as_deref()?;
        Version::parse(tag.strip_prefix('v').unwrap_or(tag))
    };
    match (version(one), version(other)) {
        (Some(one), Some(other)) => other.compare(&one),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => other.cmp(one),
    }
}

/// Returns what differs between two lists, sorted by name.
fn changes(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<NamedChange> {
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    let change = |name: &String| {
        let (before, after) = (old.get(name), new.get(name));
        let change = match (before, after) {
            (None, _) => Change::Added,
            (_, None) => Change::Removed,
            (before, after) if before != after => Change::Changed,
            _ => return None,
        };
        Some(NamedChange {
            change,
            name: name.clone(),
            before: before.cloned(),
            after: after.cloned(),
        })
    };
    names.into_iter().filter_map(change).collect()
}
