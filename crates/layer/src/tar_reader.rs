//! A strict, streaming tar reader: ustar, PAX, GNU long names and sparse files; names and contents
//! remain bytes.
//!
//! An archive with two meanings is an attack: where Go's archive/tar (which Docker, containerd, podman
//! and skopeo use), libarchive, GNU tar and Python's tarfile disagree about the position of the next
//! header or the meaning of one, this reader refuses the archive. Must not depend on what callers do
//! with the entries.

use std::io::{self, BufRead, BufReader, Read};

use tar::EntryType;

use crate::pax;
use crate::sparse::{self, Piece};
use crate::tar_header::{self as header, BLOCK, Field};
use crate::whiteout::check_marker;
use crate::{Entry, EntryKind, LayerPath, Mtime, tar_writer};
use imgctl_base::error::{Context, Error, Kind, Result};

mod acl;
mod announced;
mod names;
mod readings;
mod stream;

/// Returns whether a tar starts with `block`: a header with a valid checksum, or, of an empty tar,
/// zeros.
pub fn begins_tar(block: &[u8]) -> bool {
    <&[u8; BLOCK]>::try_from(block)
        .is_ok_and(|block| block.iter().all(|b| *b == 0) || header::checksum_holds(block))
}

#[cfg(test)]
mod tests;

use announced::Announced;
pub(crate) use names::Namer;
pub use names::Names;
use stream::{Stream, refuse, too_large, truncated};

/// Limits for foreign archives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries in one layer.
    pub entries: u64,
    /// Maximum uncompressed size of one layer, in bytes.
    pub size: u64,
    /// Maximum length of one path, in bytes.
    pub path: usize,
    /// Maximum number of components in one path.
    pub depth: usize,
    /// Maximum size of one PAX header block or GNU long name, in bytes.
    pub pax: u64,
    /// Maximum ratio of uncompressed to compressed size, checked beyond the first GiB.
    pub ratio: u64,
    /// Output size in bytes from which on the ratio is checked: it means little for small layers,
    /// and a large file of zeros is legitimate.
    pub ratio_from: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 10_000_000,
            size: 1 << 40,
            path: 4096,
            depth: 512,
            pax: 1 << 20,
            ratio: 1024,
            ratio_from: 1 << 30,
        }
    }
}

/// Maximum total size of names, link targets and extended attributes of all entries, in bytes: a
/// base amount, plus an amount per entry that real layers rarely need.
const METADATA: u64 = 64 << 20;
const METADATA_PER_ENTRY: u64 = 512;

/// Reads entries one after another; between two calls of [`TarReader::next_entry`], it reads the
/// content of the current file.
#[derive(Debug)]
pub struct TarReader<R> {
    stream: Stream<R>,
    limits: Limits,
    names: Namer,
    entries: u64,
    /// Total size of names and extended attributes so far, in bytes.
    metadata: u64,
    /// Total size of holes in sparse files so far, in bytes.
    holes: u64,
    current: Content,
    ended: bool,
}

/// The unread rest of the current entry.
#[derive(Debug, Default)]
struct Content {
    path: LayerPath,
    /// Offset of the content; `None` if the file is sparse or has no content.
    offset: Option<u64>,
    /// Stored bytes not yet read, without padding.
    stored: u64,
    padding: u64,
    sparse: Option<SparsePlace>,
}

#[derive(Debug)]
struct SparsePlace {
    map: sparse::Map,
    position: u64,
    stretch: usize,
}

impl<R: Read> TarReader<BufReader<R>> {
    /// Creates a reader that starts at the archive's first byte.
    pub fn new(reader: R, limits: Limits, names: Names) -> Self {
        Self::over(BufReader::with_capacity(64 << 10, reader), limits, names)
    }
}

impl<R: BufRead> TarReader<R> {
    /// Like [`TarReader::new`], for an archive whose bytes already lie in a buffer: contents are
    /// not copied.
    pub fn over(reader: R, limits: Limits, names: Names) -> Self {
        Self {
            stream: Stream { reader, position: 0, size_limit: limits.size },
            limits,
            names: Namer::new(names, limits),
            entries: 0,
            metadata: 0,
            holes: 0,
            current: Content::default(),
            ended: false,
        }
    }

    /// Returns the next entry, skipping the rest of the current content. Returns `None` at the end,
    /// after reading the rest of the stream to EOF (trailing bytes are part of the diff-id).
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        if self.ended {
            return Ok(None);
        }
        loop {
            self.skip_content()?;
            let start = self.stream.position;
            let context = || format!("cannot read the tar entry at byte {start}");
            match self.read_entry().context(context)? {
                Some(entry) if entry.path.is_root() && !entry.is_directory() => {
                    if self.names.kind() == Names::Plain {
                        return Err(refuse("the entry has no name").context(context()));
                    }
                }
                Some(entry) => {
                    if self.names.kind() == Names::Layer {
                        check_marker(&entry).context(context)?;
                    }
                    self.names.add(&entry);
                    return Ok(Some(entry));
                }
                None => {
                    self.ended = true;
                    match self.names.kind() {
                        Names::Layer => self.stream.finish()?,
                        Names::Plain | Names::Archive => self.stream.drain()?,
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Returns the offset of the current file's content in the tar stream, in bytes; `None` for
    /// sparse files.
    pub(crate) fn content_offset(&self) -> Option<u64> {
        self.current.offset
    }

    /// Returns the stream. Once the end has been reached, nothing of it is lost.
    pub fn into_inner(self) -> R {
        self.stream.reader
    }

    fn skip_content(&mut self) -> Result<()> {
        let content = std::mem::take(&mut self.current);
        let skipped = self
            .stream
            .skip(content.stored)
            .and_then(|()| self.stream.skip_padding(content.padding));
        skipped.map_err(|error| error.context(format!("cannot read `{}`", content.path)))
    }

    /// Reads headers up to and including the header of the next entry itself.
    fn read_entry(&mut self) -> Result<Option<Entry>> {
        let mut announced = Announced::default();
        loop {
            let Some(block) = self.next_header()? else {
                return if announced.is_empty() {
                    Ok(None)
                } else {
                    Err(refuse("the archive ends where an entry was announced"))
                };
            };
            let flag = EntryType::new(block[Field::TYPE]);
            match flag {
                EntryType::XHeader => {
                    let body = self.read_body(&block)?;
                    announced.add_pax(&body)?;
                }
                EntryType::XGlobalHeader => {
                    if !announced.is_empty() {
                        return Err(refuse("a global header appears between an entry's headers"));
                    }
                    let body = self.read_body(&block)?;
                    for (key, _) in pax::parse(&body)? {
                        readings::check_global(key)?;
                    }
                }
                EntryType::GNULongName | EntryType::GNULongLink => {
                    let body = self.read_body(&block)?;
                    announced.add_long(flag, &body)?;
                }
                _ => {
                    let name = announced.name(&block)?;
                    let shown = || format!("cannot read `{}`", String::from_utf8_lossy(&name));
                    let entry = self.read_main(&block, flag, &announced, &name);
                    return entry.context(shown).map(Some);
                }
            }
        }
    }

    /// Returns the next header block with a correct checksum; `None` at the end of the archive.
    fn next_header(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let Some(block) = self.stream.block()? else {
            return Ok(None);
        };
        if block == [0; BLOCK] {
            return match self.stream.block()? {
                None => Ok(None),
                Some(second) if second == [0; BLOCK] => Ok(None),
                Some(_) => Err(refuse("a block of zeros appears between entries")),
            };
        }
        if !header::checksum_holds(&block) {
            let is_first = self.stream.position == BLOCK as u64;
            let why =
                if is_first { "it is not a tar archive" } else { "the header's checksum is wrong" };
            return Err(refuse(why));
        }
        Ok(Some(block))
    }

    /// Reads the content of a header that describes another header.
    fn read_body(&mut self, block: &[u8; BLOCK]) -> Result<Vec<u8>> {
        let size = unsigned(header::get(block, Field::SIZE), "size")?;
        if size > self.limits.pax {
            return Err(refuse(format!(
                "an extended header of {size} bytes is longer than the limit of {}",
                self.limits.pax
            )));
        }
        let mut body = vec![0; usize::try_from(size).map_err(|_| refuse("header too long"))?];
        self.stream.fill(&mut body)?;
        self.stream.skip(tar_writer::padding(size) as u64)?;
        Ok(body)
    }

    /// Returns the stored size of an entry in bytes: the PAX size if there is one, otherwise the
    /// header's.
    fn stored_size(&self, block: &[u8; BLOCK], announced: &Announced) -> Result<u64> {
        match announced.record(pax::SIZE) {
            Some(value) => pax::decimal(value).ok_or_else(|| refuse("malformed PAX size")),
            None => unsigned(header::get(block, Field::SIZE), "size"),
        }
    }

    fn read_main(
        &mut self,
        block: &[u8; BLOCK],
        flag: EntryType,
        announced: &Announced,
        name: &[u8],
    ) -> Result<Entry> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(refuse(format!("there are more than {} entries", self.limits.entries)));
        }
        readings::check_header(block)?;
        let path = self.names.entry(name)?;
        let stored = self.stored_size(block, announced)?;
        let is_old_directory = readings::is_old_directory(block, name)?;
        let kind = match flag {
            EntryType::Link => EntryKind::HardLink {
                target: self.names.hard_link_target(&announced.link(block)?)?,
            },
            EntryType::Symlink => {
                EntryKind::Symlink { target: self.names.symlink_target(announced.link(block)?)? }
            }
            EntryType::Char => {
                let (major, minor) = device(block)?;
                EntryKind::CharDevice { major, minor }
            }
            EntryType::Block => {
                let (major, minor) = device(block)?;
                EntryKind::BlockDevice { major, minor }
            }
            EntryType::Fifo => EntryKind::Fifo,
            EntryType::Directory => EntryKind::Directory,
            _ if is_old_directory => EntryKind::Directory,
            _ => EntryKind::File { size: stored },
        };
        let is_file = matches!(kind, EntryKind::File { .. });
        if !is_file && (stored > 0 || unsigned(header::get(block, Field::SIZE), "size")? > 0) {
            return Err(refuse("it has a size although it is not a file"));
        }
        let mut entry = Self::with_metadata(block, announced, path, kind)?;
        self.start_content(block, flag, announced, &mut entry, stored)?;
        // Go takes a record without a value for no record.
        if let Some((name, _)) = entry.xattrs.iter().find(|(_, value)| value.is_empty()) {
            let name = name.escape_ascii();
            return Err(refuse(format!("the extended attribute `{name}` has no value")));
        }
        if matches!(&entry.kind, EntryKind::HardLink { target } if target.is_root()) {
            return Err(refuse("the entry is a link without a target"));
        }
        self.count_metadata(&entry)?;
        Ok(entry)
    }

    /// Sets up [`Content`]; reads the map of sparse files.
    fn start_content(
        &mut self,
        block: &[u8; BLOCK],
        flag: EntryType,
        announced: &Announced,
        entry: &mut Entry,
        mut stored: u64,
    ) -> Result<()> {
        let padding = tar_writer::padding(stored) as u64;
        let map = if announced.sparse.is_sparse() {
            if !matches!(entry.kind, EntryKind::File { .. }) || flag.is_gnu_sparse() {
                return Err(refuse("a PAX header marks as sparse what is not a regular file"));
            }
            if announced.record(pax::SIZE).is_some() {
                return Err(refuse("a PAX header gives a sparse file a second size"));
            }
            let before = self.stream.position;
            let mut limited = (&mut self.stream).take(stored);
            let map = announced.sparse.read_map(&mut limited)?;
            stored -= self.stream.position - before;
            Some(map)
        } else if flag.is_gnu_sparse() {
            let stream = &mut self.stream;
            let next = || stream.block()?.ok_or_else(truncated);
            Some(sparse::read_gnu(block, next)?)
        } else {
            None
        };
        let is_file = matches!(entry.kind, EntryKind::File { .. });
        if let Some(map) = &map {
            if map.stored() != stored {
                return Err(refuse("the map of a sparse file does not match its content"));
            }
            self.count_holes(map)?;
            entry.kind = EntryKind::File { size: map.size() };
        }
        self.current = Content {
            path: entry.path.clone(),
            offset: (is_file && map.is_none()).then_some(self.stream.position),
            stored,
            padding,
            sparse: map.map(|map| SparsePlace { map, position: 0, stretch: 0 }),
        };
        Ok(())
    }

    /// Limits the total size of names and attributes: readers keep those of all entries in memory,
    /// and malicious ones compress a thousandfold.
    fn count_metadata(&mut self, entry: &Entry) -> Result<()> {
        let link = match &entry.kind {
            EntryKind::Symlink { target } => target.len(),
            EntryKind::HardLink { target } => target.as_bytes().len(),
            _ => 0,
        };
        let xattrs = entry.xattrs.iter();
        let xattrs: usize = xattrs.map(|(name, value)| name.len() + value.len()).sum();
        self.metadata += (entry.path.as_bytes().len() + link + xattrs) as u64;
        if self.metadata > METADATA + METADATA_PER_ENTRY * self.entries {
            return Err(refuse("names and extended attributes are too large in total"));
        }
        Ok(())
    }

    /// Limits the total size of holes: they cost an archive nothing, but are expensive for its
    /// reader.
    fn count_holes(&mut self, map: &sparse::Map) -> Result<()> {
        let position = self.stream.position;
        self.holes = self.holes.saturating_add(map.size() - map.stored());
        let most = position.saturating_mul(self.limits.ratio);
        if self.holes > most.max(self.limits.ratio_from) {
            return Err(refuse(format!(
                "the holes of sparse files are more than {} times the archive's size",
                self.limits.ratio
            )));
        }
        if self.holes.saturating_add(position) > self.limits.size {
            return Err(too_large(self.limits.size));
        }
        Ok(())
    }

    fn with_metadata(
        block: &[u8; BLOCK],
        announced: &Announced,
        path: LayerPath,
        kind: EntryKind,
    ) -> Result<Entry> {
        let id = |key: &[u8], field| {
            let id = match announced.record(key) {
                Some(value) => pax::decimal(value),
                None => Some(unsigned(header::get(block, field), "owner")?),
            };
            // To chown, the highest number means "no change".
            id.and_then(|id| u32::try_from(id).ok())
                .filter(|id| *id != u32::MAX)
                .ok_or_else(|| refuse("an owner's number is malformed or too large"))
        };
        let mtime = match announced.record(pax::MTIME) {
            Some(value) => pax::parse_time(value).ok_or_else(|| refuse("malformed PAX mtime"))?,
            None => {
                Mtime { seconds: header::number(header::get(block, Field::MTIME))?, nanoseconds: 0 }
            }
        };
        let mode = unsigned(header::get(block, Field::MODE), "mode")?;
        let mut entry = Entry::new(path, kind, (mode & 0o7777) as u32);
        entry.uid = id(pax::UID, Field::UID)?;
        entry.gid = id(pax::GID, Field::GID)?;
        entry.mtime = mtime;
        for (key, value) in announced.pax.iter().flatten() {
            match key.strip_prefix(pax::XATTR) {
                Some(b"") => return Err(refuse("an extended attribute has no name")),
                Some(name) => {
                    entry.xattrs.insert(name.to_vec(), value.clone());
                }
                None => {}
            }
        }
        if !entry.xattrs.is_empty() {
            acl::check(&entry)?;
        }
        Ok(entry)
    }
}

fn device(block: &[u8; BLOCK]) -> Result<(u32, u32)> {
    let number = |field| {
        let number = unsigned(header::get(block, field), "device number")?;
        u32::try_from(number).map_err(|_| refuse("a device number is too large"))
    };
    Ok((number(Field::MAJOR)?, number(Field::MINOR)?))
}

fn unsigned(field: &[u8], what: &str) -> Result<u64> {
    let number = header::number(field)?;
    u64::try_from(number).map_err(|_| refuse(format!("a {what} is negative")))
}

impl<R: BufRead> TarReader<R> {
    fn cut_short(&self) -> io::Error {
        let what = format!("the archive ends in the middle of `{}`", self.current.path);
        Error::new(Kind::BadContent, what).into()
    }

    fn read_stored(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.current.stored).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let count = self.stream.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(self.cut_short());
        }
        self.current.stored -= count as u64;
        Ok(count)
    }
}

impl<R: BufRead> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(place) = &mut self.current.sparse else {
            return self.read_stored(buffer);
        };
        let shorten = |count: u64| usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
        let count = match place.map.at(place.position, &mut place.stretch) {
            Piece::Hole(count) => {
                let count = shorten(count);
                buffer[..count].fill(0);
                count
            }
            Piece::Content(count) => {
                let count = shorten(count);
                self.read_stored(&mut buffer[..count])?
            }
        };
        if let Some(place) = &mut self.current.sparse {
            place.position += count as u64;
        }
        Ok(count)
    }
}

impl<R: BufRead> BufRead for TarReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let mut most = usize::try_from(self.current.stored).unwrap_or(usize::MAX);
        if let Some(place) = &mut self.current.sparse {
            match place.map.at(place.position, &mut place.stretch) {
                Piece::Hole(count) => {
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    return Ok(ZEROS.get(..count).unwrap_or(&ZEROS));
                }
                Piece::Content(count) => {
                    most = most.min(usize::try_from(count).unwrap_or(usize::MAX));
                }
            }
        }
        if most == 0 {
            return Ok(&[]);
        }
        if self.stream.fill_buf()?.is_empty() {
            return Err(self.cut_short());
        }
        let here = self.stream.fill_buf()?;
        Ok(here.get(..most).unwrap_or(here))
    }

    fn consume(&mut self, count: usize) {
        let mut is_stored = true;
        if let Some(place) = &mut self.current.sparse {
            let piece = place.map.at(place.position, &mut place.stretch);
            is_stored = matches!(piece, Piece::Content(_));
            place.position += count as u64;
        }
        if is_stored {
            self.stream.consume(count);
            self.current.stored -= count as u64;
        }
    }
}

/// A part of a hole.
static ZEROS: [u8; 8 << 10] = [0; 8 << 10];
