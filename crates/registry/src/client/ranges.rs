//! Downloads a large blob over several connections: fetches a bounded number of pieces ahead of the
//! reader.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, StatusCode, header};
use reqwest::Url;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use crate::client::challenge::Scopes;
use crate::client::failure::{Failure, OTHER_BYTES};
use crate::client::hosts::Place;
use crate::client::http::Response;
use crate::client::place::{Address, Ask};
use imgctl_base::error::Error;
use imgctl_base::image::Digest;

/// Size of one piece, in bytes.
pub(super) const PIECE: u64 = 2 << 20;
/// Size of the chunks into which a piece is split, in bytes.
const CHUNK: usize = 256 << 10;
/// Maximum number of pieces of one blob that are in memory or being fetched.
const OF_ONE_BLOB: usize = 4;
/// Number of bytes that count as progress and reset the failure count.
pub(super) const PROGRESS: u64 = 64 << 10;

/// A source of a blob.
#[derive(Clone)]
pub(super) enum Source {
    Registry(Place),
    /// A descriptor's `urls`: another server, which receives no credentials.
    Foreign(Place, Url),
}

impl Source {
    /// Returns the repository that the source belongs to.
    pub(super) fn place(&self) -> &Place {
        match self {
            Self::Registry(place) | Self::Foreign(place, _) => place,
        }
    }

    /// Requests `bytes=from-to`, or the whole blob if `from` is 0 and `to` is `None`.
    pub(super) async fn get(
        &self,
        doing: &str,
        digest: &Digest,
        from: u64,
        to: Option<u64>,
    ) -> Result<Response, Failure> {
        let place = self.place();
        let (address, scopes) = match self {
            Self::Registry(place) => (
                Address::from(format!("blobs/{digest}")),
                Scopes::repository(&place.repository, "pull"),
            ),
            Self::Foreign(_, url) => (url.clone().into(), Scopes::default()),
        };
        let mut ask = Ask::new(doing.to_owned(), Method::GET, address, scopes);
        let range = match to {
            Some(to) => Some(format!("bytes={from}-{to}")),
            None if from > 0 => Some(format!("bytes={from}-")),
            None => None,
        };
        if let Some(range) = range.and_then(|range| HeaderValue::try_from(range).ok()) {
            ask.headers.insert(header::RANGE, range);
        }
        match self {
            Self::Registry(_) => place.attempt(&ask, None).await,
            Self::Foreign(..) => place.attempt_abroad(&ask).await,
        }
    }
}

/// Pieces being fetched, in order.
pub(super) struct Ahead {
    source: Source,
    doing: String,
    digest: Digest,
    size: u64,
    /// Offset of the first byte that has not been returned.
    position: u64,
    /// Offset of the first byte that is not being fetched yet.
    frontier: u64,
    pending: VecDeque<Pending>,
    ready: VecDeque<Bytes>,
    /// Memory permit of the content of `ready`.
    held: Option<OwnedSemaphorePermit>,
}

struct Pending {
    task: JoinHandle<Result<VecDeque<Bytes>, Failure>>,
    permit: OwnedSemaphorePermit,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        for pending in &self.pending {
            pending.task.abort();
        }
    }
}

impl Ahead {
    /// Starts fetching at `from`. Returns `None` if other readers use all permits.
    pub(super) fn start(
        source: &Source,
        doing: &str,
        digest: &Digest,
        from: u64,
        size: u64,
    ) -> Option<Self> {
        let mut ahead = Self {
            source: source.clone(),
            doing: doing.to_owned(),
            digest: digest.clone(),
            size,
            position: from,
            frontier: from,
            pending: VecDeque::new(),
            ready: VecDeque::new(),
            held: None,
        };
        ahead.refill();
        (!ahead.pending.is_empty()).then_some(ahead)
    }

    /// Returns the offset of the next byte that [`Ahead::next`] returns.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    fn refill(&mut self) {
        while self.pending.len() < OF_ONE_BLOB && self.frontier < self.size {
            let Ok(permit) = self.source.place().shared.pieces.clone().try_acquire_owned() else {
                return;
            };
            let (from, to) = (self.frontier, (self.frontier + PIECE).min(self.size));
            let (source, size) = (self.source.clone(), self.size);
            let (doing, digest) = (self.doing.clone(), self.digest.clone());
            let task =
                tokio::spawn(async move { piece(&source, &doing, &digest, from, to, size).await });
            self.pending.push_back(Pending { task, permit });
            self.frontier = to;
        }
    }

    /// Returns the next bytes; `None` if none are being fetched.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.position += bytes.len() as u64;
                return Ok(Some(bytes));
            }
            self.held = None;
            self.refill();
            let Some(pending) = self.pending.pop_front() else {
                return Ok(None);
            };
            self.ready = pending
                .task
                .await
                .map_err(|error| Error::failed("a download broke").caused_by(error))??;
            self.held = Some(pending.permit);
            self.refill();
        }
    }
}

/// Fetches bytes `from..to`.
pub(super) async fn piece(
    source: &Source,
    doing: &str,
    digest: &Digest,
    from: u64,
    to: u64,
    size: u64,
) -> Result<VecDeque<Bytes>, Failure> {
    // Copied into one buffer: a registry that sends single bytes must not cost more memory than the
    // bytes.
    let mut bytes = BytesMut::with_capacity(usize::try_from(to - from).unwrap_or_default());
    let mut failed_at = from;
    let mut position = from;
    let place = source.place();
    let mut tries = place.tries();
    while position < to {
        let fetched = fetch(source, doing, digest, (&mut position, to, size), &mut bytes);
        if let Err(failure) = fetched.await {
            if position >= failed_at + PROGRESS {
                tries.progressed();
                failed_at = position;
            }
            place.pause(failure, &mut tries).await?;
        }
    }
    let mut chunks = VecDeque::new();
    let mut bytes = bytes.freeze();
    while !bytes.is_empty() {
        chunks.push_back(bytes.split_to(CHUNK.min(bytes.len())));
    }
    Ok(chunks)
}

async fn fetch(
    source: &Source,
    doing: &str,
    digest: &Digest,
    (position, to, size): (&mut u64, u64, u64),
    piece: &mut BytesMut,
) -> Result<(), Failure> {
    let mut response = source.get(doing, digest, *position, Some(to - 1)).await?;
    let range = content_range(&response);
    let fits = range.is_some_and(|(start, total)| {
        start == *position && total.is_none_or(|total| total == size)
    });
    if response.status != StatusCode::PARTIAL_CONTENT || !fits {
        return Err(Error::bad_content("received other bytes than requested")
            .hint(OTHER_BYTES)
            .into());
    }
    while *position < to {
        let Some(bytes) = response.chunk(source.place().shared.pace.silence).await? else {
            return Err(Failure::passing(Error::bad_content("a range ended too early")));
        };
        let length = bytes.len() as u64;
        if length > to - *position {
            return Err(Error::bad_content("a range is longer than requested").into());
        }
        *position += length;
        piece.extend_from_slice(&bytes);
    }
    Ok(())
}

/// Returns the first byte and the total of `Content-Range: bytes 5-9/10`.
pub(super) fn content_range(response: &Response) -> Option<(u64, Option<u64>)> {
    parsed_range(response.text(header::CONTENT_RANGE.as_str())?)
}

fn parsed_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end): (u64, u64) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    (start <= end && total.is_none_or(|total| end < total)).then_some((start, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_content_range_of_a_registry_is_read_or_refused() {
        bolero::check!().with_type::<(u64, u64, u64, String)>().for_each(
            |(start, end, total, text)| {
                let read = parsed_range(&format!("bytes {start}-{end}/{total}"));
                assert_eq!(read, (start <= end && end < total).then_some((*start, Some(*total))));
                for text in [text.clone(), format!("bytes {text}"), format!("bytes {start}-{text}")]
                {
                    if let Some((start, Some(total))) = parsed_range(&text) {
                        assert!(start < total, "{text}");
                    }
                }
            },
        );
    }
}
