//! Bodies of requests: a call, a part of a blob, or one direction of a tunnel.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, DuplexStream, ReadBuf, ReadHalf};

use crate::agent::tunnel::WAITING;
use imgctl_registry::client::sending::BlobBody;

/// Body of a request.
pub(super) enum Body {
    Whole(Option<Bytes>),
    Stream(BlobBody),
    /// Continues until the other end signals the end of the data.
    Pipe(ReadHalf<DuplexStream>),
}

impl Body {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes: &Bytes| !bytes.is_empty()))
    }

    /// A body with everything read from `source`.
    pub(super) fn pipe(source: ReadHalf<DuplexStream>) -> Self {
        Self::Pipe(source)
    }
}

fn poll_pipe(
    source: &mut ReadHalf<DuplexStream>,
    context: &mut Context<'_>,
) -> Poll<Option<io::Result<Frame<Bytes>>>> {
    let mut block = BytesMut::zeroed(WAITING);
    let mut buffer = ReadBuf::new(&mut block);
    ready!(Pin::new(source).poll_read(context, &mut buffer))?;
    let length = buffer.filled().len();
    block.truncate(length);
    Poll::Ready((length > 0).then(|| Ok(Frame::data(block.freeze()))))
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pipe(source) => poll_pipe(source, context),
            Self::Stream(blob) => Pin::new(blob).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(blob) => blob.is_end_stream(),
            Self::Pipe(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(blob) => blob.size_hint(),
            Self::Pipe(_) => SizeHint::default(),
        }
    }
}
