//! gRPC calls with one question over HTTP/2 on a Unix socket.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

use imgctl_base::error::{Error, IoContext, Kind, Result};

const CONNECT: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(60);
/// Maximum size of an answer, in bytes: gRPC's usual limit is 16 MiB in containerd.
const LARGEST: usize = 16 << 20;
/// A byte that says "not compressed", and the length of the message.
const PREFIX: usize = 5;
/// Status of a missing object.
const NOT_FOUND: &str = "5";

/// A connection to one server. It has a runtime of its own, because calls come from threads of
/// another one, and moves only during calls.
pub(crate) struct Channel {
    socket: String,
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

impl Channel {
    pub(crate) fn connect(socket: &str) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .doing(|| "cannot talk to containerd".to_owned())?;
        let connected = runtime.block_on(async {
            let connect = async {
                let stream = UnixStream::connect(socket).await.map_err(|error| {
                    Error::network("nobody answers on the socket").caused_by(error)
                })?;
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .handshake(TokioIo::new(stream))
                    .await
                    .map_err(broken)?;
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!("a gRPC connection ended: {error}");
                    }
                });
                Ok(sender)
            };
            tokio::time::timeout(CONNECT, connect)
                .await
                .unwrap_or_else(|_| Err(Error::network("no connection in time")))
        });
        match connected {
            Ok(sender) => Ok(Self { socket: socket.to_owned(), runtime, sender }),
            Err(error) => Err(error.context(format!("cannot reach containerd at {socket}"))),
        }
    }

    /// Calls `method` (`package.Service/Method`) with an encoded message, in a namespace of
    /// containerd; returns the encoded answer.
    ///
    /// # Errors
    /// Of kind [`Kind::NotFound`] if the server says so.
    pub(crate) fn call(&self, method: &str, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
        let mut messages = self.call_all(method, namespace, message)?;
        match (messages.pop(), messages.is_empty()) {
            (Some(message), true) => Ok(message),
            _ => Err(Error::bad_content("the answer is not one message")
                .context(format!("{method} of {}", self.socket))),
        }
    }

    /// Like [`Self::call`], for methods that answer with a stream of messages.
    pub(crate) fn call_all(
        &self,
        method: &str,
        namespace: &str,
        message: &[u8],
    ) -> Result<Vec<Vec<u8>>> {
        let told = |error: Error| error.context(format!("{method} of {}", self.socket));
        let length = u32::try_from(message.len())
            .map_err(|_| told(Error::failed("the message is too long")))?;
        let mut body = BytesMut::with_capacity(PREFIX + message.len());
        body.put_u8(0);
        body.put_u32(length);
        body.put_slice(message);
        let request = Request::post(format!("http://localhost/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("containerd-namespace", namespace)
            .body(Full::new(body.freeze()))
            .map_err(|error| told(Error::failed("the request is invalid").caused_by(error)))?;
        let mut sender = self.sender.clone();
        let answer = self.runtime.block_on(async move {
            let answer = async {
                sender.ready().await.map_err(broken)?;
                let response = sender.send_request(request).await.map_err(broken)?;
                let (head, body) = response.into_parts();
                let body = Limited::new(body, LARGEST).collect().await.map_err(|error| {
                    Error::network("the answer was cut off or too long").caused_by(error)
                })?;
                // An error without a message comes in the headers alone.
                let trailers = body.trailers().cloned().unwrap_or(head.headers);
                let bytes = body.to_bytes();
                if !head.status.is_success() {
                    return Err(Error::failed(format!("HTTP status {}", head.status)));
                }
                status(&trailers)?;
                Ok(bytes)
            };
            tokio::time::timeout(CALL, answer)
                .await
                .unwrap_or_else(|_| Err(Error::network("no answer in time")))
        });
        answer.and_then(|bytes| unframed(&bytes)).map_err(told)
    }
}

fn broken(error: hyper::Error) -> Error {
    Error::network("the connection broke").caused_by(error)
}

/// Fails unless the call ended well.
fn status(trailers: &HeaderMap) -> Result<()> {
    let text = |name: &str| {
        let value = trailers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    match text("grpc-status").as_str() {
        "0" => Ok(()),
        "" => Err(Error::network("the answer has no status")),
        NOT_FOUND => Err(Error::new(Kind::NotFound, text("grpc-message"))),
        code => Err(Error::failed(format!("{} (gRPC status {code})", text("grpc-message")))),
    }
}

/// Returns the messages of an answer.
fn unframed(bytes: &Bytes) -> Result<Vec<Vec<u8>>> {
    let wrong = || Error::bad_content("the answer does not consist of plain messages");
    let mut rest: &[u8] = bytes;
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let (prefix, after) = rest.split_at_checked(PREFIX).ok_or_else(wrong)?;
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        let length = usize::try_from(length).map_err(|_| wrong())?;
        let (message, after) = after.split_at_checked(length).ok_or_else(wrong)?;
        if prefix[0] != 0 {
            return Err(wrong());
        }
        messages.push(message.to_vec());
        rest = after;
    }
    Ok(messages)
}
