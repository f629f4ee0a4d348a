//! Which parts of a blob can be copied from blobs that are here already. Equal content was compressed
//! to equal frames if both blobs were written in the same way; that is not certain, so that the whole
//! must be verified by its digest.

use std::collections::HashMap;
use std::ops::Range;

use crate::layer::chunked::read::Table;

/// A part of a blob, in bytes. The parts of a blob follow each other without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Must be fetched.
    Missing(Range<u64>),
    /// Can be copied from the known blob with this index, where the range is another one.
    Known { length: u64, source: usize, start: u64 },
}

impl Part {
    /// Returns the number of bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Missing(range) => range.end - range.start,
            Self::Known { length, .. } => *length,
        }
    }
}

/// What identifies a run of bytes before they are there.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Content(&'a str, u64),
    Headers(&'a [u8; 32]),
}

/// Splits a blob of `size` bytes with the table `wanted` into parts, of which those that a blob of
/// `known` has are not missing.
pub fn parts(wanted: &Table, size: u64, known: &[Table]) -> Vec<Part> {
    let mut places = HashMap::new();
    for (source, table) in known.iter().enumerate() {
        each(table, &mut |key, range| {
            places.entry((key, range.end - range.start)).or_insert((source, range.start));
        });
    }
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |part: Part| match (parts.last_mut(), part) {
        (Some(Part::Missing(last)), Part::Missing(range)) if last.end == range.start => {
            last.end = range.end;
        }
        (
            Some(Part::Known { length, source, start }),
            Part::Known { length: more, source: other, start: next },
        ) if *source == other && *start + *length == next => *length += more,
        (_, part) => parts.push(part),
    };
    each(wanted, &mut |key, range| {
        let length = range.end - range.start;
        add(match places.get(&(key, length)) {
            Some((source, start)) => Part::Known { length, source: *source, start: *start },
            None => Part::Missing(range),
        });
    });
    if wanted.end < size {
        add(Part::Missing(wanted.end..size));
    }
    parts
}

/// Calls `each` for the runs of bytes of a blob up to its list, in their order.
fn each<'a>(table: &'a Table, each: &mut dyn FnMut(Key<'a>, Range<u64>)) {
    let mut position = 0;
    for frame in &table.frames {
        if position < frame.start {
            each(Key::Headers(&frame.headers), position..frame.start);
        }
        each(Key::Content(frame.digest.hex(), frame.length), frame.start..frame.end);
        position = frame.end;
    }
    if position < table.end {
        each(Key::Headers(&table.headers), position..table.end);
    }
}
