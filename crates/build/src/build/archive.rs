//! Archives that ADD extracts, and contexts that arrive as a tar: read once into a scratch file,
//! so that their entries can be sorted and split like any others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

use crate::build::items::{Content, Item};
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_layer::tar_reader::begins_tar;
use imgctl_layer::{EntryKind, LayerPath, Names, TarReader, decompress};
use imgctl_store::store::Store;

/// Size of a tar header block, in bytes.
const BLOCK: usize = 512;

/// Returns the items of `file` if its content is a tar, compressed or not; `None` if it is anything
/// else (`file` is then rewound to its beginning).
pub(super) fn read(store: &Store, mut file: File, name: &str) -> Result<Option<Vec<Item>>> {
    if !is_archive(&mut file, name)? {
        return Ok(None);
    }
    let limits = store.limits();
    let (_, reader) = decompress::decompress_within(file, limits)?;
    let mut tar = TarReader::new(reader, limits, Names::Archive);
    let mut spool = store.scratch_file()?;
    let contents = spool.try_clone().doing(|| "cannot open a scratch file twice".to_owned())?;
    let contents = Arc::new(contents);
    let mut offset = 0;
    let mut number = 0;
    let mut extracted = Extracted::default();
    while let Some(entry) = tar.next_entry()? {
        let size = entry.size();
        let mut item = Item::bare(entry);
        if let EntryKind::File { .. } = item.entry.kind {
            let mut hasher = blake3::Hasher::new();
            let mut both = Tee { file: &mut spool, hasher: &mut hasher };
            io::copy(&mut tar, &mut both)
                .doing(|| format!("cannot extract {} of {name}", item.entry.path))?;
            item.digest = Some(*hasher.finalize().as_bytes());
            item.file = Some(Box::new((u64::MAX, number)));
            item.content = Content::Range { file: Arc::clone(&contents), offset };
        }
        offset += size;
        number += 1;
        extracted.add(item).context(|| format!("cannot extract {name}"))?;
    }
    Ok(Some(extracted.items.into_iter().flatten().collect()))
}

/// Returns what ADD extracts from `file`: an archive without any entry is a file (BuildKit, buildah).
pub(super) fn to_extract(store: &Store, file: File, name: &str) -> Result<Option<Vec<Item>>> {
    Ok(read(store, file, name)?.filter(|items| !items.is_empty()))
}

/// What tar(1) would have extracted so far, in archive order.
#[derive(Default)]
struct Extracted {
    items: Vec<Option<Item>>,
    places: BTreeMap<LayerPath, usize>,
}

impl Extracted {
    /// Of several entries with the same name, the last one counts. A hard link becomes another name
    /// of the file that its target is now, so that sorting cannot put a link before its target, and
    /// a later replacement of the target does not change it.
    fn add(&mut self, mut item: Item) -> Result<()> {
        if let EntryKind::HardLink { target } = &item.entry.kind
            && let Some(place) = self.places.get(target)
            && let Some(found) = &self.items[*place]
        {
            if found.entry.is_directory() {
                return Err(Error::bad_content(format!(
                    "{} is a hard link to the directory {target}",
                    item.entry.path
                )));
            }
            let path = item.entry.path;
            item = found.clone();
            item.entry.path = path;
        }
        if !item.entry.is_directory() {
            self.remove_below(&item.entry.path);
        }
        match self.places.get(&item.entry.path) {
            Some(place) => self.items[*place] = Some(item),
            None => {
                self.places.insert(item.entry.path.clone(), self.items.len());
                self.items.push(Some(item));
            }
        }
        Ok(())
    }

    fn remove_below(&mut self, path: &LayerPath) {
        // Names are never empty and contain no NUL, so nothing below sorts before this path.
        while let Some((below, place)) = self.places.range(path.join(&[1])..).next()
            && below.starts_with(path)
        {
            self.items[*place] = None;
            let below = below.clone();
            self.places.remove(&below);
        }
    }
}

/// Writes to a file and hashes what it writes.
pub(super) struct Tee<'a> {
    pub(super) file: &'a mut File,
    pub(super) hasher: &'a mut blake3::Hasher,
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
        let copy = file.try_clone().doing(|| format!("cannot open {name} twice"))?;
        // Content that cannot be decompressed is treated as a regular file.
        if let Ok((_, reader)) = decompress::decompress(copy) {
            let _ = reader.take(BLOCK as u64).read_to_end(&mut block);
        }
    }
    file.seek(SeekFrom::Start(0)).doing(|| format!("cannot rewind {name}"))?;
    Ok(begins_tar(&block))
}
