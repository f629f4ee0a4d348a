//! Bodies of answers: the registry's, events as the working thread emits them, the data of a tunnel.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body::Frame;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::mpsc;

use imgctl_registry::server;

/// Number of bytes to read at once.
const BLOCK: usize = 64 << 10;

/// Data from the TCP connection, as the body of an answer.
pub(super) struct Down(pub(super) OwnedReadHalf);

/// Body of the answer to a request.
pub(super) enum Answer {
    Registry(server::Body),
    Text(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
    Tunnel(Down),
}

/// Returns an answer that explains a refusal.
pub(super) fn refusal(status: StatusCode, why: &str) -> Response<Answer> {
    let mut response = Response::new(Answer::Text(Some(Bytes::from(why.to_owned()))));
    *response.status_mut() = status;
    response
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Registry(body) => Pin::new(body).poll_frame(context),
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Events(events) => {
                events.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
            Self::Tunnel(down) => down.poll(context),
        }
    }
}

impl Down {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut block = BytesMut::zeroed(BLOCK);
        let mut buffer = ReadBuf::new(&mut block);
        let read = ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer));
        let length = buffer.filled().len();
        block.truncate(length);
        Poll::Ready(match (read, length) {
            (Err(error), _) => Some(Err(error)),
            (Ok(()), 0) => None,
            (Ok(()), _) => Some(Ok(Frame::data(block.freeze()))),
        })
    }
}
