//! The reading side of a scan: splits a blob into pieces of uncompressed tar, in order.
//!
//! Independent zstd frames (as imgctl writes them) are decompressed by several threads while memory
//! allows; everything else is decompressed by the reading thread itself, so hashing and consuming
//! run in parallel with it. The memory used does not depend on the size of the layer. Must not
//! depend on the content of the tar.

use std::io::{self, BufRead, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::decompress::{self, Format};
use crate::pipe::{Block, Buffer, HashThread, Pool, fill};
use crate::pipeline::RESTART_DISTANCE;
use crate::toc::RestartPoint;
use crate::zstd_frames::{self, End, FrameShare};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Algorithm, Digest};

/// Maximum number of pieces waiting for the consumer.
pub(super) const PIECES: usize = 4;

/// Number of bytes read or decompressed at a time, and number of such buffers.
const CHUNK: usize = 256 << 10;
const CHUNKS: usize = PIECES + 3;

/// Maximum content of a frame that is decompressed in parallel, in bytes: the frame size that
/// imgctl writes.
const FRAME: usize = 4 << 20;
/// Minimum content of frames that are decompressed together, except for the last, in bytes.
const ENOUGH: usize = RESTART_DISTANCE as usize;

/// State shared by the reading and the consuming thread.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Whether the consumer has stopped.
    pub(super) stop: AtomicBool,
    /// Number of bytes of the blob read so far.
    pub(super) compressed: AtomicU64,
}

/// A piece of the tar.
#[derive(Debug)]
pub(super) enum Piece {
    Ready(Block),
    /// A thread is decompressing the piece.
    Pending(Receiver<io::Result<Block>>),
}

impl Piece {
    /// Waits for the bytes.
    pub(super) fn wait(self) -> io::Result<Block> {
        match self {
            Self::Ready(block) => Ok(block),
            Self::Pending(result) => {
                result.recv().map_err(|_| io::Error::other("a decompressing thread has died"))?
            }
        }
    }
}

/// Facts about a blob that has been read to its end.
#[derive(Debug)]
pub(super) struct BlobRead {
    /// `None` if it equals the diff-id because the blob is a plain tar, or if it was not requested.
    pub(super) digest: Option<Digest>,
    pub(super) size: u64,
    pub(super) restarts: Vec<RestartPoint>,
}

/// Reads `blob` to its end and sends its pieces. `algorithms` are those of the blob and the tar; a
/// blob without one is not hashed. Restart points are collected if they are `wanted`. Returns
/// `None` if the consumer stops early.
pub(super) fn run(
    blob: impl Read + Send,
    size: Option<u64>,
    algorithms: (Option<Algorithm>, Algorithm),
    wanted: bool,
    shared: &Shared,
    pieces: &Sender<Piece>,
) -> Result<Option<BlobRead>> {
    let mut source = Source {
        blob,
        expected: size,
        size: 0,
        shared,
        pool: Pool::new(CHUNKS, CHUNK),
        block: None,
        position: 0,
        hash: None,
    };
    let outcome = take_apart(&mut source, algorithms, wanted, pieces);
    if shared.stop.load(Ordering::Acquire) {
        return Ok(None);
    }
    let restarts = outcome.doing(|| "cannot read the layer".to_owned())?;
    let digest = match source.hash {
        Some(hash) => Some(hash.finish()?.0),
        None => None,
    };
    Ok(Some(BlobRead { digest, size: source.size, restarts }))
}

fn take_apart<R: Read + Send>(
    source: &mut Source<'_, R>,
    algorithms: (Option<Algorithm>, Algorithm),
    wanted: bool,
    pieces: &Sender<Piece>,
) -> io::Result<Vec<RestartPoint>> {
    let format = Format::of_start(source.fill_buf()?)?;
    if let Some(algorithm) = algorithms.0
        && (format != Format::Plain || algorithm != algorithms.1)
    {
        source.start_hash(algorithm)?;
    }
    let mut restarts = Vec::new();
    match format {
        Format::Plain => {
            while !source.fill_buf()?.is_empty() {
                if let Some(block) = source.take_block() {
                    send(pieces, Piece::Ready(block))?;
                }
            }
        }
        Format::Zstd | Format::Gzip | Format::Bzip2 | Format::Xz => {
            let share = match format {
                Format::Zstd => FrameShare::take(wanted),
                _ => None,
            };
            match share {
                Some(share) => restarts = zstd_frames(source, &share, pieces)?,
                None => stream(&mut decompress::decoder(format, &mut *source)?, pieces)?,
            }
        }
    }
    // Data after the compressed stream is part of the blob, too.
    io::copy(source, &mut io::sink())?;
    Ok(restarts)
}

/// Decompresses on this thread.
fn stream(decoder: &mut dyn Read, pieces: &Sender<Piece>) -> io::Result<()> {
    let mut pool = Pool::new(CHUNKS, CHUNK);
    loop {
        let mut buffer = pool.take()?;
        let length = fill(decoder, buffer.bytes_mut())?;
        if length == 0 {
            return Ok(());
        }
        send(pieces, Piece::Ready(buffer.freeze(length)))?;
    }
}

fn send(pieces: &Sender<Piece>, piece: Piece) -> io::Result<()> {
    pieces.send(piece).map_err(|_| io::Error::other("the consumer of a layer has gone"))
}

/// Frames on their way to a decompressing thread and back.
struct Job {
    frames: Vec<u8>,
    buffer: Buffer,
    /// Size of their content, in bytes.
    content: usize,
    reply: Sender<io::Result<Block>>,
}

/// Decompresses independent frames in parallel until another kind of data follows, then the rest as
/// a stream.
fn zstd_frames<R: Read + Send>(
    source: &mut Source<'_, R>,
    share: &FrameShare,
    pieces: &Sender<Piece>,
) -> io::Result<Vec<RestartPoint>> {
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(share.frames());
        let mut pool = Pool::new(share.frames(), FRAME + ENOUGH);
        let (jobs, queue) = bounded(threads);
        let (used, spares) = unbounded();
        for _ in 0..threads {
            start_worker(scope, queue.clone(), used.clone())?;
        }
        let mut restarts: Vec<RestartPoint> = Vec::new();
        let mut uncompressed = 0;
        loop {
            let compressed = source.offset();
            let mut frames = spares.try_recv().unwrap_or_default();
            let batch = zstd_frames::batch(source, FRAME, ENOUGH, &mut frames)?;
            if batch.content > 0 {
                restarts.push(RestartPoint { compressed, uncompressed });
                uncompressed += batch.content as u64;
                let buffer = pool.take()?;
                let (reply, result) = bounded(1);
                let job = Job { frames, buffer, content: batch.content, reply };
                jobs.send(job)
                    .map_err(|_| io::Error::other("the decompressing threads have died"))?;
                send(pieces, Piece::Pending(result))?;
            }
            match batch.end {
                None => {}
                Some(End::Stream) => return Ok(restarts),
                Some(End::Other(read)) => {
                    let rest = io::Cursor::new(read).chain(&mut *source);
                    stream(&mut decompress::zstd_decoder(rest)?, pieces)?;
                    return Ok(restarts);
                }
            }
        }
    })
}

fn start_worker<'scope>(
    scope: &'scope Scope<'scope, '_>,
    jobs: Receiver<Job>,
    used: Sender<Vec<u8>>,
) -> io::Result<()> {
    let mut decompressor = zstd::bulk::Decompressor::new()?;
    thread::Builder::new().name("layer-unpack".to_owned()).spawn_scoped(scope, move || {
        for job in jobs {
            let Job { frames, mut buffer, content, reply } = job;
            let output = &mut buffer.bytes_mut()[..content];
            let result = decompressor.decompress_to_buffer(&frames, output);
            let result = result.and_then(|length| {
                if length == content {
                    Ok(buffer.freeze(length))
                } else {
                    Err(io::ErrorKind::InvalidData.into())
                }
            });
            let _ = used.send(frames);
            // There is no receiver if the consumer has given up.
            let _ = reply.send(result);
        }
    })?;
    Ok(())
}

/// The raw blob, hashed and counted block by block.
struct Source<'a, R> {
    blob: R,
    expected: Option<u64>,
    size: u64,
    shared: &'a Shared,
    pool: Pool,
    block: Option<Block>,
    /// Number of bytes of the block read so far.
    position: usize,
    hash: Option<HashThread>,
}

impl<R: Read> Source<'_, R> {
    /// Hashes the current block and all that follow.
    fn start_hash(&mut self, algorithm: Algorithm) -> Result<()> {
        let hash = HashThread::start(algorithm)?;
        if let Some(block) = &self.block {
            hash.send(block);
        }
        self.hash = Some(hash);
        Ok(())
    }

    /// Takes the current block. The caller must not have read from it.
    fn take_block(&mut self) -> Option<Block> {
        debug_assert_eq!(self.position, 0);
        self.block.take()
    }

    /// Returns the number of bytes consumed so far.
    fn offset(&self) -> u64 {
        let left = self.block.as_ref().map_or(0, |block| block.len()) - self.position;
        self.size - left as u64
    }

    fn next_block(&mut self) -> io::Result<Option<Block>> {
        if self.shared.stop.load(Ordering::Acquire) {
            return Err(io::Error::other("the consumer of a layer has gone"));
        }
        let mut buffer = self.pool.take()?;
        let length = fill(&mut self.blob, buffer.bytes_mut())?;
        self.size += length as u64;
        self.shared.compressed.store(self.size, Ordering::Relaxed);
        if let Some(expected) = self.expected.filter(|expected| self.size > *expected) {
            let message = format!("the layer has more than the {expected} bytes it should have");
            return Err(Error::bad_content(message).into());
        }
        let block = (length > 0).then(|| buffer.freeze(length));
        if let (Some(hash), Some(block)) = (&self.hash, &block) {
            hash.send(block);
        }
        Ok(block)
    }
}

impl<R: Read> BufRead for Source<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let is_read = |block: &Block| self.position >= block.len();
        if self.block.as_ref().is_none_or(is_read) {
            self.block = None;
            self.position = 0;
            self.block = self.next_block()?;
        }
        let block: &[u8] = self.block.as_deref().unwrap_or_default();
        Ok(block.get(self.position..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.position += count;
    }
}

impl<R: Read> Read for Source<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let block = self.fill_buf()?;
        let count = block.len().min(buffer.len());
        buffer[..count].copy_from_slice(&block[..count]);
        self.consume(count);
        Ok(count)
    }
}
