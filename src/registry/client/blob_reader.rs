//! A blob as a `Read`: a task of the runtime runs ahead of the reading thread by some chunks.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;

use crate::error::{Error, Result};
use crate::registry::client::blob_stream::BlobStream;
use crate::registry::client::hosts::Shared;

/// Chunks (of at most some 400 KiB) between the connection and the reader.
const CHUNKS: usize = 16;

/// Gives the bytes of a [`BlobStream`]; an error stays an error.
pub(super) struct BlobReader {
    chunks: mpsc::Receiver<Result<Bytes>>,
    current: Bytes,
    left: u64,
    ahead: tokio::task::AbortHandle,
    /// Keeps the runtime running.
    _shared: Arc<Shared>,
}

impl Drop for BlobReader {
    /// A reader that stops early does not wait for a registry that is silent.
    fn drop(&mut self) {
        self.ahead.abort();
    }
}

impl BlobReader {
    /// Reads `left` bytes from `stream`, which has been started.
    pub(super) fn new(mut stream: BlobStream, left: u64, shared: Arc<Shared>) -> Result<Self> {
        let (sender, chunks) = mpsc::channel(CHUNKS);
        let ahead = shared.runtime()?.spawn(async move {
            loop {
                let Some(next) = stream.next().await.transpose() else {
                    return;
                };
                let failed = next.is_err();
                // Nobody listens any more when the reader is gone.
                if sender.send(next).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Self {
            chunks,
            current: Bytes::new(),
            left,
            ahead: ahead.abort_handle(),
            _shared: shared,
        })
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.current.is_empty() {
            if self.left == 0 {
                return Ok(0);
            }
            match self.chunks.blocking_recv() {
                Some(chunk) => self.current = chunk?,
                None => return Err(Error::failed("the download was given up").into()),
            }
        }
        let length = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        self.left -= length as u64;
        Ok(length)
    }
}
