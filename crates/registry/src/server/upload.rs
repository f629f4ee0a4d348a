//! Blob uploads: mounted, monolithic or chunked (distribution-spec 1.1, "Pushing Blobs").
//!
//! Each upload serves one request at a time. Idle uploads are closed; their bytes stay on disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, LOCATION, RANGE, RETRY_AFTER,
};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::OwnedMutexGuard;

use crate::layout::names;
use crate::server::Shared;
use crate::server::backend::{UploadSession, WritableBackend};
use crate::server::pull::CONTENT_DIGEST;
use crate::server::reply::{Refusal, Reply, empty, set};
use crate::server::routes::{Query, digest, parameter};
use imgctl_base::error::Kind;
use imgctl_base::image::{Algorithm, Digest};

/// Bytes per write to disk.
const BATCH: usize = 256 << 10;
/// Time that a request waits for another request to release an upload.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes to keep free on the file system for manifests and links.
pub(super) const RESERVE: u64 = 16 << 20;
const UPLOAD_ID: HeaderName = HeaderName::from_static("docker-upload-uuid");

pub(super) fn not_writable() -> Refusal {
    Refusal::unsupported("this registry is read-only")
}

/// Handles `POST /v2/<name>/blobs/uploads/`: mounts a blob, receives a whole blob, or starts an
/// upload.
pub(super) async fn begin(
    shared: &Shared,
    (repository, client): (String, Option<String>),
    query: &Query,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Reply, Refusal> {
    if let Some(mounted) = parameter(query, "mount") {
        let mounted = digest(mounted)?;
        let from = parameter(query, "from").filter(|from| !from.is_empty());
        // A repository with an invalid name has no blobs.
        let is_possible = from.is_none_or(names::is_repository);
        if is_possible && mount(shared, &repository, from, &mounted).await? {
            return Ok(created_blob(&repository, &mounted));
        }
    }
    let whole = parameter(query, "digest").map(digest).transpose()?;
    let algorithm = match (&whole, parameter(query, "digest-algorithm")) {
        (Some(digest), _) => Some(digest.algorithm()),
        (None, Some(name)) => Some(algorithm(name)?),
        (None, None) => None,
    };
    has_room(shared, headers)?;
    if client.as_deref().is_some_and(|client| shared.sessions.count(client) >= MAX_OF_CLIENT) {
        return Err(too_many());
    }
    let name = repository.clone();
    let upload = shared.change(move |intake| intake.start_upload(&name, algorithm)).await?;
    let id = upload.id().to_owned();
    let held = shared.sessions.open(&repository, client, upload).ok_or_else(busy)?;
    match whole {
        Some(digest) => {
            let held = receive(shared, held, body).await?;
            finish(shared, &repository, &id, held, digest).await
        }
        None => Ok(progress(StatusCode::ACCEPTED, &repository, &id, 0)),
    }
}

async fn mount(
    shared: &Shared,
    repository: &str,
    from: Option<&str>,
    mounted: &Digest,
) -> Result<bool, Refusal> {
    let (repository, from) = (repository.to_owned(), from.map(str::to_owned));
    let mounted = mounted.clone();
    shared.change(move |intake| intake.mount(&repository, from.as_deref(), &mounted)).await
}

fn algorithm(name: &str) -> Result<Algorithm, Refusal> {
    [Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512]
        .into_iter()
        .find(|algorithm| algorithm.as_str() == name)
        .ok_or_else(|| Refusal::bad("DIGEST_INVALID", "the digest algorithm is not supported"))
}

/// Handles requests to an upload's URL: GET returns its state, PATCH appends, PUT completes and
/// DELETE cancels it.
pub(super) async fn upload(
    shared: &Shared,
    method: &Method,
    (repository, id): (String, String),
    query: &Query,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Reply, Refusal> {
    let held = hold(shared, &repository, &id).await?;
    let offset = offset(&held);
    match *method {
        Method::GET | Method::HEAD => {
            Ok(progress(StatusCode::NO_CONTENT, &repository, &id, offset))
        }
        Method::PATCH => {
            in_order(headers, &repository, &id, offset)?;
            has_room(shared, headers)?;
            let held = receive(shared, held, body).await?;
            let offset = self::offset(&held);
            Ok(progress(StatusCode::ACCEPTED, &repository, &id, offset))
        }
        Method::PUT => {
            let text = parameter(query, "digest")
                .ok_or_else(|| Refusal::bad("DIGEST_INVALID", "the digest is missing"))?;
            let digest = digest(text)?;
            in_order(headers, &repository, &id, offset)?;
            has_room(shared, headers)?;
            let held = receive(shared, held, body).await?;
            finish(shared, &repository, &id, held, digest).await
        }
        Method::DELETE => {
            give_up(shared, &repository, &id, held).await?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        _ => Err(Refusal::unsupported("an upload cannot be asked that")),
    }
}

/// Locks an upload; loads it from disk if necessary.
async fn hold(shared: &Shared, repository: &str, id: &str) -> Result<Held, Refusal> {
    let unknown = || {
        Refusal::missing(
            "BLOB_UPLOAD_UNKNOWN",
            "there is no such upload: it may have been finished or given up",
        )
    };
    if let Some(slot) = shared.sessions.find(repository, id) {
        // The previous request's client can be gone without the server having noticed yet.
        return match tokio::time::timeout(PATIENCE, slot.lock_owned()).await {
            Ok(held) if held.is_some() => Ok(held),
            Ok(_) => Err(unknown()),
            Err(_) => Err(busy()),
        };
    }
    let (name, wanted) = (repository.to_owned(), id.to_owned());
    let upload = shared.change(move |intake| intake.resume_upload(&name, &wanted)).await?;
    let upload = upload.ok_or_else(unknown)?;
    shared.sessions.open(repository, None, upload).ok_or_else(busy)
}

fn too_many() -> Refusal {
    Refusal::new(
        StatusCode::TOO_MANY_REQUESTS,
        "TOOMANYREQUESTS",
        format!("this client has {MAX_OF_CLIENT} open uploads: finish or give up some of them"),
    )
    .with(RETRY_AFTER, IDLE.as_secs().to_string())
}

fn busy() -> Refusal {
    Refusal::new(
        StatusCode::CONFLICT,
        "BLOB_UPLOAD_INVALID",
        "another request works on this upload",
    )
}

fn offset(held: &Held) -> u64 {
    held.as_ref().map_or(0, |upload| upload.offset())
}

/// Checks that a chunk begins where the previous one ended; otherwise fails with status 416 and the
/// expected offset.
fn in_order(headers: &HeaderMap, repository: &str, id: &str, offset: u64) -> Result<(), Refusal> {
    let Some(range) = headers.get(CONTENT_RANGE) else {
        return Ok(());
    };
    let chunk = range.to_str().ok().and_then(parse_content_range);
    let announced = content_length(headers);
    let fits = chunk.is_some_and(|(first, last)| {
        let length = last.checked_sub(first).and_then(|span| span.checked_add(1));
        first == offset && announced.is_none_or(|announced| length == Some(announced))
    });
    if fits {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::RANGE_NOT_SATISFIABLE,
        "BLOB_UPLOAD_INVALID",
        format!("the next byte of this upload is number {offset}"),
    )
    .with(LOCATION, location(repository, id))
    .with(RANGE, received(offset)))
}

pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Parses `first-last`, with or without `bytes ` and `/total`.
fn parse_content_range(text: &str) -> Option<(u64, u64)> {
    let text = text.trim();
    let text = text.strip_prefix("bytes").unwrap_or(text);
    let text = text.trim_start_matches(['=', ' ']);
    let text = text.split_once('/').map_or(text, |(range, _)| range);
    let (first, last) = text.split_once('-')?;
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
}

/// Rejects an upload that would fill the disk, before reading its body.
fn has_room(shared: &Shared, headers: &HeaderMap) -> Result<(), Refusal> {
    content_length(headers).map_or(Ok(()), |length| has_room_for(shared, length))
}

/// Rejects as many bytes as would fill the disk.
fn has_room_for(shared: &Shared, length: u64) -> Result<(), Refusal> {
    match shared.backend.intake().and_then(WritableBackend::free_space) {
        Some(free) if length > free.saturating_sub(RESERVE) => Err(Refusal::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "NO_SPACE",
            "the registry has no room for so much",
        )),
        _ => Ok(()),
    }
}

fn silent(silence: Duration) -> Refusal {
    Refusal::new(
        StatusCode::REQUEST_TIMEOUT,
        "BLOB_UPLOAD_INVALID",
        format!("no data came for {} seconds", silence.as_secs()),
    )
}

/// Returns the next piece of a body; fails if the client sends nothing for `silence`.
pub(super) async fn next(body: &mut Incoming, silence: Duration) -> Result<Option<Bytes>, Refusal> {
    loop {
        let frame = match tokio::time::timeout(silence, body.frame()).await {
            Err(_) => return Err(silent(silence)),
            Ok(None) => return Ok(None),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                return Err(Refusal::bad(
                    "BLOB_UPLOAD_INVALID",
                    format!("the data ended too early: {error}"),
                ));
            }
        };
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// Appends a body to the upload. Writes one batch while the next one arrives. Bytes received before
/// an interrupted connection are kept.
async fn receive(shared: &Shared, held: Held, mut body: Incoming) -> Result<Held, Refusal> {
    let silence = shared.limits.silence;
    let mut writer = Writer::Idle(held);
    let mut batch = Vec::new();
    let mut size = 0;
    let outcome = loop {
        match next(&mut body, silence).await {
            Ok(Some(data)) => {
                size += data.len();
                batch.push(data);
                if size >= BATCH {
                    // The length may not have been announced, and others use the disk meanwhile.
                    if let Err(refusal) = has_room_for(shared, size as u64) {
                        batch.clear();
                        break Err(refusal);
                    }
                    writer = writer.write(std::mem::take(&mut batch)).await?;
                    size = 0;
                }
            }
            Ok(None) => break Ok(()),
            Err(refusal) => break Err(refusal),
        }
    };
    if !batch.is_empty() {
        writer = writer.write(batch).await?;
    }
    let held = writer.wait().await?;
    outcome.map(|()| held)
}

enum Writer {
    Idle(Held),
    Busy(tokio::task::JoinHandle<(Held, imgctl_base::error::Result<()>)>),
}

impl Writer {
    /// Waits for the write in progress, then starts writing `batch`.
    async fn write(self, batch: Vec<Bytes>) -> Result<Self, Refusal> {
        let mut held = self.wait().await?;
        Ok(Self::Busy(tokio::task::spawn_blocking(move || {
            let outcome = match held.as_mut() {
                Some(upload) => batch.iter().try_for_each(|bytes| upload.append(bytes)),
                None => Ok(()),
            };
            (held, outcome)
        })))
    }

    async fn wait(self) -> Result<Held, Refusal> {
        match self {
            Self::Idle(held) => Ok(held),
            Self::Busy(job) => {
                let (held, outcome) = job.await.map_err(|_| stopped())?;
                outcome?;
                Ok(held)
            }
        }
    }
}

pub(super) fn stopped() -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", "the registry stopped half-way")
}

/// Completes the upload as the blob `digest`.
async fn finish(
    shared: &Shared,
    repository: &str,
    id: &str,
    mut held: Held,
    digest: Digest,
) -> Result<Reply, Refusal> {
    let wanted = digest.clone();
    let outcome = tokio::task::spawn_blocking(move || {
        let outcome = held.as_mut().map(|upload| upload.commit(&wanted));
        let refused = matches!(&outcome, Some(Err(error)) if error.kind() == Kind::BadContent);
        if refused && let Some(upload) = held.as_mut() {
            let _ = upload.cancel();
        }
        if refused || matches!(outcome, Some(Ok(()))) {
            *held = None;
        }
        outcome
    })
    .await
    .map_err(|_| stopped())?;
    match outcome {
        Some(Ok(())) => {
            shared.sessions.close(repository, id);
            Ok(created_blob(repository, &digest))
        }
        Some(Err(error)) if error.kind() == Kind::BadContent => {
            shared.sessions.close(repository, id);
            Err(Refusal::bad("DIGEST_INVALID", error.message()))
        }
        Some(Err(error)) => Err(error.into()),
        None => Err(stopped()),
    }
}

async fn give_up(
    shared: &Shared,
    repository: &str,
    id: &str,
    mut held: Held,
) -> Result<(), Refusal> {
    tokio::task::spawn_blocking(move || match held.take() {
        Some(mut upload) => upload.cancel(),
        None => Ok(()),
    })
    .await
    .map_err(|_| stopped())??;
    shared.sessions.close(repository, id);
    Ok(())
}

fn location(repository: &str, id: &str) -> String {
    format!("/v2/{repository}/blobs/uploads/{id}")
}

/// Formats the received range. Clients also read `0-0` as "nothing yet", because the format has no
/// empty range.
fn received(offset: u64) -> String {
    format!("0-{}", offset.saturating_sub(1))
}

fn progress(status: StatusCode, repository: &str, id: &str, offset: u64) -> Reply {
    let mut reply = empty(status);
    set(&mut reply, LOCATION, &location(repository, id));
    set(&mut reply, RANGE, &received(offset));
    set(&mut reply, UPLOAD_ID, id);
    reply
}

fn created_blob(repository: &str, digest: &Digest) -> Reply {
    let mut reply = empty(StatusCode::CREATED);
    set(&mut reply, LOCATION, &format!("/v2/{repository}/blobs/{digest}"));
    set(&mut reply, CONTENT_DIGEST, &digest.to_string());
    reply
}

/// Time without a request after which an upload is closed.
const IDLE: Duration = Duration::from_secs(300);
/// Maximum number of open uploads. Above this limit, idle uploads are closed early.
const MAX_OPEN: usize = 1024;
/// Maximum number of open uploads that one client has begun: each takes files on the disk.
const MAX_OF_CLIENT: usize = 256;

/// The upload, or `None` after it was finished or canceled.
pub(super) type Slot = Option<Box<dyn UploadSession>>;
/// Exclusive lock on one upload.
pub(super) type Held = OwnedMutexGuard<Slot>;

#[derive(Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<String, Session>>,
}

struct Session {
    slot: Arc<tokio::sync::Mutex<Slot>>,
    used: Instant,
    /// Who has begun it: a user or an address.
    client: Option<String>,
}

fn key(repository: &str, id: &str) -> String {
    format!("{repository}:{id}")
}

impl Sessions {
    /// Registers and locks an upload; returns `None` if another request already has it.
    pub(super) fn open(
        &self,
        repository: &str,
        client: Option<String>,
        upload: Box<dyn UploadSession>,
    ) -> Option<Held> {
        let key = key(repository, upload.id());
        let slot = Arc::new(tokio::sync::Mutex::new(Some(upload)));
        let held = Arc::clone(&slot).try_lock_owned().ok();
        let used = Instant::now();
        if let Ok(mut open) = self.open.lock() {
            if open.len() >= MAX_OPEN {
                close_idle(&mut open, Duration::ZERO);
            }
            if open.contains_key(&key) {
                return None;
            }
            open.insert(key, Session { slot, used, client });
        }
        held
    }

    /// Returns how many open uploads a client has begun.
    fn count(&self, client: &str) -> usize {
        let of_client = |session: &&Session| session.client.as_deref() == Some(client);
        self.open.lock().map_or(0, |open| open.values().filter(of_client).count())
    }

    /// Returns the slot of an open upload.
    pub(super) fn find(&self, repository: &str, id: &str) -> Option<Arc<tokio::sync::Mutex<Slot>>> {
        let mut open = self.open.lock().ok()?;
        let session = open.get_mut(&key(repository, id))?;
        session.used = Instant::now();
        Some(Arc::clone(&session.slot))
    }

    /// Removes a finished upload.
    pub(super) fn close(&self, repository: &str, id: &str) {
        if let Ok(mut open) = self.open.lock() {
            open.remove(&key(repository, id));
        }
    }

    pub(super) fn tidy(&self) {
        if let Ok(mut open) = self.open.lock() {
            close_idle(&mut open, IDLE);
        }
    }
}

fn close_idle(open: &mut HashMap<String, Session>, idle: Duration) {
    open.retain(|_, session| Arc::strong_count(&session.slot) > 1 || session.used.elapsed() < idle);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_content_range_is_read_or_refused() {
        for (text, read) in [
            ("0-9", Some((0, 9))),
            ("bytes 5-9/10", Some((5, 9))),
            ("bytes=5-9", Some((5, 9))),
            ("5", None),
            ("-", None),
            ("0-99999999999999999999", None),
        ] {
            assert_eq!(parse_content_range(text), read, "{text}");
        }
        bolero::check!().with_type::<(u64, u64, String)>().for_each(|(first, last, text)| {
            assert_eq!(
                parse_content_range(&format!("bytes {first}-{last}/*")),
                Some((*first, *last))
            );
            let _ = parse_content_range(text);
            let _ = parse_content_range(&format!("bytes{text}-{last}"));
        });
    }
}
