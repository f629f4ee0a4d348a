//! Parts of a blob from a registry, one after another: bounded pieces are requested ahead of the
//! reader, several at once, and arrive in order. Resumes after broken connections and switches to the
//! next place after a permanent failure. A place that ignores ranges or sends other ones fails.
//!
//! Must not know why these parts are wanted. Checks lengths; the reader checks the content.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use crate::client::failure::Failure;
use crate::client::hosts::Shared;
use crate::client::ranges::{PIECE, Source, piece};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;

/// Maximum number of pieces of one reader that are in memory or being fetched.
const AHEAD: usize = 6;

/// The blob that is read, and from where.
#[derive(Clone)]
pub(super) struct Blob {
    /// `cannot read blob sha256:… of quay.io/a/b`.
    pub(super) doing: String,
    /// Places to read from, in order; never empty.
    pub(super) sources: Vec<Source>,
    pub(super) digest: Digest,
    pub(super) size: u64,
}

/// Reads ranges of a blob one after another.
pub(super) struct RangeReader {
    blob: Blob,
    ranges: std::vec::IntoIter<Range<u64>>,
    /// What is left of the range that is being requested.
    range: Range<u64>,
    pending: VecDeque<Pending>,
    ready: VecDeque<Bytes>,
    /// Memory permit of the content of `ready`.
    held: Option<OwnedSemaphorePermit>,
    /// Keeps the runtime running.
    shared: Arc<Shared>,
}

struct Pending {
    task: JoinHandle<Result<VecDeque<Bytes>>>,
    /// The first piece of a reader needs none, so that no reader waits for another.
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for RangeReader {
    fn drop(&mut self) {
        for pending in &self.pending {
            pending.task.abort();
        }
    }
}

impl RangeReader {
    /// Requests the first pieces of `ranges`, and waits for the first: a place that does not support ranges
    /// is noticed here.
    pub(super) fn start(blob: Blob, ranges: Vec<Range<u64>>, shared: Arc<Shared>) -> Result<Self> {
        let mut reader = Self {
            blob,
            ranges: ranges.into_iter(),
            range: 0..0,
            pending: VecDeque::new(),
            ready: VecDeque::new(),
            held: None,
            shared,
        };
        reader.refill()?;
        reader.fill()?;
        Ok(reader)
    }

    /// Requests further pieces.
    fn refill(&mut self) -> Result<()> {
        while self.pending.len() < AHEAD {
            while self.range.is_empty() {
                match self.ranges.next() {
                    Some(range) => self.range = range,
                    None => return Ok(()),
                }
            }
            let permit = Arc::clone(&self.shared.pieces).try_acquire_owned().ok();
            if permit.is_none() && !self.pending.is_empty() {
                return Ok(());
            }
            let end = self.range.end.min(self.range.start + PIECE);
            let part = self.range.start..end;
            self.range.start = end;
            let blob = self.blob.clone();
            let task = self.shared.runtime()?.spawn(async move { blob.piece(part).await });
            self.pending.push_back(Pending { task, permit });
        }
        Ok(())
    }

    /// Waits for the next piece; nothing is ready at the end.
    fn fill(&mut self) -> Result<()> {
        while self.ready.is_empty() {
            self.held = None;
            self.refill()?;
            let Some(pending) = self.pending.pop_front() else { return Ok(()) };
            self.ready = self.shared.run(async {
                let ended = |error| Error::failed("a download broke").caused_by(error);
                pending.task.await.map_err(ended)?
            })?;
            self.held = pending.permit;
            self.refill()?;
        }
        Ok(())
    }
}

impl Blob {
    /// Fetches a piece from the first place that sends it.
    async fn piece(&self, part: Range<u64>) -> Result<VecDeque<Bytes>> {
        let mut told: Option<Error> = None;
        for source in &self.sources {
            let Range { start, end } = part;
            match piece(source, &self.doing, &self.digest, start, end, self.size).await {
                Ok(bytes) => return Ok(bytes),
                Err(Failure { error, .. }) => {
                    source.place().host.note(Some(&error));
                    tracing::debug!("{}: {error}", self.doing);
                    // The origin comes last and knows best.
                    told = Some(error);
                }
            }
        }
        let error = told.unwrap_or_else(|| Error::failed("there is no place to read from"));
        Err(error.context(self.doing.clone()))
    }
}

impl Read for RangeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.fill()?;
        let Some(chunk) = self.ready.front_mut() else { return Ok(0) };
        let length = buffer.len().min(chunk.len());
        chunk.copy_to_slice(&mut buffer[..length]);
        if chunk.is_empty() {
            self.ready.pop_front();
        }
        Ok(length)
    }
}
