//! Responses, and the errors of the distribution API (distribution-spec 1.1, "Error Codes"). Their
//! bodies are bytes or a part of a file that is read in large blocks.
//!
//! A block in the page cache is read directly, without switching to another thread. Buffers are
//! reused.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use rustix::io::{Errno, ReadWriteFlags};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::server::backend::BlobFile;
use imgctl_base::error::{Error, Kind};

pub(super) type Reply = Response<Body>;

/// Error response to a request.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    code: &'static str,
    message: String,
    headers: Vec<(HeaderName, String)>,
    /// Cause of the error, for the log only.
    pub(super) cause: Option<Error>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), headers: Vec::new(), cause: None }
    }

    pub(super) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(super) fn missing(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", message)
    }

    pub(super) fn with(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the refusal with the full cause as its message.
    pub(super) fn candid(mut self) -> Self {
        if let Some(cause) = &self.cause {
            self.message = cause.to_string();
        }
        self
    }

    pub(super) fn reply(self) -> Reply {
        let error = json!({"code": self.code, "message": self.message, "detail": Value::Null});
        let mut reply = document(self.status, &json!({"errors": [error]}));
        for (name, value) in self.headers {
            set(&mut reply, name, &value);
        }
        reply
    }
}

/// Hides the details of internal errors from the client: messages can contain local paths.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, code, message) = match error.kind() {
            Kind::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "NO_SPACE", "the registry is full"),
            Kind::Network => (
                StatusCode::BAD_GATEWAY,
                "UPSTREAM",
                "the upstream registry does not answer as it should",
            ),
            Kind::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "TOOMANYREQUESTS",
                "the registry has too much to do; ask again in a while",
            ),
            _ => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "UNKNOWN",
                "the registry failed; its log says more",
            ),
        };
        let mut refusal = Self::new(status, code, message);
        refusal.cause = Some(error);
        refusal
    }
}

/// Builds a response without content.
pub(super) fn empty(status: StatusCode) -> Reply {
    respond(status, Content::Bytes(Bytes::new()))
}

/// Builds a response with a JSON document.
pub(super) fn document(status: StatusCode, value: &Value) -> Reply {
    let mut reply = respond(status, Content::Bytes(value.to_string().into()));
    set(&mut reply, CONTENT_TYPE, "application/json");
    reply
}

/// Builds a response with content and its `Content-Length`.
pub(super) fn respond(status: StatusCode, content: Content) -> Reply {
    let body = Body::new(content);
    let length = http_body::Body::size_hint(&body).exact().unwrap_or(0);
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        reply.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    reply
}

/// Sets a header. Ignores a value that is not valid in a header.
pub(super) fn set(reply: &mut Reply, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

/// Number of bytes read at once.
const BLOCK: usize = 256 << 10;
/// Maximum number of buffers kept for reuse.
const SPARE: usize = 32;

pub(super) enum Content {
    Bytes(Bytes),
    File(FileContent),
}

/// A [`Content`] being sent.
pub struct Body {
    content: Content,
}

impl Body {
    pub(super) fn new(content: Content) -> Self {
        Self { content }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.content {
            Content::Bytes(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Content::File(file) => {
                file.poll(context).map(|block| block.map(|block| block.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.length() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length())
    }
}

impl Body {
    fn length(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File(file) => file.left,
        }
    }
}

pub(super) struct FileContent {
    blob: BlobFile,
    at: u64,
    left: u64,
    buffers: Arc<Buffers>,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl FileContent {
    /// Returns `length` bytes of `blob` from `at` on.
    pub(super) fn new(blob: BlobFile, at: u64, length: u64, buffers: &Arc<Buffers>) -> Self {
        Self { blob, at, left: length, buffers: Arc::clone(buffers), reading: None }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.reading.is_none() {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            let length = usize::try_from(self.left).map_or(BLOCK, |left| left.min(BLOCK));
            let mut buffer = self.buffers.take(length);
            if self.blob.growing.is_none() {
                match read_cached(&self.blob.file, &mut buffer.bytes, self.at) {
                    Some(Ok(count)) => return Poll::Ready(Some(self.read(buffer.first(count)))),
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => {}
                }
            }
            let (blob, at) = (self.blob.clone(), self.at);
            self.reading = Some(tokio::task::spawn_blocking(move || {
                let mut length = buffer.bytes.len();
                if let Some(growing) = &blob.growing {
                    let there = growing.wait(at, blob.size)?.saturating_sub(at);
                    length = usize::try_from(there).map_or(length, |there| there.min(length));
                }
                let part = buffer.bytes.get_mut(..length).unwrap_or_default();
                let count = blob.file.read_at(part, at)?;
                Ok(buffer.first(count))
            }));
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(None);
        };
        let outcome = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        let block = outcome.unwrap_or_else(|error| Err(io::Error::other(error)));
        Poll::Ready(Some(block.and_then(|block| self.read(block))))
    }

    fn read(&mut self, block: Bytes) -> io::Result<Bytes> {
        if block.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the blob became shorter while it was sent",
            ));
        }
        self.at += block.len() as u64;
        self.left = self.left.saturating_sub(block.len() as u64);
        Ok(block)
    }
}

/// Reads from the page cache; `None` if that would block.
fn read_cached(file: &File, buffer: &mut [u8], at: u64) -> Option<io::Result<usize>> {
    let mut parts = [io::IoSliceMut::new(buffer)];
    match rustix::io::preadv2(file, &mut parts, at, ReadWriteFlags::NOWAIT) {
        Ok(count) => Some(Ok(count)),
        // The content is not cached, or the kernel or file system does not support the flag.
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR | Errno::INVAL) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Pool of reusable buffers of one block each.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Returns a buffer of `length` bytes, at most one block, with arbitrary content.
    fn take(self: &Arc<Self>, length: usize) -> Buffer {
        if length < BLOCK / 4 {
            return Buffer { bytes: vec![0; length], length, home: None };
        }
        let spare = self.spare.lock().ok().and_then(|mut spare| spare.pop());
        let mut bytes = spare.unwrap_or_default();
        bytes.resize(BLOCK, 0);
        bytes.truncate(length);
        Buffer { bytes, length, home: Some(Arc::clone(self)) }
    }
}

struct Buffer {
    bytes: Vec<u8>,
    length: usize,
    home: Option<Arc<Buffers>>,
}

impl Buffer {
    fn first(mut self, count: usize) -> Bytes {
        self.length = count.min(self.bytes.len());
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = &self.home
            && let Ok(mut spare) = home.spare.lock()
            && spare.len() < SPARE
        {
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}
