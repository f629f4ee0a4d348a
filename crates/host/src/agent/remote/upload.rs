//! Uploads a blob to a host's store through the registry routes, resuming where an earlier attempt
//! ended.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use crate::agent::remote::Remote;
use crate::agent::remote::connection::{Body, Connection, Deadline, Trouble, text};
use crate::agent::wire::REPOSITORY;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Descriptor;
use imgctl_registry::client::retry::Tries;
use imgctl_registry::client::sending::{self, BlobOpener, Reached, kept};
use imgctl_transfer::transfer::store_backend::upload_id;

/// Maximum size of a blob that is sent without asking first, in bytes.
const SMALL: u64 = 256 << 10;
/// Number of consecutive failures without progress after which an upload fails.
const FAILURES: u32 = 3;
/// Number of bytes that counts as progress.
const PROGRESS: u64 = 1 << 20;
/// Pause before the second attempt.
const PAUSE: Duration = Duration::from_millis(300);

/// A blob being uploaded to a host.
struct Upload<'a> {
    remote: &'a Remote,
    blob: &'a Descriptor,
    open: &'a BlobOpener<'a>,
    reached: Reached<'a>,
}

/// Uploads `blob`, except for the part that the host already has.
pub(super) fn send(
    remote: &Remote,
    blob: &Descriptor,
    open: &BlobOpener<'_>,
    sent: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let mut upload = Upload { remote, blob, open, reached: Reached::new(sent) };
    let (mut tries, mut failed_at) = (Tries::new(FAILURES, PAUSE), 0);
    loop {
        let connection = remote.connection()?;
        let error = match upload.attempt(&connection) {
            Ok(()) => return Ok(()),
            Err(Trouble::Refused(error)) => return Err(error),
            Err(Trouble::Lost { error, .. }) => error,
        };
        if upload.reached.offset() >= failed_at + PROGRESS {
            tries.progressed();
            failed_at = upload.reached.offset();
        }
        let Some(pause) = tries.failed(None) else { return Err(error) };
        tracing::debug!("{error}; resuming blob {}", blob.digest);
        std::thread::sleep(pause);
    }
}

impl Upload<'_> {
    fn attempt(&mut self, connection: &Connection) -> Result<(), Trouble> {
        let runtime = self.remote.runtime.clone();
        // The host rarely has a small blob already.
        let mut offset = match self.blob.size {
            0..=SMALL => Some(0),
            _ => runtime.block_on(self.look(connection))?,
        };
        // Another controller may be uploading the same blob.
        for _ in 0..4 {
            let Some(start) = offset else {
                self.reached.tell(self.blob.size);
                return Ok(());
            };
            match self.put(connection, start)? {
                Put::Done => {
                    self.reached.tell(self.blob.size);
                    return Ok(());
                }
                Put::Elsewhere => offset = runtime.block_on(self.look(connection))?,
            }
        }
        Err(Trouble::Refused(Error::busy("another client is sending the same blob")))
    }

    fn address(&self) -> String {
        let id = upload_id(self.blob);
        format!("http://agent/v2/{REPOSITORY}/blobs/uploads/{id}")
    }

    async fn ask(
        &self,
        connection: &Connection,
        method: Method,
        address: &str,
    ) -> Result<Response<Incoming>, Trouble> {
        let request = Request::builder().method(method).uri(address);
        let request = request.body(Body::Whole(None)).map_err(unwritable)?;
        connection.request_within(request, &Deadline::answer("blob", 0)).await
    }

    /// Returns the number of bytes that the host has, or `None` if it has the whole blob.
    async fn look(&self, connection: &Connection) -> Result<Option<u64>, Trouble> {
        let response = self.ask(connection, Method::GET, &self.address()).await?;
        match response.status() {
            StatusCode::NO_CONTENT => Ok(Some(kept(response.headers()).unwrap_or(0))),
            StatusCode::NOT_FOUND => {
                let digest = &self.blob.digest;
                let address = format!("http://agent/v2/{REPOSITORY}/blobs/{digest}");
                let there = self.ask(connection, Method::HEAD, &address).await?;
                match there.status() {
                    StatusCode::OK => Ok(None),
                    _ => Err(refused(response).await),
                }
            }
            _ => Err(refused(response).await),
        }
    }

    /// Sends all bytes from offset `start`.
    fn put(&mut self, connection: &Connection, start: u64) -> Result<Put, Trouble> {
        let (size, runtime) = (self.blob.size, self.remote.runtime.clone());
        let length = size.saturating_sub(start);
        let address = format!("{}?digest={}", self.address(), self.blob.digest);
        let mut request = Request::put(address)
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(header::CONTENT_LENGTH, length);
        let (body, sending) = match length {
            0 => (Body::Whole(None), Arc::default()),
            length => {
                let range = format!("{start}-{}", size - 1);
                request = request.header(header::CONTENT_RANGE, range);
                let reader = (self.open)(start).map_err(Trouble::Refused)?;
                let (body, sending) = sending::stream(&runtime, reader, length);
                (Body::Stream(body), sending)
            }
        };
        let request = request.body(body).map_err(unwritable)?;
        let deadline = Deadline::answer("blob", length);
        let answer = connection.request_within(request, &deadline);
        let outcome = runtime.block_on(self.reached.watch(start, &sending, answer));
        // A failing source aborts the request.
        if let Some(error) = sending.failure() {
            return Err(Trouble::Refused(error));
        }
        let response = outcome?;
        match response.status() {
            StatusCode::CREATED => Ok(Put::Done),
            StatusCode::NOT_FOUND | StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::CONFLICT => {
                Ok(Put::Elsewhere)
            }
            _ => Err(runtime.block_on(refused(response))),
        }
    }
}

enum Put {
    Done,
    /// The host has more or fewer bytes than expected, or the whole blob.
    Elsewhere,
}

fn unwritable(error: http::Error) -> Trouble {
    Trouble::Refused(Error::failed("cannot write the request").caused_by(error))
}

/// Converts an unexpected answer to an error.
async fn refused(response: Response<Incoming>) -> Trouble {
    let status = response.status();
    let text = text(response.into_body()).await;
    let said = serde_json::from_str::<serde_json::Value>(&text).ok();
    let said = said.and_then(|said| Some(said["errors"][0]["message"].as_str()?.to_owned()));
    let message = said.unwrap_or(text);
    let message = format!("the host answered {status}: {message}");
    let error = |kind| Error::new(kind, message.clone());
    match status {
        // The host timed out waiting for bytes, or an interrupted request still holds the upload.
        StatusCode::REQUEST_TIMEOUT | StatusCode::SERVICE_UNAVAILABLE => {
            Trouble::Lost { error: error(Kind::Network), has_begun: true }
        }
        StatusCode::INSUFFICIENT_STORAGE => Trouble::Refused(
            error(Kind::NoSpace).hint("free space on the file system of the host's store"),
        ),
        StatusCode::BAD_REQUEST => Trouble::Refused(error(Kind::BadContent)),
        _ => Trouble::Refused(error(Kind::Failed)),
    }
}
