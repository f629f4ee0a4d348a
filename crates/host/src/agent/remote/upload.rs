//! Uploads a blob to a host's store through the registry routes, resuming where an earlier attempt
//! ended.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use crate::agent::BlobOpener;
use crate::agent::blobs::upload_id;
use crate::agent::remote::Remote;
use crate::agent::remote::body::Body;
use crate::agent::remote::connection::{Connection, Trouble, text};
use crate::agent::wire::REPOSITORY;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Descriptor;

/// Maximum size of a blob that is sent without asking first, in bytes.
const SMALL: u64 = 256 << 10;
/// Number of consecutive failures without progress after which an upload fails.
const FAILURES: u32 = 3;
/// Number of bytes that counts as progress.
const PROGRESS: u64 = 1 << 20;
/// How often to report progress.
const TELL: Duration = Duration::from_millis(100);
/// Pause before the next attempt, multiplied by the number of failures.
const PAUSE: Duration = Duration::from_millis(300);

/// A blob being uploaded to a host.
struct Upload<'a> {
    remote: &'a Remote,
    blob: &'a Descriptor,
    open: &'a BlobOpener<'a>,
    sent: &'a (dyn Fn(u64) + Sync),
    /// Highest offset reported to `sent`.
    told: u64,
}

/// Uploads `blob`, except for the part that the host already has.
pub(super) fn send(
    remote: &Remote,
    blob: &Descriptor,
    open: &BlobOpener<'_>,
    sent: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let mut upload = Upload { remote, blob, open, sent, told: 0 };
    let (mut failures, mut reached) = (0, 0);
    loop {
        let connection = remote.connection()?;
        let error = match upload.attempt(&connection) {
            Ok(()) => return Ok(()),
            Err(Trouble::Refused(error)) => return Err(error),
            Err(Trouble::Lost { error, .. }) => error,
        };
        if upload.told >= reached + PROGRESS {
            failures = 0;
            reached = upload.told;
        }
        failures += 1;
        if failures >= FAILURES {
            return Err(error);
        }
        tracing::debug!("{error}; resuming blob {}", blob.digest);
        std::thread::sleep(PAUSE * failures);
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
                self.tell(self.blob.size);
                return Ok(());
            };
            match self.put(connection, start)? {
                Put::Done => {
                    self.tell(self.blob.size);
                    return Ok(());
                }
                Put::Elsewhere => offset = runtime.block_on(self.look(connection))?,
            }
        }
        Err(Trouble::Refused(Error::new(Kind::Busy, "another client is sending the same blob")))
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
        connection.request(request).await
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
        let (body, progress) = match length {
            0 => (Body::Whole(None), None),
            length => {
                let range = format!("{start}-{}", size - 1);
                request = request.header(header::CONTENT_RANGE, range);
                let reader = (self.open)(start).map_err(Trouble::Refused)?;
                let (body, progress) = Body::stream(&runtime, reader, length);
                (body, Some(progress))
            }
        };
        let request = request.body(body).map_err(unwritable)?;
        let outcome = runtime.block_on(async {
            let mut answer = std::pin::pin!(connection.request(request));
            loop {
                let answered = tokio::time::timeout(TELL, &mut answer).await;
                if let Some(progress) = &progress {
                    self.tell(start + progress.sent.load(Ordering::Relaxed));
                }
                if let Ok(answered) = answered {
                    return answered;
                }
            }
        });
        // A failing source aborts the request.
        if let Some(error) = progress.and_then(|progress| progress.failure()) {
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

    fn tell(&mut self, reached: u64) {
        if reached > self.told {
            (self.sent)(reached - self.told);
            self.told = reached;
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

/// Returns the number of bytes that the host has, from `Range: 0-<last>`; `0-0` means none.
fn kept(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::RANGE)?.to_str().ok()?;
    let last: u64 = range.strip_prefix("0-")?.parse().ok()?;
    Some(if last == 0 { 0 } else { last.checked_add(1)? })
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
