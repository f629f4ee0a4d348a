//! Sparse files as GNU tar stores them: which parts of the file have content (GNU tar manual,
//! "Storing Sparse Files"; the old GNU header, and PAX 0.0, 0.1 and 1.0). Supported for reading
//! only.

use std::io::Read;

use crate::pax;
use crate::tar_header::{self as header, BLOCK, Field};
use imgctl_base::error::{Error, Result};

/// Maximum number of stretches in one file. GNU tar writes one per hole, so real files have far
/// fewer.
const MAX_STRETCHES: usize = 1 << 18;

/// One stretch with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Offset in the file, in bytes.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) length: u64,
}

/// A validated list of stretches: sorted, disjoint and inside the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Map {
    stretches: Vec<Stretch>,
    size: u64,
    stored: u64,
}

impl Map {
    /// Validates `stretches` of a file of `size` bytes.
    pub(super) fn new(stretches: Vec<Stretch>, size: u64) -> Result<Self> {
        let mut end = 0;
        let mut stored = 0;
        for stretch in &stretches {
            let next = stretch.offset.checked_add(stretch.length);
            let next = next.filter(|next| stretch.offset >= end && *next <= size);
            end = next.ok_or_else(|| malformed("overlaps, or lies outside the file"))?;
            stored += stretch.length;
        }
        Ok(Self { stretches, size, stored })
    }

    /// Returns the size of the file, including holes, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of bytes stored in the archive.
    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns whether `position` of the file is in a hole or in content, and how many bytes of it
    /// follow. `stretch` is a cursor that the caller keeps, starting at 0.
    pub(super) fn at(&self, position: u64, stretch: &mut usize) -> Piece {
        while let Some(current) = self.stretches.get(*stretch) {
            if position < current.offset {
                return Piece::Hole(current.offset - position);
            }
            let end = current.offset + current.length;
            if position < end {
                return Piece::Content(end - position);
            }
            *stretch += 1;
        }
        Piece::Hole(self.size - position)
    }
}

/// The next part of a sparse file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Hole(u64),
    Content(u64),
}

fn malformed(why: &str) -> Error {
    Error::bad_content(format!("the map of a sparse file {why}"))
}

/// Reads the map of an old GNU header, including its continuation blocks.
pub(super) fn read_gnu(
    block: &[u8; BLOCK],
    mut next_block: impl FnMut() -> Result<[u8; BLOCK]>,
) -> Result<Map> {
    let size = unsigned(header::get(block, Field::GNU_REAL_SIZE))?;
    let mut stretches = Vec::new();
    let more = header::get(block, Field::GNU_IS_EXTENDED);
    let mut more = add_gnu(header::get(block, Field::GNU_SPARSE), more, &mut stretches)?;
    while more {
        if stretches.len() > MAX_STRETCHES {
            return Err(malformed("is too long"));
        }
        let block = next_block()?;
        // 21 stretches of 24 bytes, then the flag.
        let (pairs, rest) = block.split_at(504);
        more = add_gnu(pairs, &rest[..1], &mut stretches)?;
    }
    Map::new(stretches, size)
}

/// Adds the stretches of one block, and returns whether another follows. An empty stretch ends the
/// list; readers disagree about what comes after it.
fn add_gnu(bytes: &[u8], more: &[u8], stretches: &mut Vec<Stretch>) -> Result<bool> {
    let mut pairs = bytes.chunks_exact(24);
    while let Some((offset, length)) = pairs.next().map(|pair| pair.split_at(12)) {
        if offset[0] == 0 {
            let rest = pairs.flatten().chain(offset).chain(length).chain(more);
            return if rest.copied().all(|byte| byte == 0) {
                Ok(false)
            } else {
                Err(malformed("goes on behind its end"))
            };
        }
        if length[0] == 0 {
            return Err(malformed("has a part without a length"));
        }
        stretches.push(Stretch { offset: unsigned(offset)?, length: unsigned(length)? });
    }
    Ok(more != [0])
}

fn unsigned(field: &[u8]) -> Result<u64> {
    u64::try_from(header::number(field)?).map_err(|_| malformed("has a negative number"))
}

/// Information about a sparse file from PAX records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PaxSparse {
    /// The file's real name; the name in the header is made up for readers without sparse support.
    name: Option<Vec<u8>>,
    /// Whether major and minor version say 1.0.
    version: (Option<bool>, Option<bool>),
    size: Option<u64>,
    /// The size's name in version 1.0.
    real_size: Option<u64>,
    /// Version 0.0: offsets and lengths, one per record.
    pairs: Vec<u64>,
    /// Version 0.1: all in one record.
    map: Option<Vec<u64>>,
    count: Option<u64>,
}

impl PaxSparse {
    /// Adds the record `GNU.sparse.KEY`.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let number = || pax::decimal(value).ok_or_else(|| malformed("has a malformed number"));
        let is_new = match key {
            b"name" => self.name.replace(value.to_vec()).is_none() && !value.is_empty(),
            b"major" => self.version.0.replace(value == b"1").is_none(),
            b"minor" => self.version.1.replace(value == b"0").is_none(),
            b"size" => self.size.replace(number()?).is_none(),
            b"realsize" => self.real_size.replace(number()?).is_none(),
            b"numblocks" => self.count.replace(number()?).is_none(),
            b"offset" | b"numbytes" => {
                self.pairs.push(number()?);
                self.pairs.len().is_multiple_of(2) == (key == b"numbytes")
            }
            b"map" => {
                let numbers = value.split(|b| *b == b',').map(pax::decimal);
                let numbers = numbers.collect::<Option<Vec<u64>>>();
                let numbers = numbers.ok_or_else(|| malformed("is malformed"))?;
                self.map.replace(numbers).is_none()
            }
            _ => false,
        };
        if is_new {
            Ok(())
        } else {
            Err(malformed("repeats a record, or has one that is unknown or out of order"))
        }
    }

    /// Returns the file's real name.
    pub(super) fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// Returns whether the records describe a sparse file.
    pub(super) fn is_sparse(&self) -> bool {
        *self != Self::default()
    }

    /// Returns the map. Version 1.0 stores it at the start of the content, which is then read from
    /// `content` block by block. Readers find the version by different records, so there must be
    /// those that GNU tar writes in one version, and no others.
    pub(super) fn read_map(&self, content: &mut dyn Read) -> Result<Map> {
        let (size, numbers, count) = match self {
            Self {
                name: Some(_),
                version: (Some(true), Some(true)),
                size: None,
                real_size: Some(size),
                pairs,
                map: None,
                count: None,
            } if pairs.is_empty() => (size, read_numbers(content)?, None),
            Self {
                version: (None, None),
                size: Some(size),
                real_size: None,
                pairs,
                map: Some(map),
                count: Some(count),
                name: _,
            } if pairs.is_empty() => (size, map.clone(), Some(*count)),
            Self {
                name: None,
                version: (None, None),
                size: Some(size),
                real_size: None,
                pairs,
                map: None,
                count: Some(count),
            } => (size, pairs.clone(), Some(*count)),
            _ => return Err(malformed("has records of no version, or of several")),
        };
        if !numbers.len().is_multiple_of(2) || numbers.len() / 2 > MAX_STRETCHES {
            return Err(malformed("is truncated or too long"));
        }
        let stretches: Vec<Stretch> = numbers
            .chunks_exact(2)
            .map(|pair| Stretch { offset: pair[0], length: pair[1] })
            .collect();
        if count.is_some_and(|count| count != stretches.len() as u64) {
            return Err(malformed("does not have as many entries as it says"));
        }
        Map::new(stretches, *size)
    }
}

/// Reads the map of version 1.0: decimal numbers, one per line, padded to a block. The first is the
/// number of pairs that follow.
fn read_numbers(content: &mut dyn Read) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut expected = None;
    let mut line = Vec::new();
    let mut block = [0; BLOCK];
    while expected.is_none_or(|expected| numbers.len() < expected) {
        content
            .read_exact(&mut block)
            .map_err(|error| Error::io("cannot read the map of a sparse file", error))?;
        for byte in block {
            if byte != b'\n' {
                line.push(byte);
                if line.len() > 20 {
                    return Err(malformed("is malformed"));
                }
                continue;
            }
            let number = pax::decimal(&line).ok_or_else(|| malformed("is malformed"))?;
            line.clear();
            match expected {
                None if number > MAX_STRETCHES as u64 => return Err(malformed("is too long")),
                None => expected = Some(number as usize * 2),
                Some(_) => numbers.push(number),
            }
            if expected.is_some_and(|expected| numbers.len() == expected) {
                break;
            }
        }
    }
    Ok(numbers)
}
