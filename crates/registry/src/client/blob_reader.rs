//! A blob as a `Read`: a task of the runtime reads a limited number of bytes ahead of the reading
//! thread.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::client::blob_stream::BlobStream;
use crate::client::hosts::Shared;
use imgctl_base::error::{Error, Result};

/// Maximum number of bytes between the connection and the reader.
const AHEAD: u32 = 1 << 20;

/// Reads the bytes of a [`BlobStream`].
pub(super) struct BlobReader {
    chunks: mpsc::UnboundedReceiver<Ahead>,
    current: Bytes,
    /// Permit of `current` in the read-ahead limit.
    held: Option<OwnedSemaphorePermit>,
    left: u64,
    ahead: tokio::task::AbortHandle,
    /// Keeps the runtime running.
    _shared: Arc<Shared>,
}

/// A chunk with its permit in the read-ahead limit, or the error that ended the stream.
type Ahead = Result<(Bytes, OwnedSemaphorePermit)>;

impl Drop for BlobReader {
    /// Aborts the task, so that a reader that stops early does not wait for a silent registry.
    fn drop(&mut self) {
        self.ahead.abort();
    }
}

impl BlobReader {
    /// Reads `left` bytes from `stream`, which must be started.
    pub(super) fn new(mut stream: BlobStream, left: u64, shared: Arc<Shared>) -> Result<Self> {
        let (sender, chunks) = mpsc::unbounded_channel();
        let places = Arc::new(Semaphore::new(AHEAD as usize));
        let ahead = shared.runtime()?.spawn(async move {
            loop {
                let next = match stream.next().await {
                    Ok(None) => return,
                    Ok(Some(bytes)) => {
                        let length = u32::try_from(bytes.len()).unwrap_or(AHEAD).min(AHEAD);
                        let Ok(place) = Arc::clone(&places).acquire_many_owned(length).await else {
                            return;
                        };
                        Ok((bytes, place))
                    }
                    Err(error) => Err(error),
                };
                let failed = next.is_err();
                // Sending fails when the reader is gone.
                if sender.send(next).is_err() || failed {
                    return;
                }
            }
        });
        Ok(Self {
            chunks,
            current: Bytes::new(),
            held: None,
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
            self.held = None;
            match self.chunks.blocking_recv() {
                Some(next) => {
                    let (chunk, place) = next?;
                    (self.current, self.held) = (chunk, Some(place));
                }
                None => return Err(Error::failed("the download was cancelled").into()),
            }
        }
        let length = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        self.left -= length as u64;
        Ok(length)
    }
}
