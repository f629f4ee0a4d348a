//! Bodies of answers: a file of this host, a few bytes, or a stream from another host.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Frame;
use tokio::sync::mpsc;

use imgctl_registry::server;

pub(super) enum Reply {
    Registry(server::Body),
    Text(Option<Bytes>),
    Stream(mpsc::Receiver<io::Result<Bytes>>),
}

pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Reply> {
    let mut response = Response::new(Reply::Text(Some(text.into())));
    *response.status_mut() = status;
    response
}

/// Tells containerd to go on to the next host.
pub(super) fn nothing() -> Response<Reply> {
    text(StatusCode::NOT_FOUND, "")
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Registry(body) => Pin::new(body).poll_frame(context),
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Stream(parts) => {
                parts.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
            }
        }
    }
}
