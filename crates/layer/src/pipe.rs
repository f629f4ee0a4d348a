//! Data exchange between the threads of a layer pipeline: pooled blocks of bytes, and a thread that
//! hashes them.
//!
//! The number of buffers in a pool limits the memory of a pipeline and provides back pressure. Must
//! not depend on the meaning of the bytes.

use std::io::{self, Read};
use std::ops::Deref;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Algorithm, Digest, Hasher};

/// A fixed number of buffers of equal size, which return to the pool when their last reference is
/// dropped.
#[derive(Debug)]
pub(super) struct Pool {
    home: Sender<Vec<u8>>,
    free: Receiver<Vec<u8>>,
    unmade: usize,
    size: usize,
}

impl Pool {
    /// Creates a pool of at most `count` buffers of `size` bytes, allocated on first use.
    pub(super) fn new(count: usize, size: usize) -> Self {
        let (home, free) = bounded(count);
        Self { home, free, unmade: count, size }
    }

    /// Returns a buffer of full length with arbitrary content; waits until one is free.
    pub(super) fn take(&mut self) -> Result<Buffer> {
        let bytes = match self.free.try_recv() {
            Ok(bytes) => bytes,
            Err(_) if self.unmade > 0 => {
                self.unmade -= 1;
                vec![0; self.size]
            }
            Err(_) => self.free.recv().map_err(|_| Error::failed("a buffer pool has closed"))?,
        };
        Ok(Buffer { bytes, home: self.home.clone() })
    }
}

/// A buffer of a [`Pool`] that is being filled.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    home: Sender<Vec<u8>>,
}

impl Buffer {
    /// Returns the whole buffer.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Finishes filling: the first `length` bytes can now be shared, read-only.
    pub(super) fn freeze(self, length: usize) -> Block {
        debug_assert!(length <= self.bytes.len());
        Block { buffer: Arc::new(self), length }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Fails only if the pool is gone or full, in which case the memory can be freed.
        let _ = self.home.try_send(std::mem::take(&mut self.bytes));
    }
}

/// Bytes shared by several readers.
#[derive(Clone, Debug)]
pub(super) struct Block {
    buffer: Arc<Buffer>,
    length: usize,
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.bytes.get(..self.length).unwrap_or_default()
    }
}

/// A thread that hashes the blocks it is sent, in order.
#[derive(Debug)]
pub(super) struct HashThread {
    blocks: Option<Sender<Block>>,
    thread: Option<JoinHandle<(Digest, u64)>>,
}

impl HashThread {
    /// Starts the thread.
    pub(super) fn start(algorithm: Algorithm) -> Result<Self> {
        // The buffers are the limit; the channel must not impose a lower one.
        let (sender, receiver) = bounded::<Block>(16);
        let thread = spawn("layer-hash", move || {
            let mut hasher = Hasher::with(algorithm);
            let mut length = 0;
            for block in receiver {
                hasher.update(&block);
                length += block.len() as u64;
            }
            (hasher.finish(), length)
        })?;
        Ok(Self { blocks: Some(sender), thread: Some(thread) })
    }

    /// Adds a block.
    pub(super) fn send(&self, block: &Block) {
        if let Some(blocks) = &self.blocks {
            // Fails only if the thread has died, which finish() reports.
            let _ = blocks.send(block.clone());
        }
    }

    /// Returns the digest of all blocks and the number of bytes.
    pub(super) fn finish(mut self) -> Result<(Digest, u64)> {
        self.blocks = None;
        match self.thread.take() {
            Some(thread) => join(thread),
            None => Err(Error::failed("a hash thread was ended twice")),
        }
    }
}

impl Drop for HashThread {
    fn drop(&mut self) {
        self.blocks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Fills as much of `buffer` as the stream provides.
pub(super) fn fill(reader: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Starts a named thread.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .doing(|| "cannot start a thread".to_owned())
}

/// Waits for a thread; a panic is returned as an error.
pub(super) fn join<T>(thread: JoinHandle<T>) -> Result<T> {
    thread.join().map_err(|_| Error::failed("a thread of the layer pipeline has died"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_never_exceed_their_number() {
        let mut pool = Pool::new(2, 8);
        let first = pool.take().unwrap().freeze(3);
        let second = pool.take().unwrap();
        let copy = first.clone();
        assert_eq!(copy.len(), 3);
        drop(first);
        assert!(pool.free.is_empty());
        drop(copy);
        assert_eq!(pool.free.len(), 1);
        assert_eq!(pool.take().unwrap().bytes_mut().len(), 8);
        drop(second);
        assert_eq!(pool.unmade, 0);
    }

    #[test]
    fn blocks_are_hashed_in_order() {
        let mut pool = Pool::new(2, 4);
        let hash = HashThread::start(Algorithm::Sha256).unwrap();
        for text in [&b"abcd"[..], b"ef", b""] {
            let mut buffer = pool.take().unwrap();
            buffer.bytes_mut()[..text.len()].copy_from_slice(text);
            hash.send(&buffer.freeze(text.len()));
        }
        assert_eq!(hash.finish().unwrap(), (Digest::of(b"abcdef"), 6));
    }
}
