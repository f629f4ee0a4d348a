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

use crate::layer::Compression;
use crate::layer::block::{self, Packed, Packer};
use crate::layer::pipe::{self, Block, Buffer, HashThread, Pool};
use crate::layer::toc::RestartPoint;
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
        // One block is being filled, one hashed and one written; the others are being compressed.
        let blocks = threads + 3;
        let (jobs, job_queue) = bounded(blocks);
        let (in_order, results) = bounded(blocks);
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
                for Job { block, reply } in jobs {
                    let spare = spares.try_recv().unwrap_or_default();
                    // There is no receiver if the output has failed.
                    let _ = reply.send(packer.pack(block, spare));
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

    /// Sends a block into the pipeline. All blocks except the last must be full, because their ends
    /// are visible in the output.
    pub(super) fn push(&mut self, block: &Block) -> Result<()> {
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
                    jobs.send(Job { block, reply }).is_ok()
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

    /// Waits until everything is written.
    pub(super) fn finish(mut self) -> Result<Output<W>> {
        let (written, diff) = self.end()?;
        let (diff_id, diff_size) = diff.ok_or_else(|| Error::failed("nothing was hashed"))?;
        Ok(Output {
            sink: written.sink,
            digest: written.digest.unwrap_or_else(|| diff_id.clone()),
            size: written.size,
            diff_id,
            diff_size,
            restarts: written.restarts,
        })
    }

    /// Waits until everything is written, for a pipeline without hashing.
    pub(super) fn finish_unhashed(mut self) -> Result<W> {
        Ok(self.end()?.0.sink)
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
#[derive(Debug)]
struct Written<W> {
    sink: W,
    /// `None` if it equals the diff-id.
    digest: Option<Digest>,
    size: u64,
    restarts: Vec<RestartPoint>,
}

/// Reorders, hashes and writes blocks.
struct OutputThread<W> {
    sink: HashedSink<W>,
    compression: Compression,
    used: Sender<Vec<u8>>,
    uncompressed: u64,
    crc: Crc,
    restarts: Vec<RestartPoint>,
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
        Ok(Written {
            sink: self.sink.sink,
            digest: self.sink.hasher.map(Hasher::finish),
            size: self.sink.size,
            restarts: self.restarts,
        })
    }

    fn write(&mut self, packed: Packed) -> io::Result<()> {
        if self.compression != Compression::None {
            self.restarts
                .push(RestartPoint { compressed: self.sink.size, uncompressed: self.uncompressed });
        }
        self.uncompressed += packed.block.len() as u64;
        self.crc.combine(&packed.crc);
        match packed.compressed {
            None => block::write_stored(self.compression, &packed.block, &mut self.sink),
            Some(bytes) => {
                self.sink.write_all(&bytes)?;
                let _ = self.used.send(bytes);
                Ok(())
            }
        }
    }
}

/// Hashes and counts the bytes passed through.
struct HashedSink<W> {
    sink: W,
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
