//! Reads a layer blob once and verifies it completely (both digests, sizes and the tar's
//! well-formedness), while passing the entries to the caller and building a table of contents.
//!
//! One thread reads and splits the blob, others hash and decompress, the caller's thread consumes.
//! Must not depend on what the caller does with the entries or on the source of the blob.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::sync::atomic::Ordering;
use std::thread;

use crossbeam_channel::{Receiver, bounded};

use crate::blob_reader::{self, Piece, Shared};
use crate::chunked::{Comparison, List, Sums};
use crate::decompress;
use crate::pipe::{Block, HashThread};
use crate::{Entry, EntryKind, Limits, Names, TarReader, Toc, TocEntry};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Algorithm, Digest};

#[cfg(test)]
mod tests;

/// The expected properties of a blob.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected<'a> {
    /// Digest of the raw blob.
    pub digest: Option<&'a Digest>,
    /// Size of the raw blob, in bytes.
    pub size: Option<u64>,
    /// Digest of the uncompressed tar.
    pub diff_id: Option<&'a Digest>,
}

/// The actual properties of a blob.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// Digest of the blob, with the algorithm of the expected digest.
    pub digest: Digest,
    /// Size of the blob, in bytes.
    pub size: u64,
    /// Digest of the uncompressed tar, with the algorithm of the expected digest.
    pub diff_id: Digest,
    /// All entries, with restart points if the blob consists of independent zstd frames.
    pub toc: Toc,
}

/// Called for each entry with its content and the offset of the content in the tar (`None` for
/// sparse files and entries without content). It may leave content unread.
pub type OnEntry<'a> = dyn FnMut(&Entry, &mut dyn BufRead, Option<u64>) -> Result<()> + 'a;

/// Reads `blob` to its end. Entries are passed on before the digests are known: the caller must not
/// make anything visible before this function has returned without an error.
pub fn scan(
    blob: impl Read + Send,
    expected: Expected<'_>,
    limits: Limits,
    on_entry: &mut OnEntry<'_>,
) -> Result<Scanned> {
    run(blob, expected, limits, Purpose { table: true, ..Purpose::default() }, on_entry)
}

/// Like [`scan`], for a blob that is here: what its list says to other programs is compared with the archive.
pub fn scan_file(blob: File, expected: Expected<'_>, limits: Limits) -> Result<Scanned> {
    let list = List::of(&blob)?;
    run(blob, expected, limits, Purpose { table: true, list, tar: None }, &mut |_, _, _| Ok(()))
}

/// Like [`scan`], but without the table of contents, whose hashes of all contents take a tenth of
/// the total time: for unpacking, where the consumer is the slowest part. A blob without an
/// expected digest is not hashed itself: the caller has verified it before and relies on the digest
/// of the tar.
pub fn scan_entries(
    blob: impl Read + Send,
    expected: Expected<'_>,
    limits: Limits,
    on_entry: &mut OnEntry<'_>,
) -> Result<()> {
    run(blob, expected, limits, Purpose::default(), on_entry).map(drop)
}

/// Writes the uncompressed tar to `tar`, and builds the table of contents if it is `wanted`, as [`scan_file`] does;
/// like [`scan_entries`], leaves a blob without an expected digest unhashed.
pub fn scan_into(
    blob: File,
    expected: Expected<'_>,
    limits: Limits,
    tar: &mut dyn Write,
    wanted: bool,
) -> Result<Scanned> {
    let list = if wanted { List::of(&blob)? } else { None };
    let purpose = Purpose { table: wanted, list, tar: Some(tar) };
    run(blob, expected, limits, purpose, &mut |_, _, _| Ok(()))
}

/// What a blob is read for, besides its entries.
#[derive(Default)]
struct Purpose<'a> {
    /// Whether to build a table of contents.
    table: bool,
    /// What to compare the entries with.
    list: Option<List>,
    /// Where to write the uncompressed tar.
    tar: Option<&'a mut dyn Write>,
}

fn run(
    blob: impl Read + Send,
    expected: Expected<'_>,
    limits: Limits,
    purpose: Purpose<'_>,
    on_entry: &mut OnEntry<'_>,
) -> Result<Scanned> {
    let shared = Shared::default();
    let wanted = purpose.table;
    let is_hashed = wanted && purpose.tar.is_none() || expected.digest.is_some();
    let blob_algorithm = is_hashed.then(|| algorithm(expected.digest));
    let tar_algorithm = algorithm(expected.diff_id);
    let (sender, pieces) = bounded(blob_reader::PIECES);
    thread::scope(|scope| {
        let shared = &shared;
        let reader = thread::Builder::new()
            .name("layer-read".to_owned())
            .spawn_scoped(scope, move || {
                let algorithms = (blob_algorithm, tar_algorithm);
                blob_reader::run(blob, expected.size, algorithms, wanted, shared, &sender)
            })
            .doing(|| "cannot start a thread".to_owned())?;
        let rest = pieces.clone();
        let consumed = HashThread::start(tar_algorithm).and_then(|hash| {
            let stream = TarStream::new(pieces, hash, shared, limits, purpose.tar);
            consume(stream, limits, (wanted, purpose.list), on_entry)
        });
        // After an early stop, the reader must not wait for buffers that are no longer consumed.
        shared.stop.store(true, Ordering::Release);
        rest.into_iter().for_each(drop);
        let read =
            reader.join().map_err(|_| Error::failed("the thread that reads the layer has died"))?;
        // To the consumer, an unreadable blob looks truncated: report the cause first.
        let read = read?;
        let (toc, (diff_id, _)) = consumed?;
        let read = read.ok_or_else(|| Error::failed("the layer was not read to its end"))?;
        let scanned = Scanned {
            // A plain tar with the same algorithm is hashed only once. A digest that was not
            // requested is not used.
            digest: read.digest.unwrap_or_else(|| diff_id.clone()),
            size: read.size,
            diff_id,
            toc: Toc { restarts: read.restarts, ..toc },
        };
        check(&scanned, expected)?;
        Ok(scanned)
    })
}

fn algorithm(expected: Option<&Digest>) -> Algorithm {
    expected.map_or(Algorithm::Sha256, Digest::algorithm)
}

fn check(scanned: &Scanned, expected: Expected<'_>) -> Result<()> {
    let size = Some(scanned.size);
    if expected.size.is_some() && expected.size != size {
        return Err(Error::bad_content(format!(
            "the layer has {} bytes instead of {}",
            scanned.size,
            expected.size.unwrap_or_default()
        )));
    }
    for (what, found, wanted) in [
        ("layer", &scanned.digest, expected.digest),
        ("uncompressed layer", &scanned.diff_id, expected.diff_id),
    ] {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
            return Err(Error::bad_content(format!(
                "the {what} has the digest {found} instead of {wanted}"
            ))
            .hint("it has been damaged or replaced: fetch it again"));
        }
    }
    Ok(())
}

fn consume(
    stream: TarStream<'_, '_>,
    limits: Limits,
    (wanted, list): (bool, Option<List>),
    on_entry: &mut OnEntry<'_>,
) -> Result<(Toc, (Digest, u64))> {
    let mut tar = TarReader::over(stream, limits, Names::Layer);
    let mut list = list.map(|list| Comparison::start(list, limits)).transpose()?;
    let mut toc = Toc::default();
    while let Some(entry) = tar.next_entry()? {
        let offset = tar.content_offset();
        if !wanted {
            on_entry(&entry, &mut tar, offset)?;
            continue;
        }
        let sums = list.as_mut().map(|list| list.entry(&entry)).transpose()?;
        let mut content = HashedContent { content: &mut tar, hasher: blake3::Hasher::new(), sums };
        on_entry(&entry, &mut content, offset)?;
        let hash = if let EntryKind::File { .. } = entry.kind {
            content.drain().doing(|| format!("cannot read `{}`", entry.path))?;
            let hash = *content.hasher.finalize().as_bytes();
            if let Some(sums) = content.sums {
                sums.finish(&entry.path)?;
            }
            Some(hash)
        } else {
            None
        };
        toc.entries.push(TocEntry { offset: offset.unwrap_or_default(), content: hash, entry });
    }
    if let Some(list) = list {
        list.finish()?;
    }
    Ok((toc, tar.into_inner().hash.finish()?))
}

struct HashedContent<'a> {
    content: &'a mut dyn BufRead,
    hasher: blake3::Hasher,
    /// What a list says about the content.
    sums: Option<Sums>,
}

impl HashedContent<'_> {
    /// Hashes what has not been read.
    fn drain(&mut self) -> io::Result<()> {
        loop {
            let length = self.fill_buf()?.len();
            if length == 0 {
                return Ok(());
            }
            self.consume(length);
        }
    }
}

impl Read for HashedContent<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        if let Some(sums) = &mut self.sums {
            sums.update(&buffer[..count]);
        }
        Ok(count)
    }
}

impl BufRead for HashedContent<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.content.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // What has been filled so far is valid.
        if let Ok(bytes) = self.content.fill_buf() {
            self.hasher.update(&bytes[..count]);
            if let Some(sums) = &mut self.sums {
                sums.update(&bytes[..count]);
            }
        }
        self.content.consume(count);
    }
}

/// The uncompressed tar, assembled from the pieces in order and hashed in the process.
struct TarStream<'a, 'w> {
    pieces: Receiver<Piece>,
    block: Option<Block>,
    /// Number of bytes of the block read so far.
    position: usize,
    hash: HashThread,
    shared: &'a Shared,
    limits: Limits,
    total: u64,
    ended: bool,
    /// Where else all of it goes.
    copy: Option<&'w mut dyn Write>,
}

impl<'a, 'w> TarStream<'a, 'w> {
    fn new(
        pieces: Receiver<Piece>,
        hash: HashThread,
        shared: &'a Shared,
        limits: Limits,
        copy: Option<&'w mut dyn Write>,
    ) -> Self {
        let (block, position, total, ended) = (None, 0, 0, false);
        Self { pieces, block, position, hash, shared, limits, total, ended, copy }
    }

    fn next_block(&mut self) -> io::Result<Option<Block>> {
        let Ok(piece) = self.pieces.recv() else {
            return Ok(None);
        };
        let block = piece.wait()?;
        self.hash.send(&block);
        self.total += block.len() as u64;
        let compressed = self.shared.compressed.load(Ordering::Relaxed);
        decompress::check_ratio(self.total, compressed, self.limits)
            .map_err(|error| error.context("the layer is too large"))?;
        if let Some(copy) = &mut self.copy {
            copy.write_all(&block).doing(|| "cannot write its tar".to_owned())?;
        }
        Ok(Some(block))
    }
}

impl BufRead for TarStream<'_, '_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while !self.ended && self.block.as_ref().is_none_or(|block| self.position >= block.len()) {
            self.position = 0;
            // Release the block before waiting for the next one.
            self.block = None;
            self.block = self.next_block()?;
            self.ended = self.block.is_none();
        }
        let block: &[u8] = self.block.as_deref().unwrap_or_default();
        Ok(block.get(self.position..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.position += count;
    }
}

impl Read for TarStream<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.fill_buf()?;
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.consume(count);
        Ok(count)
    }
}
