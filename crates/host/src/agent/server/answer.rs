//! Bodies of answers: the registry's, or events as the working thread emits them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Frame;
use tokio::sync::mpsc;

use crate::agent::server::tunnel::Down;
use imgctl_registry::server;

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
