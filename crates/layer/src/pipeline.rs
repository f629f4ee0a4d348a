//! The threads behind a layer writer: blocks of tar in, compressed blob and both digests out.
//!
//! The caller fills blocks; one thread hashes them for the diff-id, several compress them, and one
//! reorders the results, hashes them for the digest and writes them. The pool of blocks limits
//! memory. Must not depend on the content of the tar.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use flate2::Crc;

use crate::Compression;
use crate::block::{self, Packed, Packer, Segment, Sums};
use crate::pipe::{self, Block, Buffer, HashThread, Pool};
use crate::toc::RestartPoint;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Algorithm, Digest, Hasher};

/// Maximum number of compressing threads; more would only use memory, because hashing is then the
/// bottleneck.
const MAX_THREADS: usize = 8;

/// The output of a pipeline.
#[derive(Debug)]
pub struct Output<W> {
    pub sink: W,
    /// Digest of the compressed bytes.
    pub digest: Digest,
    pub size: u64,
    /// Digest of the tar.
    pub diff_id: Digest,
    pub diff_size: u64,
    pub(super) restarts: Vec<RestartPoint>,
}

/// One frame that is listed: with content of a file, the whole or a chunk of it, or with a run of
/// the tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedFrame {
    /// Offset in the blob, in bytes.
    pub(super) offset: u64,
    /// Number of bytes in the blob.
    pub(super) compressed: u64,
    /// Number of bytes of the tar.
    pub(super) length: u64,
    pub(super) sums: Sums,
}

/// Minimum distance between two restart points; closer ones are not worth storing.
pub(super) const RESTART_DISTANCE: u64 = 1 << 20;

/// A running pipeline. Dropping it ends its threads and waits for them.
#[derive(Debug)]
pub(super) struct Pipeline<W> {
    pool: Pool,
    /// `None` if nothing is hashed.
    diff_id: Option<HashThread>,
    jobs: Option<Sender<Job>>,
    in_order: Option<Sender<Receiver<Result<Packed>>>>,
    workers: Vec<JoinHandle<()>>,
    output: Option<JoinHandle<Result<Written<W>>>>,
    /// Whether the output thread has failed.
    failed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Job {
    block: Block,
    segments: Vec<Segment>,
    reply: Sender<Result<Packed>>,
}

impl<W: Write + Send + 'static> Pipeline<W> {
    /// Starts the threads. Without `hashed`, the digests of the output are not needed.
    pub(super) fn start(
        sink: W,
        compression: Compression,
        threads: usize,
        hashed: bool,
    ) -> Result<Self> {
        let threads = match compression {
            Compression::None => 0,
            // A context for these levels takes tens of megabytes.
            Compression::Zstd { level } if level > 12 => threads.clamp(1, 2),
            _ => threads.clamp(1, MAX_THREADS),
        };
        // One block is being filled, one waits, the others are being compressed and hashed. A block that
        // is compressed as a whole can be filled again before it is written.
        let blocks = if threads == 0 { 4 } else { threads + 2 };
        // What is compressed and not written yet takes memory as well.
        let queue = if threads == 0 { blocks } else { threads };
        let (jobs, job_queue) = bounded(queue);
        let (in_order, results) = bounded(queue);
        let (used, spares) = unbounded();
        let mut pipeline = Self {
            pool: Pool::new(blocks, block::block_size(compression)),
            diff_id: if hashed { Some(HashThread::start(Algorithm::Sha256)?) } else { None },
            jobs: Some(jobs),
            in_order: Some(in_order),
            workers: Vec::new(),
            output: None,
            failed: Arc::default(),
        };
        for _ in 0..threads {
            let mut packer = Packer::new(compression)?;
            let (jobs, spares) = (job_queue.clone(), spares.clone());
            pipeline.workers.push(pipe::spawn("layer-pack", move || {
                for Job { block, segments, reply } in jobs {
                    let spare = spares.try_recv().unwrap_or_default();
                    // There is no receiver if the output has failed.
                    let _ = reply.send(packer.pack(block, &segments, spare));
                }
            })?);
        }
        let output = OutputThread::new(sink, compression, used, hashed);
        let failed = Arc::clone(&pipeline.failed);
        pipeline.output = Some(pipe::spawn("layer-out", move || {
            let outcome = output.run(&results);
            if outcome.is_err() {
                failed.store(true, Ordering::Release);
                // Buffers must return to the pool until the caller notices the failure.
                results.into_iter().for_each(drop);
            }
            outcome
        })?);
        Ok(pipeline)
    }
}

impl<W> Pipeline<W> {
    /// Returns an empty block to fill; waits until one is free.
    pub(super) fn buffer(&mut self) -> Result<Buffer> {
        self.pool.take()
    }

    /// Sends a block into the pipeline. The ends of its segments are visible in the output, and what
    /// it is made of must not depend on how the bytes arrived.
    pub(super) fn push(&mut self, block: &Block, segments: Vec<Segment>) -> Result<()> {
        if let Some(diff_id) = &self.diff_id {
            diff_id.send(block);
        }
        let (reply, result) = bounded(1);
        let sent = match (&self.in_order, &self.jobs) {
            (Some(in_order), Some(jobs)) if !self.failed.load(Ordering::Acquire) => {
                let block = block.clone();
                let started = if self.workers.is_empty() {
                    reply.send(Ok(Packed::stored(block))).is_ok()
                } else {
                    jobs.send(Job { block, segments, reply }).is_ok()
                };
                started && in_order.send(result).is_ok()
            }
            _ => false,
        };
        if sent {
            return Ok(());
        }
        // The output thread has failed and holds the cause.
        match self.end() {
            Err(error) => Err(error),
            Ok(_) => Err(Error::failed("the layer's output ended early")),
        }
    }

    /// Waits until everything is written. `trailer` may then add bytes to the blob, which are not
    /// part of the tar.
    pub(super) fn finish(
        mut self,
        trailer: impl FnOnce(&[ListedFrame], u64) -> Result<Vec<u8>>,
    ) -> Result<Output<W>>
    where
        W: Write,
    {
        let (mut written, diff) = self.end()?;
        let (diff_id, diff_size) = diff.ok_or_else(|| Error::failed("nothing was hashed"))?;
        // The trailer needs memory of its own.
        self.pool = Pool::new(0, 0);
        let trailer = trailer(&written.frames, written.sink.size)?;
        let doing = || "cannot write the layer".to_owned();
        written.sink.write_all(&trailer).doing(doing)?;
        written.sink.flush().doing(doing)?;
        let HashedSink { sink, hasher, size } = written.sink;
        Ok(Output {
            sink,
            digest: hasher.map_or_else(|| diff_id.clone(), Hasher::finish),
            size,
            diff_id,
            diff_size,
            restarts: written.restarts,
        })
    }

    /// Waits until everything is written, for a pipeline without hashing.
    pub(super) fn finish_unhashed(mut self) -> Result<W> {
        Ok(self.end()?.0.sink.sink)
    }

    /// Ends all threads, starting with the output thread, whose error takes precedence.
    fn end(&mut self) -> Result<Ended<W>> {
        self.jobs = None;
        self.in_order = None;
        let output = self.output.take().map(pipe::join);
        let workers: Vec<Result<()>> = self.workers.drain(..).map(pipe::join).collect();
        let ended = || Error::failed("the layer has failed before");
        let diff = self.diff_id.take().map(HashThread::finish);
        let written = output.ok_or_else(ended)???;
        workers.into_iter().collect::<Result<()>>()?;
        Ok((written, diff.transpose()?))
    }
}

impl<W> Drop for Pipeline<W> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The output, and the digest and size of the input if it was hashed.
type Ended<W> = (Written<W>, Option<(Digest, u64)>);

/// The result of the output thread.
struct Written<W> {
    sink: HashedSink<W>,
    restarts: Vec<RestartPoint>,
    frames: Vec<ListedFrame>,
}

/// Reorders, hashes and writes blocks.
struct OutputThread<W> {
    sink: HashedSink<W>,
    compression: Compression,
    used: Sender<Vec<u8>>,
    uncompressed: u64,
    crc: Crc,
    restarts: Vec<RestartPoint>,
    frames: Vec<ListedFrame>,
}

/// RFC 1952: deflate, no name, no time, system unknown.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// An empty final deflate block with fixed codes: ends the sequence of blocks.
const DEFLATE_END: [u8; 2] = [3, 0];

impl<W: Write> OutputThread<W> {
    fn new(sink: W, compression: Compression, used: Sender<Vec<u8>>, hashed: bool) -> Self {
        let hasher = (hashed && compression != Compression::None).then(Hasher::new);
        Self {
            sink: HashedSink { sink, hasher, size: 0 },
            compression,
            used,
            uncompressed: 0,
            crc: Crc::new(),
            restarts: Vec::new(),
            frames: Vec::new(),
        }
    }

    fn run(mut self, results: &Receiver<Receiver<Result<Packed>>>) -> Result<Written<W>> {
        let doing = || "cannot write the layer".to_owned();
        let is_gzip = matches!(self.compression, Compression::Gzip { .. });
        if is_gzip {
            self.sink.write_all(&GZIP_HEADER).doing(doing)?;
        }
        for result in results {
            let packed =
                result.recv().map_err(|_| Error::failed("a compressing thread has died"))??;
            self.write(packed).doing(doing)?;
        }
        if is_gzip {
            let mut trailer = DEFLATE_END.to_vec();
            trailer.extend_from_slice(&self.crc.sum().to_le_bytes());
            trailer.extend_from_slice(&self.crc.amount().to_le_bytes());
            self.sink.write_all(&trailer).doing(doing)?;
        }
        self.sink.flush().doing(doing)?;
        Ok(Written { sink: self.sink, restarts: self.restarts, frames: self.frames })
    }

    fn write(&mut self, packed: Packed) -> io::Result<()> {
        self.crc.combine(&packed.crc);
        let mut compressed: &[u8] = &packed.compressed;
        let mut tar: &[u8] = packed.block.as_deref().unwrap_or_default();
        for segment in packed.segments {
            let offset = self.sink.size;
            self.mark_restart(offset);
            let (bytes, after) = tar.split_at(segment.length.min(tar.len()));
            tar = after;
            match segment.compressed {
                None => block::write_stored(self.compression, bytes, &mut self.sink)?,
                Some(length) => {
                    let (bytes, after) = compressed.split_at(length);
                    compressed = after;
                    self.sink.write_all(bytes)?;
                }
            }
            let length = segment.length as u64;
            self.uncompressed += length;
            if let Some(sums) = segment.sums {
                let compressed = self.sink.size - offset;
                self.frames.push(ListedFrame { offset, compressed, length, sums });
            }
        }
        let _ = self.used.send(packed.compressed);
        Ok(())
    }

    fn mark_restart(&mut self, compressed: u64) {
        let uncompressed = self.uncompressed;
        let is_close = |last: &RestartPoint| uncompressed - last.uncompressed < RESTART_DISTANCE;
        if self.compression != Compression::None && !self.restarts.last().is_some_and(is_close) {
            self.restarts.push(RestartPoint { compressed, uncompressed });
        }
    }
}

/// Hashes and counts the bytes passed through.
struct HashedSink<W> {
    sink: W,
    /// `None` if the digest is not needed, or is the diff-id.
    hasher: Option<Hasher>,
    size: u64,
}

impl<W: Write> Write for HashedSink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink.write(bytes)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&bytes[..written]);
        }
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
