//! What the other side has: where equal bytes are, and which old file a new one resembles.
//!
//! Must not know how recipes are made.

use std::collections::HashMap;

use crate::delta::Base;
use crate::delta::format::{Form, Reference};
use crate::delta::segments::{self, Kind, Segment};
use crate::{EntryKind, LayerPath, Toc};
use imgctl_base::error::{Context, Result};

/// Maximum length of one reference, in bytes of content: the other side decompresses it at once.
const LONGEST_REFERENCE: u64 = 16 << 20;
/// Size of the header before a file's content, in bytes.
const HEADER: u64 = 512;

/// A file of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OldFile {
    pub(super) base: usize,
    /// Range of its content in the tar, in bytes.
    pub(super) start: u64,
    pub(super) size: u64,
}

impl OldFile {
    /// Where its header begins.
    pub(super) fn header(&self) -> u64 {
        self.start.saturating_sub(HEADER)
    }
}

/// A segment of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) base: usize,
    pub(super) segment: usize,
}

/// Bases with their indices: made once for all blobs that are compared with them.
pub struct Bases<'a> {
    pub(super) list: &'a [Base],
    segments: Vec<Vec<Segment>>,
    by_hash: HashMap<([u8; 32], u64), Place>,
    by_path: HashMap<&'a [u8], OldFile>,
    /// By the last component of the path, without its digits.
    by_name: HashMap<Vec<u8>, Vec<OldFile>>,
    by_content: HashMap<[u8; 32], OldFile>,
}

impl<'a> Bases<'a> {
    /// Reads all bases.
    pub fn new(list: &'a [Base]) -> Result<Self> {
        let mut bases = Self {
            list,
            segments: Vec::new(),
            by_hash: HashMap::new(),
            by_path: HashMap::new(),
            by_name: HashMap::new(),
            by_content: HashMap::new(),
        };
        for (base, old) in list.iter().enumerate() {
            let split = if old.is_file {
                let content = old.toc.entries.first().and_then(|listed| listed.content);
                segments::file(&old.blob, content)
            } else {
                segments::layer(&old.blob, &old.toc)
            };
            let split = split.context(|| format!("cannot read {}", old.digest))?;
            for (segment, found) in split.list.iter().enumerate() {
                if let Some(hash) = found.hash {
                    let place = Place { base, segment };
                    bases.by_hash.entry((hash, found.length)).or_insert(place);
                }
            }
            bases.segments.push(split.list);
            bases.add_files(base, old);
        }
        Ok(bases)
    }

    fn add_files(&mut self, base: usize, old: &'a Base) {
        for listed in &old.toc.entries {
            let EntryKind::File { size } = listed.entry.kind else { continue };
            if size == 0 || (listed.offset == 0 && !old.is_file) {
                continue;
            }
            let file = OldFile { base, start: listed.offset, size };
            // Of several files with one path, the last one is in the tree.
            self.by_path.insert(listed.entry.path.as_bytes(), file);
            self.by_name.entry(name_of(&listed.entry.path)).or_default().push(file);
            if let Some(content) = listed.content {
                self.by_content.entry(content).or_insert(file);
            }
        }
    }

    pub(super) fn segment(&self, place: Place) -> Option<&Segment> {
        self.segments.get(place.base)?.get(place.segment)
    }

    /// Finds a segment with the same bytes; if there are several, the one after `last`.
    pub(super) fn same(&self, wanted: &Segment, last: Option<Place>) -> Option<Place> {
        let key = (wanted.hash?, wanted.length);
        let next = last.map(|last| Place { segment: last.segment + 1, ..last });
        let follows = next.filter(|place| {
            let segment = self.segment(*place);
            segment.is_some_and(|found| found.hash == wanted.hash && found.length == wanted.length)
        });
        follows.or_else(|| self.by_hash.get(&key).copied())
    }

    /// Finds a file with the same content.
    pub(super) fn equal(&self, content: &[u8; 32], size: u64) -> Option<OldFile> {
        self.by_content.get(content).copied().filter(|file| file.size == size)
    }

    /// Finds the file that a new one at `path` with `size` bytes most likely resembles.
    pub(super) fn similar(&self, path: &LayerPath, size: u64) -> Option<OldFile> {
        if let Some(file) = self.by_path.get(path.as_bytes()) {
            return Some(*file);
        }
        let files = self.by_name.get(&name_of(path))?;
        let nearest = files.iter().min_by_key(|file| file.size.abs_diff(size))?;
        // Many files have the name of blobs, `data`: then their size must be about the same.
        let apart = nearest.size.abs_diff(size);
        let is_near = match files.len() {
            1 => apart <= size.max(nearest.size) / 2,
            _ => apart <= size / 8,
        };
        is_near.then_some(*nearest)
    }

    /// Extends a range of a base's tar to whole segments; `None` if it cannot be read on its own.
    pub(super) fn aligned(&self, base: usize, start: u64, end: u64) -> Option<(u64, u64)> {
        let mut found = self.covering(base, start, end);
        let first = found.next()?;
        let last = found.last().unwrap_or(first);
        match first.kind {
            Kind::Plain => Some((start.max(first.tar), end.min(last.tar + last.content))),
            _ => Some((first.tar, last.tar + last.content)),
        }
    }

    /// The segments that hold a range of a base's tar.
    fn covering(&self, base: usize, start: u64, end: u64) -> impl Iterator<Item = &Segment> {
        let segments: &[Segment] = self.segments.get(base).map_or(&[], Vec::as_slice);
        let first = segments.partition_point(|segment| segment.tar + segment.content <= start);
        let (_, rest) = segments.split_at(first);
        rest.iter()
            .take_while(move |segment| segment.tar < end)
            .filter(|segment| segment.content > 0)
    }

    /// Returns the references to an aligned range.
    pub(super) fn references(&self, base: usize, start: u64, end: u64) -> Vec<Reference> {
        let mut references: Vec<Reference> = Vec::new();
        for segment in self.covering(base, start, end) {
            let form = match segment.kind {
                Kind::Plain => Form::Plain,
                Kind::Frame => Form::Frames,
                Kind::Deflate => Form::Deflate,
                Kind::List(_) | Kind::Opaque => continue,
            };
            let mut next = Reference {
                source: base,
                form,
                start: segment.start,
                length: segment.length,
                content: segment.content,
            };
            if form == Form::Plain {
                let from = start.max(segment.tar);
                let to = end.min(segment.tar + segment.content);
                next.start += from - segment.tar;
                next.length = to - from;
                next.content = next.length;
            }
            match references.last_mut() {
                Some(last)
                    if last.form == form
                        && last.start + last.length == next.start
                        && (form == Form::Plain
                            || last.content + next.content <= LONGEST_REFERENCE) =>
                {
                    last.length += next.length;
                    last.content += next.content;
                }
                _ => references.push(next),
            }
        }
        references
    }

    /// Returns the segment of `base` with the part of its list with this number.
    pub(super) fn list(&self, base: usize, number: usize) -> Option<&Segment> {
        self.segments.get(base)?.iter().rev().find(|segment| segment.kind == Kind::List(number))
    }
}

fn name_of(path: &LayerPath) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default();
    name.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect()
}

/// A file of the new layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewFile<'a> {
    /// Range of its content in the tar, in bytes.
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) content: Option<&'a [u8; 32]>,
    pub(super) path: &'a LayerPath,
}

/// The files of a layer, in the order of the tar.
pub(super) fn new_files(toc: &Toc) -> Vec<NewFile<'_>> {
    let mut files: Vec<NewFile<'_>> = toc
        .entries
        .iter()
        .filter(|listed| listed.offset > 0 && listed.entry.size() > 0)
        .map(|listed| NewFile {
            start: listed.offset,
            size: listed.entry.size(),
            content: listed.content.as_ref(),
            path: &listed.entry.path,
        })
        .collect();
    files.sort_by_key(|file| file.start);
    files
}
