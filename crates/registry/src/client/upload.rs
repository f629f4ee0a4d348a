//! Pushes one blob: checks for it, mounts it or uploads it, and resumes after broken connections
//! (distribution-spec, "Pushing Blobs").
//!
//! The calling thread opens the source, a runtime thread reads it, and a task sends it.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use reqwest::Url;

use crate::client::Pushed;
use crate::client::challenge::Scopes;
use crate::client::failure::Failure;
use crate::client::hosts::Place;
use crate::client::http::{Response, Stream};
use crate::client::place::{Address, Ask};
use crate::client::plain::{BlobFile, Part};
use crate::client::retry::Tries;
use crate::client::sending::{self, BlobOpener, Reached, Sending, kept};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest};

/// Maximum size of a blob that is sent in one request and restarted from the beginning after a
/// failure, in bytes.
const SMALL: u64 = 1 << 20;
/// Maximum number of repositories tried for a mount: each costs a request and a scope in the token.
const MOUNTS: usize = 4;
/// Initial chunk size if the whole blob is too large for a registry or a proxy in front of it, in
/// bytes.
const FIRST_CHUNK: u64 = 64 << 20;
/// Minimum chunk size, in bytes.
const LEAST_CHUNK: u64 = 256 << 10;
/// Number of tolerated failures of one upload, in addition to one per chunk of minimum size.
const MORE_FAILURES: u64 = 64;
const MIN_CHUNK_HEADER: &str = "oci-chunk-min-length";

/// A blob to upload, and the callback that receives its progress.
pub(super) struct Upload<'a> {
    place: &'a Place,
    descriptor: &'a Descriptor,
    open: &'a BlobOpener<'a>,
    /// The blob as a file, until sending it as one has failed.
    file: Option<Arc<BlobFile>>,
    /// Whether the last request that failed had sent the file.
    file_failed: bool,
    reached: Reached<'a>,
    doing: String,
    scopes: Scopes,
    /// Bytes per request; `None` sends all remaining bytes.
    chunk: Option<u64>,
    /// Minimum number of bytes that the registry requires in every request except the last.
    least: u64,
    /// Number of bytes sent by the last request.
    went: u64,
}

/// An upload session at the registry.
struct Session {
    url: Url,
    /// Number of bytes that the registry has.
    offset: u64,
}

impl<'a> Upload<'a> {
    /// Pushes `descriptor`; see [`crate::client::Repository::push_blob`]. `file` holds the blob, if it
    /// is a file.
    pub(super) fn run(
        place: &'a Place,
        descriptor: &'a Descriptor,
        mount_from: &[String],
        open: &'a BlobOpener<'a>,
        file: Option<Arc<BlobFile>>,
        sent: &'a (dyn Fn(u64) + Sync),
    ) -> Result<Pushed> {
        let mut donors: Vec<&str> = mount_from
            .iter()
            .map(String::as_str)
            .filter(|name| !name.is_empty() && *name != place.repository)
            .take(MOUNTS)
            .collect();
        let mut scopes = Scopes::repository(&place.repository, "pull,push");
        for donor in &donors {
            scopes = scopes.union(&Scopes::repository(donor, "pull"));
        }
        let digest = &descriptor.digest;
        let mut upload = Self {
            place,
            descriptor,
            open,
            file,
            file_failed: false,
            reached: Reached::new(sent),
            doing: format!("cannot push blob {digest} to {}", place.name()),
            scopes,
            chunk: None,
            least: 0,
            went: 0,
        };
        let look = |upload: &Self| place.shared.run(place.blob_size(digest, &upload.scopes));
        let there = match look(&upload) {
            // The access to a donor repository may be the only one that was denied.
            Err(error) if error.kind() == Kind::Denied && !donors.is_empty() => {
                donors.clear();
                upload.scopes = Scopes::repository(&place.repository, "pull,push");
                look(&upload)?
            }
            there => there?,
        };
        match there {
            Some(_) => Ok(Pushed::Existed),
            None => upload.bring(&donors),
        }
    }

    /// Mounts the blob from one of `donors`, otherwise uploads it.
    fn bring(&mut self, donors: &[&str]) -> Result<Pushed> {
        let mut session = None;
        for donor in donors {
            if let Some(abandoned) = session.take() {
                self.cancel(&abandoned);
            }
            match self.place.shared.run(self.mount(donor))? {
                Mount::Done => return Ok(Pushed::Mounted),
                Mount::Session(begun) => session = Some(begun),
                Mount::Refused => {}
            }
        }
        let result = self.upload(&mut session);
        if let (Err(_), Some(session)) = (&result, &session) {
            self.cancel(session);
        }
        result.map(|()| Pushed::Uploaded)
    }

    fn ask(&self, method: Method, address: impl Into<Address>) -> Ask {
        let mut ask = Ask::new(self.doing.clone(), method, address, self.scopes.clone());
        ask.headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        ask
    }

    async fn begin_at(&self, query: Vec<(&'static str, String)>) -> Result<Response> {
        let address = Address::Path("blobs/uploads/".to_owned(), query);
        self.place.ask(&self.ask(Method::POST, address)).await
    }

    async fn mount(&mut self, donor: &str) -> Result<Mount> {
        let digest = self.descriptor.digest.to_string();
        let answer = self.begin_at(vec![("mount", digest), ("from", donor.to_owned())]).await;
        match answer {
            Ok(response) if response.status == StatusCode::CREATED => Ok(Mount::Done),
            Ok(response) => Ok(Mount::Session(self.session(&response).await?)),
            // Registries without mount support report this in different ways. A real problem shows
            // in the upload.
            Err(error) if error.kind() == Kind::Network => Err(error),
            Err(_) => Ok(Mount::Refused),
        }
    }

    async fn begin(&mut self) -> Result<Session> {
        let response = self.begin_at(Vec::new()).await?;
        self.session(&response).await
    }

    /// Returns the session described by a response.
    async fn session(&mut self, response: &Response) -> Result<Session> {
        if let Some(least) = response.text(MIN_CHUNK_HEADER).and_then(|text| text.parse().ok()) {
            self.least = least;
        }
        let url = self.next_url(response).await;
        let url = url.map_err(|failure| failure.error.context(self.doing.clone()))?;
        Ok(Session { url, offset: 0 })
    }

    async fn next_url(&self, response: &Response) -> Result<Url, Failure> {
        let home = self.place.base().await?;
        let location = response.text(header::LOCATION.as_str()).unwrap_or_default();
        self.place.location(&response.url, location, home)
    }

    fn upload(&mut self, session: &mut Option<Session>) -> Result<()> {
        let mut tries = self.place.tries();
        // Limits the total, regardless of the progress that a registry claims.
        let mut failures = 0;
        loop {
            let current = match session.take() {
                Some(current) => current,
                None => self.place.shared.run(self.begin())?,
            };
            let current = session.insert(current);
            let before = current.offset;
            let failure = match self.send_all(current) {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            failures += 1;
            if failures > MORE_FAILURES + self.descriptor.size / LEAST_CHUNK {
                return Err(failure.error.context(self.doing.clone()));
            }
            let refound = self.refind(current, &failure)?;
            if refound.is_some_and(|offset| offset > before) {
                tries.progressed();
            }
            self.wait(failure, refound.is_none(), &mut tries)?;
            match refound {
                Some(offset) => current.offset = offset,
                None => {
                    *session = None;
                    if self.is_there() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Waits before the next attempt. Reduces the chunk size if that may help.
    fn wait(&mut self, mut failure: Failure, lost: bool, tries: &mut Tries) -> Result<()> {
        let too_much = failure.status == Some(StatusCode::PAYLOAD_TOO_LARGE);
        // The ordinary connections may well take what the last one did not.
        let file_failed = std::mem::take(&mut self.file_failed);
        if too_much || (failure.again && lost && !file_failed) {
            let mut smaller = match self.chunk {
                None => FIRST_CHUNK.min(self.descriptor.size / 2),
                Some(chunk) => chunk / 4,
            };
            // docker-registry discards an upload after a broken chunk. If the connection always
            // breaks after a number of bytes, only shorter chunks get through.
            if !too_much {
                smaller = smaller.min(self.went / 2).max(LEAST_CHUNK);
            }
            if smaller >= LEAST_CHUNK.max(self.least) {
                self.chunk = Some(smaller);
                if too_much {
                    return Ok(());
                }
            }
        }
        // The session is lost; a new one may succeed.
        failure.again |= matches!(
            failure.status,
            Some(StatusCode::NOT_FOUND | StatusCode::RANGE_NOT_SATISFIABLE)
        );
        let waited = self.place.shared.run(self.place.pause(failure, tries));
        waited.map_err(|error| error.context(self.doing.clone()))
    }

    fn send_all(&mut self, session: &mut Session) -> Result<(), Failure> {
        let size = self.descriptor.size;
        if size <= SMALL && session.offset == 0 {
            return self.send_small(session);
        }
        while session.offset < size {
            let chunk = self.chunk.map_or(u64::MAX, |chunk| chunk.max(self.least));
            let length = chunk.min(size - session.offset);
            self.send_chunk(session, length)?;
        }
        self.close(session, Vec::new().into())
    }

    fn send_small(&mut self, session: &Session) -> Result<(), Failure> {
        let mut bytes = bytes::Bytes::new();
        if self.descriptor.size > 0 {
            bytes = sending::whole((self.open)(0)?, self.descriptor.size)?;
        }
        self.close(session, bytes)?;
        self.reached.tell(self.descriptor.size);
        Ok(())
    }

    /// Completes the upload: PUTs the last bytes with the digest of the whole blob.
    fn close(&self, session: &Session, body: bytes::Bytes) -> Result<(), Failure> {
        let mut url = session.url.clone();
        url.query_pairs_mut().append_pair("digest", &self.descriptor.digest.to_string());
        let mut ask = self.ask(Method::PUT, url);
        ask.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        ask.headers.insert(header::CONTENT_TYPE, octets());
        ask.body = body;
        let runtime = self.place.shared.runtime()?;
        runtime.block_on(self.place.attempt(&ask, None))?;
        Ok(())
    }

    fn send_chunk(&mut self, session: &mut Session, length: u64) -> Result<(), Failure> {
        let (size, start) = (self.descriptor.size, session.offset);
        let mut ask = self.ask(Method::PATCH, session.url.clone());
        ask.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        ask.headers.insert(header::CONTENT_TYPE, octets());
        if length < size {
            let range = format!("{start}-{}", start + length - 1);
            let range = HeaderValue::try_from(range)
                .map_err(|error| Error::failed("no range").caused_by(error))?;
            ask.headers.insert(header::CONTENT_RANGE, range);
        }
        if self.chunk.is_some() {
            // Each chunk uses a new connection, so that bytes sent earlier do not count against it.
            ask.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let runtime = self.place.shared.runtime()?;
        let response = match self.file.clone() {
            Some(blob) if runtime.block_on(self.place.takes_files(&ask))? => {
                self.send_file(&ask, Part { blob, start, length })?
            }
            _ => self.send_stream(&ask, start, length)?,
        };
        let offset = kept(&response.headers).unwrap_or(start + length);
        if offset != start + length {
            return Err(Failure::passing(Error::bad_content(format!(
                "the registry reports {offset} bytes after {} were sent",
                start + length
            ))));
        }
        session.offset = offset;
        session.url = runtime.block_on(self.next_url(&response))?;
        Ok(())
    }

    /// Sends the request `ask` with `length` bytes from `start` on, which a thread reads.
    fn send_stream(&mut self, ask: &Ask, start: u64, length: u64) -> Result<Response, Failure> {
        let reader = (self.open)(start)?;
        let runtime = self.place.shared.runtime()?;
        let (body, sending) = sending::stream(runtime.handle(), reader, length);
        let stream = Stream { body: reqwest::Body::wrap(body), sending: Arc::clone(&sending) };
        let answer = self.place.attempt(ask, Some(stream));
        let answer = runtime.block_on(self.reached.watch(start, &sending, answer));
        self.went = sending.sent();
        answer.map_err(|failure| sending.failure().map_or(failure, Failure::from))
    }

    /// Like [`Upload::send_stream`], but the kernel sends the bytes from the file. The first failure
    /// is the last attempt of this kind.
    fn send_file(&mut self, ask: &Ask, part: Part) -> Result<Response, Failure> {
        let (start, sending) = (part.start, Arc::new(Sending::default()));
        let answer = self.place.send_file(ask, part, &sending);
        let runtime = self.place.shared.runtime()?;
        let answer = runtime.block_on(self.reached.watch(start, &sending, answer));
        self.went = sending.sent();
        if answer.is_err() {
            self.file = None;
            self.file_failed = true;
        }
        answer
    }

    /// Asks how many bytes of a broken upload the registry kept. Returns `None` if it does not know
    /// the upload.
    fn refind(&self, session: &mut Session, failure: &Failure) -> Result<Option<u64>> {
        let worth = failure.again || failure.status == Some(StatusCode::PAYLOAD_TOO_LARGE);
        if !worth || self.descriptor.size <= SMALL {
            return Ok(None);
        }
        let mut ask = self.ask(Method::GET, session.url.clone());
        ask.headers = HeaderMap::new();
        let Ok(response) = self.place.shared.run(self.place.ask(&ask)) else {
            return Ok(None);
        };
        let Some(offset) = kept(&response.headers).filter(|offset| *offset <= self.descriptor.size)
        else {
            return Ok(None);
        };
        if response.headers.contains_key(header::LOCATION) {
            let url = self.place.shared.runtime()?.block_on(self.next_url(&response));
            session.url = url.map_err(|failure| failure.error.context(self.doing.clone()))?;
        }
        Ok(Some(offset))
    }

    /// Returns whether the blob arrived although the response was lost.
    fn is_there(&self) -> bool {
        let there = self.place.blob_size(&self.descriptor.digest, &self.scopes);
        matches!(self.place.shared.run(there), Ok(Some(size)) if size == self.descriptor.size)
    }

    /// Cancels the session, so that the registry does not have to wait until it expires.
    fn cancel(&self, session: &Session) {
        let ask = self.ask(Method::DELETE, session.url.clone());
        let _ = self
            .place
            .shared
            .run(async { self.place.attempt(&ask, None).await.map_err(|failure| failure.error) });
    }
}

enum Mount {
    Done,
    /// Not mounted: the registry started an upload session instead.
    Session(Session),
    Refused,
}

fn octets() -> HeaderValue {
    HeaderValue::from_static("application/octet-stream")
}

impl Place {
    /// Returns the size of an existing blob.
    pub(super) async fn blob_size(&self, digest: &Digest, scopes: &Scopes) -> Result<Option<u64>> {
        let doing = format!("cannot look for blob {digest} in {}", self.name());
        let path = format!("blobs/{digest}");
        let mut ask = Ask::new(doing.clone(), Method::HEAD, path, scopes.clone());
        ask.understood = &[StatusCode::NOT_FOUND];
        let response = self.ask(&ask).await?;
        if response.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let size = response.length().ok_or_else(|| {
            Error::bad_content("the registry does not report its size").context(doing)
        })?;
        Ok(Some(size))
    }
}
