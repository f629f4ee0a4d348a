//! Archives that ADD extracts, and contexts that arrive as a tar: read once into a scratch file,
//! so that their entries can be sorted and split like any others.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

use crate::build::items::{Content, Item, rewound};
use crate::error::{IoContext as _, Result};
use crate::layer::{EntryKind, LayerPath, TarReader, decompress};
use crate::store::Store;

/// Bytes of a tar header block.
const BLOCK: usize = 512;

/// The items of `file` if its content is a tar, compressed or not; `None` if it is something else
/// (then `file` stands at its beginning again).
pub(crate) fn read(store: &Store, mut file: File, name: &str) -> Result<Option<Vec<Item>>> {
    if !is_archive(&mut file, name)? {
        return Ok(None);
    }
    let limits = store.limits();
    let (_, reader) = decompress::decompress_within(file, limits)?;
    let mut tar = TarReader::new(reader, limits);
    let mut spool = store.scratch_file()?;
    let mut offset = 0;
    let mut items: Vec<Item> = Vec::new();
    let mut places: HashMap<LayerPath, usize> = HashMap::new();
    while let Some(entry) = tar.next_entry()? {
        let size = entry.size();
        let mut hasher = blake3::Hasher::new();
        let is_file = matches!(entry.kind, EntryKind::File { .. });
        if is_file {
            let mut both = Tee {
                file: &mut spool,
                hasher: &mut hasher,
            };
            io::copy(&mut tar, &mut both)
                .doing(|| format!("cannot extract {} of {name}", entry.path))?;
        }
        let item = Item {
            content: Content::None,
            digest: Some(if is_file {
                *hasher.finalize().as_bytes()
            } else {
                [0; 32]
            }),
            file: is_file.then_some((offset, size)),
            xattrs_unread: false,
            entry,
        };
        offset += size;
        match places.get(&item.entry.path) {
            // The last of several entries of one name counts, as tar(1) has it.
            Some(place) => items[*place] = item,
            None => {
                places.insert(item.entry.path.clone(), items.len());
                items.push(item);
            }
        }
    }
    let spool = rewound(spool)?;
    for item in &mut items {
        if let Some((offset, _)) = item.file.take() {
            item.content = Content::Range {
                file: Arc::clone(&spool),
                offset,
            };
        }
    }
    resolve_links(&mut items, &places);
    Ok(Some(items))
}

/// Hard links become further names of the file they mean, so that sorting cannot put a link
/// before its target.
fn resolve_links(items: &mut [Item], places: &HashMap<LayerPath, usize>) {
    for index in 0..items.len() {
        let EntryKind::HardLink { target } = &items[index].entry.kind else {
            continue;
        };
        let Some(place) = places.get(target).copied() else {
            continue;
        };
        if matches!(items[place].entry.kind, EntryKind::HardLink { .. }) {
            continue;
        }
        let file = Some((u64::MAX, place as u64));
        let target = items[place].clone();
        if matches!(target.entry.kind, EntryKind::File { .. }) {
            items[place].file = file;
        }
        let path = items[index].entry.path.clone();
        items[index] = Item { file, ..target };
        items[index].entry.path = path;
    }
}

struct Tee<'a> {
    file: &'a mut File,
    hasher: &'a mut blake3::Hasher,
}

impl io::Write for Tee<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the decompressed content starts with a tar header. Rewinds the file.
fn is_archive(file: &mut File, name: &str) -> Result<bool> {
    let mut block = Vec::with_capacity(BLOCK);
    {
        let copy = file
            .try_clone()
            .doing(|| format!("cannot open {name} twice"))?;
        // What cannot be decompressed is a file like any other.
        if let Ok((_, reader)) = decompress::decompress(copy) {
            let _ = reader.take(BLOCK as u64).read_to_end(&mut block);
        }
    }
    file.seek(SeekFrom::Start(0))
        .doing(|| format!("cannot rewind {name}"))?;
    Ok(is_tar_header(&block))
}

/// A block with a right checksum (POSIX pax, ustar header); an empty tar is one of zeros.
fn is_tar_header(block: &[u8]) -> bool {
    let Some(field) = block.get(148..156).filter(|_| block.len() == BLOCK) else {
        return false;
    };
    if block.iter().all(|b| *b == 0) {
        return true;
    }
    let text: String = field.iter().map(|b| char::from(*b)).collect();
    let digits = text.trim_matches(|c| c == ' ' || c == '\0');
    let Ok(expected) = u64::from_str_radix(digits, 8) else {
        return false;
    };
    let sum: u64 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| {
            if (148..156).contains(&at) {
                32
            } else {
                u64::from(*byte)
            }
        })
        .sum();
    sum == expected
}
