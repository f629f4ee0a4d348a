//! Writes the list of frames of a layer.

use std::collections::BTreeMap;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::chunked::item::{self, Item, name_of};
use crate::chunked::{
    CHECKSUM, FOOTER_MAGIC, HEADERS_POSITION, POSITION, RUNS_CHECKSUM, RUNS_MAGIC, RUNS_POSITION,
    SKIPPABLE, TABLE_TYPE,
};
use crate::crc64;
use crate::pipeline::ListedFrame;
use crate::plain_list::SMALLEST_BLOB;
use crate::{Entry, EntryKind, PackedToc, tar_writer};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Digest, Hasher, Sha256Sum};

/// Maximum size of the table of contents, in bytes. containers/storage reads up to 150 MiB.
const LARGEST_TABLE: u64 = 128 << 20;

/// The end of a blob, and what its descriptor says about it.
#[derive(Debug, Default)]
pub(crate) struct FrameList {
    pub(crate) bytes: Vec<u8>,
    pub(crate) annotations: BTreeMap<String, String>,
}

/// Lists the frames of a layer of `size` bytes so far. `whole` are the digests of files in several
/// chunks, by index in `toc`. The list is empty for a small layer, and for one with a name or a
/// time that JSON cannot express.
pub(crate) fn list(
    toc: &PackedToc,
    frames: &[ListedFrame],
    whole: &BTreeMap<usize, Sha256Sum>,
    size: u64,
    level: i32,
) -> Result<FrameList> {
    if size < SMALLEST_BLOB {
        return Ok(FrameList::default());
    }
    for listed in toc.entries() {
        if !is_expressible(&listed?.entry) {
            return Ok(FrameList::default());
        }
    }
    let files = Files { toc, frames, whole };
    let headers = Packed::of(level, &|out| files.write_headers(out))?;
    let table = Packed::of(level, &|out| files.write_table(&headers.digest, out))?;
    if table.uncompressed > LARGEST_TABLE {
        return Ok(FrameList::default());
    }
    let mut list = FrameList::default();
    let table_position = list.append_packed(size, &table)?;
    let headers_position = list.append_packed(size, &headers)?;
    list.append_footer(size, table_position, headers_position, FOOTER_MAGIC)?;
    let [offset, compressed, uncompressed] = headers_position;
    list.annotations = BTreeMap::from([
        (CHECKSUM.to_owned(), table.digest.to_string()),
        (POSITION.to_owned(), annotation(table_position)),
        (HEADERS_POSITION.to_owned(), format!("{offset}:{compressed}:{uncompressed}")),
    ]);
    Ok(list)
}

/// Lists the frames of a layer of `size` bytes so far, which follow each other without gaps, without
/// the files in them.
pub(crate) fn list_runs(frames: &[ListedFrame], size: u64, level: i32) -> Result<FrameList> {
    let mut list = FrameList::default();
    if size < SMALLEST_BLOB {
        return Ok(list);
    }
    let table = Packed::of(level, &|out| {
        out.write_all(b"{\"version\":1,\"entries\":[")?;
        let mut separator: &[u8] = b"";
        for frame in frames {
            out.write_all(separator)?;
            separator = b",";
            let end = frame.offset + frame.compressed;
            let item = Item::run(frame.length, frame.sums.digest.digest(), frame.offset, end);
            serde_json::to_writer(&mut *out, &item)?;
        }
        out.write_all(b"]}")
    })?;
    if table.uncompressed > LARGEST_TABLE {
        return Ok(list);
    }
    let position = list.append_packed(size, &table)?;
    list.append_footer(size, position, [0; 3], RUNS_MAGIC)?;
    list.annotations = BTreeMap::from([
        (RUNS_CHECKSUM.to_owned(), table.digest.to_string()),
        (RUNS_POSITION.to_owned(), annotation(position)),
    ]);
    Ok(list)
}

/// Offset, compressed size and size of a part of the list, in bytes.
type Place = [u64; 3];

fn annotation([offset, compressed, uncompressed]: Place) -> String {
    format!("{offset}:{compressed}:{uncompressed}:{TABLE_TYPE}")
}

impl FrameList {
    fn append_packed(&mut self, before: u64, packed: &Packed) -> Result<Place> {
        let offset = self.append(before, &packed.bytes)?;
        Ok([offset, packed.bytes.len() as u64, packed.uncompressed])
    }

    fn append_footer(
        &mut self,
        before: u64,
        table: Place,
        headers: Place,
        magic: [u8; 8],
    ) -> Result<()> {
        let ([a, b, c], [d, e, f]) = (table, headers);
        let numbers = [a, b, c, TABLE_TYPE, d, e, f, u64::from_le_bytes(magic)];
        self.append(before, &numbers.map(u64::to_le_bytes).concat()).map(drop)
    }

    /// Appends a skippable frame; returns the offset of its content in a blob of which `before`
    /// bytes precede the list.
    fn append(&mut self, before: u64, content: &[u8]) -> Result<u64> {
        let length = u32::try_from(content.len())
            .map_err(|_| Error::failed("the list of frames is too long"))?;
        self.bytes.extend_from_slice(&SKIPPABLE);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        let offset = before + self.bytes.len() as u64;
        self.bytes.extend_from_slice(content);
        Ok(offset)
    }
}

/// A compressed part of the list.
struct Packed {
    bytes: Vec<u8>,
    digest: Digest,
    uncompressed: u64,
}

impl Packed {
    /// Compresses what `write` writes, without holding all of it.
    fn of(level: i32, write: &dyn Fn(&mut dyn Write) -> io::Result<()>) -> Result<Self> {
        let doing = || "cannot write the list of frames".to_owned();
        let encoder = zstd::stream::Encoder::new(Vec::new(), level).doing(doing)?;
        let counted = Counted { encoder, count: 0 };
        // Calls of equal length: what comes out must not depend on the length of a name.
        let mut buffered = io::BufWriter::with_capacity(64 << 10, counted);
        write(&mut buffered).doing(doing)?;
        let counted = buffered.into_inner().map_err(io::IntoInnerError::into_error).doing(doing)?;
        let uncompressed = counted.count;
        let bytes = counted.encoder.finish().doing(doing)?;
        let mut hasher = Hasher::new();
        hasher.update(&bytes);
        Ok(Self { bytes, digest: hasher.finish(), uncompressed })
    }
}

struct Counted {
    encoder: zstd::stream::Encoder<'static, Vec<u8>>,
    count: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder.write_all(bytes)?;
        self.count += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The entries of a layer with the frames of their content.
struct Files<'a> {
    toc: &'a PackedToc,
    frames: &'a [ListedFrame],
    whole: &'a BTreeMap<usize, Sha256Sum>,
}

/// Called with an entry's index, the entry and its frames.
type OnFile<'a, 'f> = dyn FnMut(usize, &Entry, &'a [ListedFrame]) -> io::Result<()> + 'f;

impl<'a> Files<'a> {
    /// Calls `each` for every entry, with its index and its frames.
    fn each(&self, each: &mut OnFile<'a, '_>) -> io::Result<()> {
        let mut rest = self.frames;
        for (index, listed) in self.toc.entries().enumerate() {
            let listed = listed.map_err(io::Error::other)?;
            let mut left = listed.entry.size();
            let mut count = 0;
            while left > 0 {
                let frame = rest.get(count);
                let length = frame.map_or(0, |frame| frame.length);
                if length == 0 || length > left {
                    let message = format!("the frames of `{}` do not add up", listed.entry.path);
                    return Err(io::Error::other(message));
                }
                left -= length;
                count += 1;
            }
            let (own, others) = rest.split_at(count);
            rest = others;
            each(index, &listed.entry, own)?;
        }
        Ok(())
    }

    fn whole(&self, index: usize) -> io::Result<&'a Sha256Sum> {
        self.whole.get(&index).ok_or_else(|| io::Error::other("a file has no digest"))
    }

    /// The JSON of the table of contents.
    fn write_table(&self, headers: &Digest, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"{\"version\":1,\"entries\":[")?;
        let mut separator: &[u8] = b"";
        self.each(&mut |index, entry, frames| {
            out.write_all(separator)?;
            separator = b",";
            let mut item = Item::of(entry);
            let [first, .., last] = frames else {
                if let [only] = frames {
                    item.place(
                        only.sums.digest.digest(),
                        only.offset,
                        only.offset + only.compressed,
                    );
                }
                return Ok(serde_json::to_writer(&mut *out, &item)?);
            };
            item.place(self.whole(index)?.digest(), first.offset, last.offset + last.compressed);
            item.place_chunk(first.sums.digest.digest(), first.length, 0);
            serde_json::to_writer(&mut *out, &item)?;
            let mut position = first.length;
            for frame in frames.iter().skip(1) {
                out.write_all(b",")?;
                let mut chunk = Item::chunk_of(&item.name, frame.offset);
                chunk.place_chunk(frame.sums.digest.digest(), frame.length, position);
                serde_json::to_writer(&mut *out, &chunk)?;
                position += frame.length;
            }
            Ok(())
        })?;
        write!(out, "],\"tarSplitDigest\":\"{headers}\"}}")
    }

    /// The lines of tar-split: the bytes of the tar between contents, and the size and checksum of
    /// each content.
    fn write_headers(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut lines = Lines { out, position: 0 };
        let padding = [0; tar_writer::END.len()];
        let mut header = Vec::new();
        self.each(&mut |_, entry, frames| {
            let sums = frames.iter().map(|frame| (frame.sums.crc64, frame.length));
            let joined = |(first, _): (u64, u64), (second, length): (u64, u64)| {
                (crc64::joined(first, second, length), length)
            };
            let crc = sums.reduce(joined).map(|(crc, _)| crc);
            header.clear();
            tar_writer::append_header(entry, &mut header).map_err(io::Error::other)?;
            lines.segment(&header)?;
            lines.file(&name_of(entry), entry.size(), crc)?;
            lines.segment(&padding[..tar_writer::padding(entry.size())])
        })?;
        lines.segment(&tar_writer::END)
    }
}

/// Writes lines of tar-split (tar/storage, Entry).
struct Lines<'a> {
    out: &'a mut dyn Write,
    position: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    /// 1 is a file, 2 are bytes.
    #[serde(rename = "type")]
    kind: u8,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "item::is_zero")]
    size: u64,
    payload: Option<String>,
    position: u64,
}

impl Lines<'_> {
    fn segment(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.line(2, "", 0, Some(bytes))
    }

    fn file(&mut self, name: &str, size: u64, crc: Option<u64>) -> io::Result<()> {
        let crc = crc.map(u64::to_be_bytes);
        self.line(1, name, size, crc.as_ref().map(<[u8; 8]>::as_slice))
    }

    fn line(&mut self, kind: u8, name: &str, size: u64, payload: Option<&[u8]>) -> io::Result<()> {
        let payload = payload.map(|bytes| STANDARD.encode(bytes));
        let line = Line { kind, name, size, payload, position: self.position };
        self.position += 1;
        serde_json::to_writer(&mut *self.out, &line)?;
        self.out.write_all(b"\n")
    }
}

/// Whether JSON can express the entry: names in UTF-8, and years as Go's times have them.
fn is_expressible(entry: &Entry) -> bool {
    const YEARS: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;
    let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
    let target: &[u8] = match &entry.kind {
        EntryKind::Symlink { target } => target,
        EntryKind::HardLink { target } => target.as_bytes(),
        _ => b"",
    };
    is_text(entry.path.as_bytes())
        && is_text(target)
        && entry.xattrs.keys().all(|name| is_text(name))
        && YEARS.contains(&entry.mtime.seconds)
}
