//! Compares the list of a layer with its archive, entry by entry, while the archive is read. podman, buildah,
//! CRI-O and containerd's snapshotters unpack what the list says; all other programs unpack the archive. A layer
//! in which the two differ is two images.
//!
//! Must not depend on where blobs are stored, or on how the archive is read.

use std::io::{BufReader, Read};

use crossbeam_channel::{Receiver, bounded};

use crate::chunked::item::{CHUNK, FILE, Item, ZEROS};
use crate::chunked::lists::List;
use crate::chunked::read::items;
use crate::tar_reader::Namer;
use crate::{Entry, EntryKind, LayerPath, Limits, Names, pipe};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, Hasher};

/// Number of items that are parsed ahead.
const AHEAD: usize = 256;

/// A list and how far its archive has been compared with it.
pub(crate) struct Comparison {
    items: Receiver<Result<Item>>,
    /// The item that was looked at.
    next: Option<Item>,
    namer: Namer,
    /// The entry of the archive that is the list itself, and whether it has been read.
    own: Option<(&'static str, bool)>,
}

impl Comparison {
    /// Starts to parse a list, on a thread of its own.
    pub(crate) fn start(list: List, limits: Limits) -> Result<Self> {
        let own = list.entry().map(|name| (name, false));
        let (sender, items_of) = bounded(AHEAD);
        // It ends with the list, or when nobody waits for another item.
        let thread = move || {
            let stopped = || Error::failed("nobody reads the list");
            let mut each = |item| sender.send(Ok(item)).map_err(|_| stopped());
            let parsed =
                list.read(&mut |json: &mut dyn Read| items(BufReader::new(json), &mut each));
            if let Err(error) = parsed {
                let _ = sender.send(Err(error));
            }
        };
        pipe::spawn("layer-list", thread)?;
        Ok(Self { items: items_of, next: None, namer: Namer::new(Names::Layer, limits), own })
    }

    /// Compares the next entry of the archive; returns what its content has to be.
    pub(crate) fn entry(&mut self, entry: &Entry) -> Result<Sums> {
        if let Some((name, is_read)) = &mut self.own {
            if *is_read {
                return Err(differs("ends before", &entry.path));
            }
            if entry.path.as_bytes() == name.as_bytes() {
                *is_read = true;
                return Ok(Sums::default());
            }
        }
        let item = loop {
            let item = self.take()?.ok_or_else(|| differs("lacks", &entry.path))?;
            let path = self.namer.entry(item.name.as_bytes())?;
            // As in the archive, an entry without a name is nothing.
            if path.is_root() && item.kind != "dir" {
                continue;
            }
            if text(&path) != text(&entry.path) {
                return Err(differs(&format!("has `{path}` in the place of"), &entry.path));
            }
            break item;
        };
        let target = match &entry.kind {
            EntryKind::HardLink { .. } => self.namer.hard_link_target(item.link_name.as_bytes())?,
            _ => LayerPath::root(),
        };
        if let Some(what) = item.differs_from(entry, &target) {
            return Err(differs(&format!("gives another {what} to"), &entry.path));
        }
        self.namer.add(entry);
        if item.kind != FILE || item.size == 0 {
            return Ok(Sums::default());
        }
        let mut chunks = vec![item];
        while self.peek()?.is_some_and(|next| next.kind == CHUNK) {
            chunks.extend(self.next.take());
        }
        Sums::of(chunks)
            .ok_or_else(|| differs("has chunks without order or digest for", &entry.path))
    }

    /// Fails if the list has more entries than the archive.
    pub(crate) fn finish(mut self) -> Result<()> {
        match self.take()? {
            Some(item) => {
                let path = self.namer.entry(item.name.as_bytes())?;
                Err(differs("has, and the archive has not,", &path))
            }
            None => Ok(()),
        }
    }

    fn peek(&mut self) -> Result<Option<&Item>> {
        if self.next.is_none() {
            self.next = self.items.recv().ok().transpose()?;
        }
        Ok(self.next.as_ref())
    }

    fn take(&mut self) -> Result<Option<Item>> {
        self.peek()?;
        Ok(self.next.take())
    }
}

/// Lists are JSON, in which what is no text has one letter for each.
fn text(path: &LayerPath) -> String {
    String::from_utf8_lossy(path.as_bytes()).into_owned()
}

fn differs(how: &str, path: &LayerPath) -> Error {
    Error::bad_content(format!(
        "the list at the end of the layer {how} `{path}`: programs that read the list unpack other files"
    ))
    .hint("compress the layer again; a list is made with it")
}

/// The digests that the content of a file has to have.
#[derive(Default)]
pub(crate) struct Sums {
    parts: Vec<Part>,
    /// The digest of the whole, by which programs find the file in other layers.
    whole: Option<(Digest, Hasher)>,
    part: usize,
    hasher: Option<Hasher>,
    position: u64,
    is_wrong: bool,
}

/// What a chunk has to have.
#[derive(Default)]
struct Part {
    /// The offset of its end; the last has none.
    end: Option<u64>,
    digest: Option<Digest>,
    is_zeros: bool,
}

impl Sums {
    /// Reads the items of one file; `None` if they are not its chunks in order.
    fn of(items: Vec<Item>) -> Option<Self> {
        let size = items.first()?.size;
        let is_one = items.len() == 1;
        let starts: Vec<u64> = items.iter().map(|item| item.chunk_offset).collect();
        let mut sums = Self::default();
        let mut is_known = true;
        for (index, item) in items.into_iter().enumerate() {
            let start = if is_one { 0 } else { starts[index] };
            let end = starts.get(index + 1).copied().unwrap_or(size);
            let length = end.checked_sub(start).filter(|length| *length > 0)?;
            // Without a size, it goes on to the end.
            let is_length = item.chunk_size == 0 || item.chunk_size == length;
            if !is_length || (index == 0 && start != 0) {
                return None;
            }
            let next = (index + 1 < starts.len()).then_some(end);
            match (&item.digest, &item.chunk_digest) {
                (Some(whole), Some(chunk)) if is_one && whole != chunk => return None,
                _ => {}
            }
            if index == 0 {
                sums.whole = item.digest.clone().map(|digest| {
                    let hasher = Hasher::with(digest.algorithm());
                    (digest, hasher)
                });
            }
            let is_zeros = item.chunk_type == ZEROS;
            if !is_zeros && !item.chunk_type.is_empty() {
                return None;
            }
            let digest = if is_one { item.chunk_digest.or(item.digest) } else { item.chunk_digest };
            is_known &= digest.is_some() || is_zeros;
            sums.parts.push(Part { end: next, digest, is_zeros });
        }
        if is_one {
            // It equals the digest of the only part.
            sums.whole = None;
        }
        if !is_known && sums.whole.is_none() {
            return None;
        }
        sums.begin();
        Some(sums)
    }

    fn begin(&mut self) {
        let digest = self.parts.get(self.part).and_then(|part| part.digest.as_ref());
        self.hasher = digest.map(|digest| Hasher::with(digest.algorithm()));
    }

    fn end(&mut self) {
        let digest = self.parts.get(self.part).and_then(|part| part.digest.as_ref());
        if let (Some(hasher), Some(digest)) = (self.hasher.take(), digest) {
            self.is_wrong |= hasher.finish() != *digest;
        }
        self.part += 1;
    }

    /// Adds bytes of the content.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        if let Some((_, hasher)) = &mut self.whole {
            hasher.update(bytes);
        }
        while !bytes.is_empty() && self.part < self.parts.len() {
            let Part { end, is_zeros, .. } = self.parts[self.part];
            let left = end.map_or(u64::MAX, |end| end.saturating_sub(self.position));
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(count);
            if let Some(hasher) = &mut self.hasher {
                hasher.update(now);
            }
            self.is_wrong |= is_zeros && now.iter().any(|byte| *byte != 0);
            self.position += count as u64;
            bytes = later;
            if end == Some(self.position) {
                self.end();
                self.begin();
            }
        }
    }

    /// Compares the digests after the last byte of the content of `path`.
    pub(crate) fn finish(mut self, path: &LayerPath) -> Result<()> {
        while self.part < self.parts.len() {
            self.end();
            self.begin();
        }
        if let Some((digest, hasher)) = self.whole.take() {
            self.is_wrong |= hasher.finish() != digest;
        }
        if self.is_wrong {
            Err(differs("has the digest of another content for", path))
        } else {
            Ok(())
        }
    }
}
