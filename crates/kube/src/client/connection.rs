//! One HTTP/2 connection to an API server, established on demand and re-established when lost.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;

use crate::client::tls;
use imgctl_base::error::{Error, Result};

/// Timeout for a connection, including its handshake.
const CONNECT: Duration = Duration::from_secs(20);
/// Timeout for a request and its response: the server ends long requests after 60 s.
const REQUEST: Duration = Duration::from_secs(70);
/// Interval at which an idle connection is pinged, and the timeout for the response.
const PING: Duration = Duration::from_secs(15);
const PONG: Duration = Duration::from_secs(20);
/// Maximum size of a response, in bytes. Lists are split into pages.
const LARGEST: usize = 64 << 20;
const WINDOW: u32 = 4 << 20;

/// A stream to the API server.
pub type Stream = Box<dyn Duplex>;
/// Bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Opens streams; runs on a thread that may block.
pub(super) type Dial = dyn Fn() -> Result<Stream> + Send + Sync;

type Sender = http2::SendRequest<Full<Bytes>>;

pub(super) struct ApiConnection {
    pub(super) dial: Arc<Dial>,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
    pub(super) sender: Mutex<Option<Sender>>,
}

pub(super) struct Reply {
    pub(super) code: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Reason why there is no response.
pub(super) struct RequestError {
    pub(super) error: Error,
    /// Whether the server may have executed the request.
    pub(super) was_sent: bool,
}

impl ApiConnection {
    pub(super) async fn ask(&self, request: Request<Full<Bytes>>) -> Result<Reply, RequestError> {
        let unsent = |error: Error| RequestError { error, was_sent: false };
        let mut sender = self.sender().await.map_err(unsent)?;
        let answer = async {
            let response =
                sender.try_send_request(request).await.map_err(|mut error| RequestError {
                    was_sent: error.take_message().is_none(),
                    error: lost(error.into_error()),
                })?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, LARGEST).collect().await;
            let body = body.map_err(|error| RequestError {
                error: Error::network("its answer was cut off").caused_by(error),
                was_sent: true,
            })?;
            Ok(Reply { code: head.status.as_u16(), headers: head.headers, body: body.to_bytes() })
        };
        match tokio::time::timeout(REQUEST, answer).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // The next caller must not wait for the same connection.
                *self.sender.lock().await = None;
                Err(RequestError {
                    error: Error::network(format!("no data within {} s", REQUEST.as_secs())),
                    was_sent: true,
                })
            }
        }
    }

    /// Returns the live connection, or a new one. Other callers wait while it is established.
    async fn sender(&self) -> Result<Sender> {
        let mut held = self.sender.lock().await;
        if let Some(sender) = held.as_mut()
            && !sender.is_closed()
            && sender.ready().await.is_ok()
        {
            return Ok(sender.clone());
        }
        *held = None;
        let made = tokio::time::timeout(CONNECT, self.connect()).await;
        let made = made.unwrap_or_else(|_| {
            let why = format!("no connection within {} s", CONNECT.as_secs());
            Err(Error::network(why))
        })?;
        Ok(held.insert(made).clone())
    }

    async fn connect(&self) -> Result<Sender> {
        let dial = Arc::clone(&self.dial);
        let stream = tokio::task::spawn_blocking(move || dial())
            .await
            .map_err(|error| Error::failed("the connection was abandoned").caused_by(error))??;
        let tls = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls))
            .connect(self.name.clone(), stream)
            .await
            .map_err(tls::failure)?;
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(4 * WINDOW)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .handshake(TokioIo::new(tls))
            .await
            .map_err(lost)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("the connection with the API server ended: {error}");
            }
        });
        sender.ready().await.map_err(lost)?;
        Ok(sender)
    }
}

fn lost(error: hyper::Error) -> Error {
    Error::network("the connection broke").caused_by(error)
}
