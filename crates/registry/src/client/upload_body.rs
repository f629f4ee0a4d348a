//! Body of an upload: read by a thread that may block, sent as it is read, with observable
//! progress.

use std::io::Read;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use crate::client::hosts::Shared;
use crate::client::http::{Activity, Stream};
use imgctl_base::error::{Error, Result};

/// Number of bytes read at once.
const BLOCK: u64 = 256 << 10;
/// Number of blocks between the reading thread and the connection.
const BLOCKS: usize = 8;

/// Error of the local source, if any.
pub(super) type LocalError = Arc<Mutex<Option<Error>>>;

struct UploadBody {
    blocks: mpsc::Receiver<Bytes>,
    left: u64,
    activity: Arc<Activity>,
}

/// Returns a body of the next `length` bytes of `reader`.
pub(super) fn stream(
    shared: &Shared,
    mut reader: Box<dyn Read + Send + 'static>,
    length: u64,
) -> Result<(Stream, LocalError)> {
    let (sender, blocks) = mpsc::channel(BLOCKS);
    let activity = Arc::new(Activity::default());
    let local = LocalError::default();
    let body = UploadBody { blocks, left: length, activity: Arc::clone(&activity) };
    let told = Arc::clone(&local);
    shared.runtime()?.spawn_blocking(move || {
        let mut left = length;
        while left > 0 {
            match next(&mut reader, left.min(BLOCK), left) {
                Ok(bytes) => {
                    left -= bytes.len() as u64;
                    if sender.blocking_send(bytes).is_err() {
                        return;
                    }
                }
                // The channel closes before all bytes were sent, which ends the request.
                Err(error) => {
                    *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return;
                }
            }
        }
    });
    let body = reqwest::Body::wrap(body);
    Ok((Stream { body, activity }, local))
}

/// Reads all `length` bytes of `reader`, for a body that is sent as a whole.
pub(super) fn whole(mut reader: Box<dyn Read + Send + 'static>, length: u64) -> Result<Bytes> {
    next(&mut reader, length, length)
}

/// Reads the next `wanted` of the `left` remaining bytes.
fn next(reader: &mut dyn Read, wanted: u64, left: u64) -> Result<Bytes> {
    let mut bytes = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
    let read = reader
        .take(wanted)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io("cannot read the data to upload", error))?;
    if (read as u64) < wanted {
        return Err(Error::bad_content(format!(
            "the data to upload ended {} bytes too early",
            left - read as u64
        )));
    }
    Ok(Bytes::from(bytes))
}

impl http_body::Body for UploadBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match std::task::ready!(self.blocks.poll_recv(context)) {
            Some(bytes) => {
                let length = bytes.len() as u64;
                self.left -= length;
                self.activity.sent.fetch_add(length, Ordering::Relaxed);
                Ok(Frame::data(bytes))
            }
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
