//! The body of a stored table of contents: numbers as LEB128, each path as its difference from the
//! preceding one. Must not depend on files or checksums.

use std::collections::BTreeMap;

use super::{RestartPoint, Toc, TocEntry};
use crate::layer::{Entry, EntryKind, LayerPath, Mtime};

impl Toc {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len() * 96);
        put(&mut out, self.restarts.len() as u64);
        let mut last = RestartPoint { compressed: 0, uncompressed: 0 };
        for restart in &self.restarts {
            put(&mut out, restart.compressed.wrapping_sub(last.compressed));
            put(&mut out, restart.uncompressed.wrapping_sub(last.uncompressed));
            last = *restart;
        }
        put(&mut out, self.entries.len() as u64);
        let mut path: &[u8] = b"";
        for listed in &self.entries {
            let next = listed.entry.path.as_bytes();
            put_entry(&mut out, listed, path);
            path = next;
        }
        out
    }

    /// Decodes a body; `None` for anything that [`Toc::encode`] cannot have written.
    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let mut input = Input(body);
        let mut toc = Self::default();
        let mut last = RestartPoint { compressed: 0, uncompressed: 0 };
        for _ in 0..input.count()? {
            last = RestartPoint {
                compressed: last.compressed.wrapping_add(input.number()?),
                uncompressed: last.uncompressed.wrapping_add(input.number()?),
            };
            toc.restarts.push(last);
        }
        let mut path = Vec::new();
        for _ in 0..input.count()? {
            toc.entries.push(input.entry(&mut path)?);
        }
        input.0.is_empty().then_some(toc)
    }
}

const FILE: u64 = 0;
const DIRECTORY: u64 = 1;
const SYMLINK: u64 = 2;
const HARD_LINK: u64 = 3;
const CHAR_DEVICE: u64 = 4;
const BLOCK_DEVICE: u64 = 5;
const FIFO: u64 = 6;

fn put_entry(out: &mut Vec<u8>, listed: &TocEntry, last_path: &[u8]) {
    let entry = &listed.entry;
    let path = entry.path.as_bytes();
    let same = path.iter().zip(last_path).take_while(|(a, b)| a == b);
    let same = same.count();
    put(out, same as u64);
    put_bytes(out, &path[same..]);
    match &entry.kind {
        EntryKind::File { size } => {
            put(out, FILE);
            put(out, *size);
        }
        EntryKind::Directory => put(out, DIRECTORY),
        EntryKind::Symlink { target } => {
            put(out, SYMLINK);
            put_bytes(out, target);
        }
        EntryKind::HardLink { target } => {
            put(out, HARD_LINK);
            put_bytes(out, target.as_bytes());
        }
        EntryKind::CharDevice { major, minor } => {
            put(out, CHAR_DEVICE);
            put(out, u64::from(*major));
            put(out, u64::from(*minor));
        }
        EntryKind::BlockDevice { major, minor } => {
            put(out, BLOCK_DEVICE);
            put(out, u64::from(*major));
            put(out, u64::from(*minor));
        }
        EntryKind::Fifo => put(out, FIFO),
    }
    for number in [entry.mode, entry.uid, entry.gid] {
        put(out, u64::from(number));
    }
    put(out, entry.mtime.seconds.cast_unsigned());
    put(out, u64::from(entry.mtime.nanoseconds));
    put(out, entry.xattrs.len() as u64);
    for (name, value) in &entry.xattrs {
        put_bytes(out, name);
        put_bytes(out, value);
    }
    put(out, listed.offset);
    match &listed.content {
        None => put(out, 0),
        Some(hash) => {
            put(out, 1);
            out.extend_from_slice(hash);
        }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The remaining input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// Reads the number of items that follow; each takes at least one byte.
    fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn entry(&mut self, path: &mut Vec<u8>) -> Option<TocEntry> {
        let same = usize::try_from(self.number()?).ok()?;
        if same > path.len() {
            return None;
        }
        path.truncate(same);
        path.extend_from_slice(self.bytes()?);
        let mut entry = Entry::new(normal(path)?, self.kind()?, self.small()?);
        entry.uid = self.small()?;
        entry.gid = self.small()?;
        entry.mtime = Mtime { seconds: self.number()?.cast_signed(), nanoseconds: self.small()? };
        let mut xattrs = BTreeMap::new();
        for _ in 0..self.count()? {
            xattrs.insert(self.bytes()?.to_vec(), self.bytes()?.to_vec());
        }
        entry.xattrs = xattrs;
        Some(TocEntry { entry, offset: self.number()?, content: self.hash()? })
    }

    fn kind(&mut self) -> Option<EntryKind> {
        Some(match self.number()? {
            FILE => EntryKind::File { size: self.number()? },
            DIRECTORY => EntryKind::Directory,
            SYMLINK => EntryKind::Symlink { target: self.bytes()?.to_vec() },
            HARD_LINK => EntryKind::HardLink { target: normal(self.bytes()?)? },
            CHAR_DEVICE => EntryKind::CharDevice { major: self.small()?, minor: self.small()? },
            BLOCK_DEVICE => EntryKind::BlockDevice { major: self.small()?, minor: self.small()? },
            FIFO => EntryKind::Fifo,
            _ => return None,
        })
    }

    fn hash(&mut self) -> Option<Option<[u8; 32]>> {
        match self.number()? {
            0 => Some(None),
            1 => {
                let (hash, rest) = self.0.split_first_chunk::<32>()?;
                self.0 = rest;
                Some(Some(*hash))
            }
            _ => None,
        }
    }
}

/// Returns a path only if it is in normal form; others would not compare equal.
fn normal(bytes: &[u8]) -> Option<LayerPath> {
    let path = LayerPath::parse(bytes).ok()?;
    (path.as_bytes() == bytes).then_some(path)
}
