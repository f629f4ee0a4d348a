//! Splits a step's items of a registry tree by image.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;

use crate::build::items::{Item, Opened};
use crate::embed::split;
use imgctl_base::error::{IoContext as _, Result};
use imgctl_store::layer::{EntryKind, LayerPath};

/// Splits `items` (in layer order) into parts, each in layer order and with the directories it
/// needs.
pub(in crate::build) fn split(mut items: Vec<Item>) -> Result<Vec<Vec<Item>>> {
    let is_file = |item: &Item| matches!(item.entry.kind, EntryKind::File { .. });
    let numbers: Vec<usize> = (0..items.len()).filter(|n| is_file(&items[*n])).collect();
    let names: Vec<String> = numbers
        .iter()
        .map(|number| String::from_utf8_lossy(items[*number].entry.path.as_bytes()).into_owned())
        .collect();
    let files: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut read = |number: usize, limit: u64| {
        let item = &mut items[numbers[number]];
        if item.entry.size() > limit {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        Opened::open(item)?
            .take(limit)
            .read_to_end(&mut bytes)
            .doing(|| format!("cannot read {}", item.entry.path))?;
        Ok(Some(bytes))
    };
    let parts = split::parts(&files, &mut read)?;
    if parts.iter().all(|part| *part == parts[0]) {
        return Ok(vec![items]);
    }
    let part_of: HashMap<usize, String> = numbers.into_iter().zip(parts).collect();
    Ok(distribute(items, &part_of))
}

/// Directories go to every part with content in them; empty directories, and everything that is not
/// a file, go to the unnamed part.
fn distribute(items: Vec<Item>, part_of: &HashMap<usize, String>) -> Vec<Vec<Item>> {
    let mut parts: BTreeMap<String, Vec<(usize, Item)>> = BTreeMap::new();
    let mut directories: HashMap<LayerPath, (usize, Item)> = HashMap::new();
    let mut used: HashMap<String, Vec<LayerPath>> = HashMap::new();
    for (number, item) in items.into_iter().enumerate() {
        if item.entry.is_directory() {
            directories.insert(item.entry.path.clone(), (number, item));
            continue;
        }
        let part = part_of.get(&number).cloned().unwrap_or_default();
        used.entry(part.clone()).or_default().extend(item.entry.path.parent());
        parts.entry(part).or_default().push((number, item));
    }
    let mut left: HashMap<LayerPath, (usize, Item)> = directories.clone();
    for (part, parents) in used {
        let mut mine: HashMap<LayerPath, (usize, Item)> = HashMap::new();
        for mut directory in parents {
            while !mine.contains_key(&directory)
                && let Some(item) = directories.get(&directory)
            {
                left.remove(&directory);
                mine.insert(directory.clone(), item.clone());
                match directory.parent() {
                    Some(parent) => directory = parent,
                    None => break,
                }
            }
        }
        parts.entry(part).or_default().extend(mine.into_values());
    }
    if !left.is_empty() {
        let nameless = parts.entry(String::new()).or_default();
        nameless.extend(left.into_values());
    }
    let sorted = parts.into_values().map(|mut part| {
        part.sort_by_key(|(number, _)| *number);
        part.into_iter().map(|(_, item)| item).collect()
    });
    sorted.collect()
}
