//! The layer pipeline: entries and contents in; compressed blob, both digests and the table of
//! contents out. Each byte is read once, hashed at most twice and compressed once.
//!
//! This module frames the tar on the caller's thread; `block_writer.rs` splits it into blocks and
//! `pipeline.rs` does the rest.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};

use crate::block_writer::BlockWriter;
use crate::chunked;
use crate::chunker::{self, Chunker};
use crate::pipeline::Pipeline;
use crate::plain_list::{LARGE_FILE, RunWriter};
use crate::whiteout::check_marker;
use crate::{Compression, Entry, EntryKind, LayerPath, PackedToc, Toc, TocEntry, tar_writer};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Digest, Hasher, Sha256Sum};

#[cfg(test)]
pub(super) mod tests;

/// A finished layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Digest of the compressed blob (equals `diff_id` without compression).
    pub digest: Digest,
    /// Size of the compressed blob in bytes.
    pub size: u64,
    /// Digest of the uncompressed tar.
    pub diff_id: Digest,
    /// Size of the uncompressed tar in bytes.
    pub diff_size: u64,
    pub toc: PackedToc,
    /// What a descriptor says of the list of frames; empty if there is none.
    pub annotations: BTreeMap<String, String>,
}

/// Writes one layer into `sink`. Hashing, compression and writing run on separate threads, whose
/// number does not affect the output.
#[derive(Debug)]
pub struct LayerWriter<W> {
    blocks: BlockWriter<W>,
    /// Number of bytes of tar so far.
    position: u64,
    header: Vec<u8>,
    toc: PackedToc,
    /// Number of entries in it.
    entries: usize,
    /// Level of zstd, whose frames are cut at the borders of files; `None` for other codecs.
    level: Option<i32>,
    /// Whether small files share frames.
    is_shared: bool,
    /// Digests of files in several chunks, by index in the table of contents.
    whole: BTreeMap<usize, Sha256Sum>,
    /// Runs of a tar without compression.
    runs: Option<RunWriter>,
    /// Whether the blob ends with a list.
    is_listed: bool,
}

impl<W: Write + Send + 'static> LayerWriter<W> {
    /// Starts the pipeline with `threads` compressing threads (at least one).
    pub fn start(sink: W, compression: Compression, threads: usize) -> Result<Self> {
        Ok(Self {
            blocks: BlockWriter::new(Pipeline::start(sink, compression, threads, true)?),
            position: 0,
            header: Vec::new(),
            toc: PackedToc::default(),
            entries: 0,
            level: match compression {
                Compression::Zstd { level } => Some(level),
                Compression::Gzip { .. } | Compression::None => None,
            },
            is_shared: false,
            whole: BTreeMap::new(),
            runs: (compression == Compression::None).then(RunWriter::default),
            is_listed: true,
        })
    }

    /// Says how many files with content the layer will have, and their size in bytes, before the
    /// first entry. A frame for each of many small files would cost more than it is worth: they
    /// share frames, which depend on these numbers.
    pub fn expect(&mut self, files: u64, bytes: u64) {
        if self.level.is_some() && files > 0 && bytes / files < SMALL_MEAN {
            self.is_shared = true;
            self.blocks.list_all();
        }
    }

    /// Leaves the list out that follows the archive: nobody fetches parts of an archive that is not a
    /// layer.
    pub fn without_list(self) -> Self {
        Self { runs: None, is_listed: false, ..self }
    }

    /// Adds one entry. `content` must yield exactly [`Entry::size`] bytes; a file that shrank or
    /// grew while being read causes an error that names it. The caller adds entries in their final
    /// order. Returns the BLAKE3 hash of a file's content. After an error, the writer must not be used.
    pub fn add(&mut self, entry: Entry, content: &mut dyn Read) -> Result<Option<[u8; 32]>> {
        if self.is_listed {
            check_marker(&entry)?;
        }
        if self.is_shared {
            self.end_run(&entry.path);
        }
        let mut header = std::mem::take(&mut self.header);
        header.clear();
        tar_writer::append_header(&entry, &mut header)?;
        self.append(&header)?;
        self.header = header;
        let mut listed = TocEntry { offset: 0, content: None, entry };
        if let EntryKind::File { size } = listed.entry.kind {
            listed.offset = self.position;
            let is_cut = size > 0 && self.has_own_frame(size);
            if is_cut {
                self.blocks.cut_here();
            }
            listed.content = Some(self.copy(&listed.entry.path, size, is_cut, content)?);
            let padding = [0; tar_writer::END.len()];
            self.append(&padding[..tar_writer::padding(size)])?;
        }
        if let Some(runs) = &mut self.runs {
            runs.end_entry(&listed.entry.path);
        }
        let content = listed.content;
        self.toc.push(listed);
        self.entries += 1;
        Ok(content)
    }

    /// Ends the tar, waits for the threads and returns the sink. After an error or a drop, no
    /// threads remain.
    pub fn finish(mut self) -> Result<(W, Layer)> {
        self.append(&tar_writer::END)?;
        if let Some(runs) = self.runs.take() {
            // Part of the blob, whose digest is the diff ID, but not of the archive.
            let list = runs.finish(self.position);
            self.append(&list)?;
        }
        let level = self.level.filter(|_| self.is_listed);
        let (mut toc, whole, is_shared) = (self.toc, self.whole, self.is_shared);
        let mut annotations = BTreeMap::new();
        let output = self.blocks.finish_hashed(|frames, size| {
            let Some(level) = level else { return Ok(Vec::new()) };
            let list = if is_shared {
                chunked::list_runs(frames, size, level)?
            } else {
                chunked::list(&toc, frames, &whole, size, level)?
            };
            annotations = list.annotations;
            Ok(list.bytes)
        })?;
        toc.restarts = output.restarts;
        let layer = Layer {
            digest: output.digest,
            size: output.size,
            diff_id: output.diff_id,
            diff_size: output.diff_size,
            toc,
            annotations,
        };
        Ok((output.sink, layer))
    }

    /// Whether frames begin and end with the content of a file of `size` bytes.
    fn has_own_frame(&self, size: u64) -> bool {
        self.level.is_some() && (!self.is_shared || size >= OWN_FRAME)
    }

    /// Ends a run of small files before the entry of `path`, or not: where that is depends on names,
    /// so that a file that is added or changed moves no border but the nearest.
    fn end_run(&mut self, path: &LayerPath) {
        let length = self.blocks.uncut();
        let is_border = || blake3::hash(path.as_bytes()).as_bytes()[0] & RUN_MASK == 0;
        if length >= LARGEST_RUN || (length >= SMALLEST_RUN && is_border()) {
            self.blocks.cut_here();
        }
    }

    /// Reads `size` bytes directly into blocks and returns their BLAKE3 hash.
    fn copy(
        &mut self,
        path: &LayerPath,
        size: u64,
        is_cut: bool,
        content: &mut dyn Read,
    ) -> Result<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        let mut chunks = Chunks::new(is_cut, size);
        let is_run = size >= LARGE_FILE;
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let room = self.blocks.room()?;
            let most = most.min(room.len());
            let count = match content.read(&mut room[..most]) {
                Ok(0) => return Err(changed(path, size, "is shorter now")),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io(format!("cannot read `{path}`"), error)),
            };
            hasher.update(&room[..count]);
            if let Some(runs) = &mut self.runs
                && !is_run
            {
                runs.update(&room[..count]);
            }
            left -= count as u64;
            let borders = chunks.borders(&room[..count], left == 0);
            for border in borders {
                self.blocks.cut_content_at(border);
            }
            self.position += count as u64;
            self.blocks.advance(count)?;
        }
        let more = content.take(1).read_to_end(&mut Vec::new());
        match more.doing(|| format!("cannot read `{path}`"))? {
            0 => {
                if let Some(sum) = chunks.whole() {
                    self.whole.insert(self.entries, sum);
                }
                let hash = *hasher.finalize().as_bytes();
                if let Some(runs) = &mut self.runs
                    && is_run
                {
                    runs.content(size, &hash);
                }
                Ok(hash)
            }
            _ => Err(changed(path, size, "is longer now")),
        }
    }

    /// Appends what is not content. The frame ends where it is long enough; where that is depends
    /// only on what follows the last content.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.position += bytes.len() as u64;
        if let Some(runs) = &mut self.runs {
            runs.update(bytes);
        }
        self.blocks.append(bytes)?;
        if self.level.is_some() && !self.is_shared && self.blocks.uncut() >= HEADERS {
            self.blocks.cut_here();
        }
        Ok(())
    }
}

/// Number of bytes of headers after which a frame ends.
const HEADERS: usize = 256 << 10;

/// Mean size of files below which they share frames, in bytes.
const SMALL_MEAN: u64 = 16 << 10;
/// Size from which a file has frames of its own in any layer, in bytes.
const OWN_FRAME: u64 = 64 << 10;
/// Size of a run of small files from which it may end, and from which it ends with the next entry,
/// in bytes.
const SMALLEST_RUN: usize = 256 << 10;
const LARGEST_RUN: usize = 2 << 20;
/// One path in 64 ends a run.
const RUN_MASK: u8 = 63;

/// Where the frames of one file end.
enum Chunks {
    /// Frames do not follow files.
    None,
    /// The file is one chunk.
    One,
    Many {
        chunker: Chunker,
        digest: Box<Hasher>,
    },
}

impl Chunks {
    fn new(is_cut: bool, size: u64) -> Self {
        if !is_cut {
            Self::None
        } else if size <= chunker::LARGEST as u64 {
            Self::One
        } else {
            Self::Many { chunker: Chunker::default(), digest: Box::default() }
        }
    }

    /// Returns the ends of chunks in the next `bytes`, of which the last ends at the end of a file.
    fn borders(&mut self, bytes: &[u8], is_last: bool) -> Vec<usize> {
        let mut borders = Vec::new();
        match self {
            Self::None => return borders,
            Self::One => {}
            Self::Many { chunker, digest } => {
                digest.update(bytes);
                let mut start = 0;
                while let Some(count) = bytes.get(start..).and_then(|rest| chunker.border(rest)) {
                    start += count;
                    borders.push(start);
                }
            }
        }
        if is_last {
            borders.push(bytes.len());
        }
        borders
    }

    /// The digest of a file in several chunks.
    fn whole(self) -> Option<Sha256Sum> {
        match self {
            Self::Many { digest, .. } => digest.finish_sha256(),
            Self::None | Self::One => None,
        }
    }
}

/// Returns the table of contents of the layer that a [`LayerWriter`] makes of these entries, without
/// its restart points. Reads no content: the caller knows the BLAKE3 hash of each file's.
pub fn planned(entries: impl IntoIterator<Item = (Entry, [u8; 32])>) -> Result<Toc> {
    let mut toc = Toc::default();
    let mut header = Vec::new();
    let mut position = 0;
    for (entry, content) in entries {
        header.clear();
        tar_writer::append_header(&entry, &mut header)?;
        position += header.len() as u64;
        let mut listed = TocEntry { offset: 0, content: None, entry };
        if let EntryKind::File { size } = listed.entry.kind {
            listed.offset = position;
            let empty = || *blake3::hash(b"").as_bytes();
            listed.content = Some(if size == 0 { empty() } else { content });
            position += size + tar_writer::padding(size) as u64;
        }
        toc.entries.push(listed);
    }
    Ok(toc)
}

fn changed(path: &LayerPath, size: u64, how: &str) -> Error {
    Error::failed(format!("`{path}` changed while it was read: it had {size} bytes and {how}"))
        .hint("build again while nothing writes to it")
}
