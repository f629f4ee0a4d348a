//! What an image changes compared with an older one.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::{Described, cut};
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest};
use imgctl_report::model::image::{
    Amount, Change, Comparison, FileChange, FileChanges, Layer, LayerChange, NamedChange, Transfer,
};
use imgctl_store::layer::tree;
use imgctl_store::layer::{EntryKind, Found, LayerPath};
use imgctl_store::store::{Image, Store};
use imgctl_transfer::transfer::partial::estimate;

/// Maximum number of files that are listed.
const MOST_FILES: usize = 1000;
/// Maximum length of a path, in bytes.
const LONGEST_PATH: usize = 1024;

/// Compares `after` with `before`.
pub(super) fn compare(
    store: &Store,
    before: &Described<'_>,
    after: &Described<'_>,
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
        for ((layer, shown), missing) in these.iter().zip(&described.layers).zip(bytes) {
            if lacks(others, &layer.digest) {
                let missing = if change == Change::Added { *missing } else { 0 };
                layers.push(layer_change(change, shown, missing));
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
    Ok(Comparison {
        name: image.reference.as_ref().map(ToString::to_string),
        digest: image.descriptor.digest.to_string(),
        compressed: old.iter().map(|layer| layer.size).fold(0, u64::saturating_add),
        forward: transfer(new, old, &forward),
        back: transfer(old, new, &back),
        layers_kept: new.iter().filter(|layer| !lacks(old, &layer.digest)).count() as u64,
        layers,
        files: files(before, after),
        embedded: changes(&digests(before), &digests(after)),
        packages: changes(&versions(before), &versions(after)),
    })
}

fn layer_change(change: Change, layer: &Layer, missing: u64) -> LayerChange {
    LayerChange {
        change,
        digest: layer.digest.clone(),
        kind: layer.kind.clone(),
        size: layer.size,
        missing,
        instruction: layer.instruction.clone(),
    }
}

fn files(before: &Described<'_>, after: &Described<'_>) -> FileChanges {
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
        let (was, is) = (size(old.lookup(&path)), size(new.lookup(&path)));
        // What directories contain is listed itself.
        if was.is_none() && is.is_none() {
            continue;
        }
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
    changes
}

fn digests(described: &Described<'_>) -> BTreeMap<String, String> {
    let images = described.embedded.images.iter();
    images.map(|image| (image.name.clone(), image.digest.clone())).collect()
}

fn versions(described: &Described<'_>) -> BTreeMap<String, String> {
    let mut versions: BTreeMap<String, String> = BTreeMap::new();
    for package in &described.packages.list {
        // Several versions or architectures of one package are one row.
        let all = versions.entry(package.name.clone()).or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(&package.version);
    }
    versions
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
