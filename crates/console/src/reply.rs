//! Responses: bodies, and the headers that every response has.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use imgctl_report::Rendered;

/// Policy of what is not a page: nothing in it has a meaning.
const NOTHING: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The content of a response.
pub(crate) enum Body {
    Whole(Bytes),
    /// Pieces, until their sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::Stream(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

pub(crate) type Reply = Response<Body>;

/// A page.
pub(crate) fn page(status: StatusCode, page: Rendered) -> Reply {
    let mut reply = whole(status, "text/html; charset=utf-8", page.html.into());
    set(reply.headers_mut(), CONTENT_SECURITY_POLICY, &page.policy);
    reply
}

/// Data.
pub(crate) fn json(bytes: Vec<u8>) -> Reply {
    whole(StatusCode::OK, "application/json", bytes.into())
}

/// Events (HTML, 9.2 "Server-sent events"), until the sender is dropped.
pub(crate) fn events(pieces: mpsc::Receiver<Bytes>) -> Reply {
    let mut reply = Response::new(Body::Stream(pieces));
    finish(reply.headers_mut(), "text/event-stream");
    reply
}

pub(crate) fn whole(status: StatusCode, kind: &str, bytes: Bytes) -> Reply {
    let length = bytes.len();
    let mut reply = Response::new(Body::Whole(bytes));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    finish(reply.headers_mut(), kind);
    reply
}

/// Sets what every response has.
fn finish(headers: &mut HeaderMap, kind: &str) {
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, NOTHING),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        // What it shows is for this operator at this time.
        (CACHE_CONTROL, "no-store"),
    ] {
        set(headers, name, value);
    }
}

/// Sets a header. Ignores a value that is not valid in a header, which ours are not.
pub(crate) fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Returns the reply without its content, as the method HEAD has it.
pub(crate) fn without_content(reply: Reply) -> Reply {
    reply.map(|_| Body::Whole(Bytes::new()))
}
