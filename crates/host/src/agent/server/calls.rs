//! Dispatches calls by name, and converts their results to events. Fetches blobs that another host
//! offers.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::agent::execution::{self, Caller};
use crate::agent::protocol::{
    Assemble, Checkout, Claim, FileDigest, FileToWrite, HostsBlock, Inventory, InventoryQuestion,
    OutputLine, PeerSource, ReadPart, RegistryPull, Run, SwitchTree, WritePart,
};
use crate::agent::server::Host;
use crate::agent::server::answer::{Answer, refusal};
use crate::agent::wire::{
    Call, Cancel, Content, Event, FactsAnswer, FactsQuestion, Fetch, MAX_CALL, OfferBlobs,
    PartRead, REPOSITORY, ReadFile, Remove, Withdraw,
};
use crate::agent::{assembly, facts, files, hosts_file, pull, removal, tree};
use crate::containerd::rehash::{self, Rehash};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_base::wire::encode;
use imgctl_base::workers::{for_each, lock};
use imgctl_registry::Repository;
use imgctl_store::store::Store;
use imgctl_transfer::transfer::source::counted;

/// Maximum number of messages queued for a slow controller.
const WAITING: usize = 64;
/// How often to report progress.
const TELL: Duration = Duration::from_millis(100);

pub(super) async fn answer(host: &Arc<Host>, name: &str, body: Incoming) -> Response<Answer> {
    let bytes = match Limited::new(body, MAX_CALL).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            return refusal(
                StatusCode::BAD_REQUEST,
                &format!("the call is incomplete or too long: {error}"),
            );
        }
    };
    let host = Arc::clone(host);
    match name {
        FactsQuestion::NAME => serve(&bytes, |call: FactsQuestion, _| {
            let begun = Instant::now();
            let facts = facts::gather(&call.data_root);
            let spent = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            Ok(FactsAnswer { facts, spent })
        }),
        InventoryQuestion::NAME => {
            serve(&bytes, move |call: InventoryQuestion, _| inventory(&host.store, &call))
        }
        OfferBlobs::NAME => serve(&bytes, move |_: OfferBlobs, _| host.offers.begin(&host.store)),
        Withdraw::NAME => serve(&bytes, move |_: Withdraw, _| {
            host.offers.end();
            Ok(())
        }),
        Fetch::NAME => serve(&bytes, move |call: Fetch, told| {
            fetch(&host.store, &call.from, &call.blobs, &|bytes| told.progress(bytes))
        }),
        RegistryPull::NAME => serve(&bytes, move |call: RegistryPull, told| {
            pull::pull(&host.store, &call, &|bytes| {
                told.progress(bytes);
                !told.is_gone()
            })
        }),
        Assemble::NAME => {
            serve(&bytes, move |call: Assemble, _| assembly::assemble(&host.store, &call))
        }
        Checkout::NAME => serve(&bytes, move |call: Checkout, told| {
            tree::checkout(&host.store, &call, &|bytes| told.progress(bytes))
        }),
        SwitchTree::NAME => serve(&bytes, |call: SwitchTree, _| tree::switch_tree(&call)),
        Run::NAME => serve(&bytes, |call: Run, told| {
            let program = Path::new("/proc/self/exe");
            let caller = Caller { program, gone: &|| told.is_gone() };
            execution::run(&call, &caller, &mut |line| told.line(line))
        }),
        Cancel::NAME => {
            serve(&bytes, |call: Cancel, _| execution::cancel(&call.directory, &call.key))
        }
        FileToWrite::NAME => serve(&bytes, |call: FileToWrite, _| files::write(&call)),
        ReadFile::NAME => {
            serve(&bytes, |call: ReadFile, _| Ok(files::read(&call.path, call.limit)?.map(Content)))
        }
        ReadPart::NAME => serve(&bytes, |call: ReadPart, _| {
            files::read_part(&call).map(|content| PartRead { content })
        }),
        Claim::NAME => serve(&bytes, |call: Claim, _| facts::claim(&call)),
        FileDigest::NAME => serve(&bytes, |call: FileDigest, _| files::digest(&call.path)),
        WritePart::NAME => serve(&bytes, |call: WritePart, _| files::write_part(&call)),
        Remove::NAME => serve(&bytes, |call: Remove, _| removal::remove(&call.paths)),
        HostsBlock::NAME => serve(&bytes, |call: HostsBlock, _| {
            hosts_file::set(Path::new(hosts_file::HOSTS_FILE), &call)
        }),
        Rehash::NAME => serve(&bytes, |call: Rehash, _| rehash::rehash(&call)),
        _ => refusal(StatusCode::NOT_FOUND, "unknown call"),
    }
}

/// Returns which of the requested items the host has. The blobs found are protected from `prune`
/// while this agent lives.
fn inventory(store: &Store, question: &InventoryQuestion) -> Result<Inventory> {
    let mut blobs = Vec::new();
    for digest in &question.blobs {
        if let Some(size) = store.blob_size(digest)?
            && store.claim_blob(digest, size)?
        {
            blobs.push(digest.clone());
        }
    }
    let found = tree::inventory(store, &question.root, question)?;
    let registry_files = assembly::registry_files(&question.root, &question.registry_files);
    Ok(Inventory { blobs, registry_files, ..found })
}

/// Runs the work on a blocking thread and sends its events.
fn serve<C: Call>(
    bytes: &[u8],
    work: impl FnOnce(C, &Told) -> Result<C::Answer> + Send + 'static,
) -> Response<Answer> {
    let call = match understood::<C>(bytes) {
        Ok(call) => call,
        Err(why) => {
            return refusal(StatusCode::BAD_REQUEST, &format!("the call cannot be read: {why}"));
        }
    };
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let told = Told { sender, progress: Mutex::new((0, Instant::now())) };
        told.send(&Event::<()>::Begun);
        let outcome = work(call, &told);
        told.rest();
        match outcome {
            Ok(answer) => told.done::<C>(answer),
            Err(error) => told.failed(&error),
        }
    });
    Response::new(Answer::Events(receiver))
}

/// Parses a call: its JSON, and the bytes behind it.
fn understood<C: Call>(bytes: &[u8]) -> std::result::Result<C, String> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter();
    let mut call: C = match values.next() {
        Some(Ok(call)) => call,
        Some(Err(error)) => return Err(error.to_string()),
        None => return Err("it is empty".to_owned()),
    };
    let rest = bytes.get(values.byte_offset()..).unwrap_or_default();
    match call.bytes_mut() {
        Some(content) => content.extend_from_slice(rest),
        None if rest.is_empty() => {}
        None => return Err("something follows it".to_owned()),
    }
    Ok(call)
}

/// Receives events from the work. Events for a controller that is gone are dropped.
struct Told {
    sender: mpsc::Sender<Bytes>,
    /// Unreported bytes, and the time of the last report.
    progress: Mutex<(u64, Instant)>,
}

impl Told {
    fn send<T: Serialize>(&self, event: &Event<T>) {
        match encode(event) {
            Ok(message) => drop(self.sender.blocking_send(Bytes::from(message))),
            Err(error) => self.failed(&error),
        }
    }

    /// Sends the answer and the bytes behind it in one piece.
    fn done<C: Call>(&self, mut answer: C::Answer) {
        let content = C::answered(&mut answer).map(std::mem::take).unwrap_or_default();
        match encode(&Event::Done(answer)) {
            Ok(mut message) => {
                message.extend_from_slice(&content);
                let _ = self.sender.blocking_send(Bytes::from(message));
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &Error) {
        if let Ok(message) = encode(&Event::<()>::Failed(error.into())) {
            let _ = self.sender.blocking_send(Bytes::from(message));
        }
    }

    /// Whether the controller is gone.
    fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }

    fn line(&self, line: OutputLine) {
        self.send(&Event::<()>::Line(line));
    }

    fn progress(&self, bytes: u64) {
        let due = {
            let mut state = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 += bytes;
            if state.1.elapsed() >= TELL {
                state.1 = Instant::now();
                std::mem::take(&mut state.0)
            } else {
                0
            }
        };
        if due > 0 {
            self.send(&Event::<()>::Progress(due));
        }
    }

    /// Reports the remaining progress.
    fn rest(&self) {
        let mut state = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let due = std::mem::take(&mut state.0);
        drop(state);
        if due > 0 {
            self.send(&Event::<()>::Progress(due));
        }
    }
}

/// Number of blobs to fetch concurrently.
const WORKERS: usize = 4;

/// Fetches `blobs` into the store and returns those that the peer could not deliver. An error
/// always concerns the local machine. Blocks.
pub(super) fn fetch(
    store: &Store,
    from: &PeerSource,
    blobs: &[Descriptor],
    fetched: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Digest>> {
    let missing = Mutex::new(Vec::new());
    let peer = Repository::of_peer(REPOSITORY, &from.addresses, from.port, &from.token);
    let bring = |blob: &Descriptor| {
        let brought = match &peer {
            Ok(peer) => bring_one(store, peer, blob, fetched)?,
            Err(_) => false,
        };
        if !brought {
            lock(&missing).push(blob.digest.clone());
        }
        Ok(())
    };
    for_each(blobs, WORKERS, &AtomicBool::new(false), bring)?;
    Ok(std::mem::take(&mut *lock(&missing)))
}

/// Fetches one blob; returns whether it is in the store now.
fn bring_one(
    store: &Store,
    peer: &Repository,
    blob: &Descriptor,
    fetched: &(dyn Fn(u64) + Sync),
) -> Result<bool> {
    // Only the peer is asked, not the servers of foreign layers.
    let blob = Descriptor::new(&blob.media_type, blob.digest.clone(), blob.size);
    let is_refused = AtomicBool::new(false);
    let rest = |offset| {
        let opened = peer.blob(&blob, offset);
        is_refused.fetch_or(opened.is_err(), Ordering::Relaxed);
        Ok(counted(opened?, fetched))
    };
    let Err(error) = store.complete_blob(&blob.digest, blob.size, &rest) else {
        return Ok(true);
    };
    let is_theirs = matches!(error.kind(), Kind::Network | Kind::BadContent);
    if !is_theirs && !is_refused.load(Ordering::Relaxed) {
        return Err(error);
    }
    tracing::debug!("{error}");
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    /// What a hostile controller, or a program that has its connection, sends as the call `C`.
    fn call<C: Call>(bytes: &[u8]) {
        let Ok(call) = understood::<C>(bytes) else { return };
        let mut again = serde_json::to_vec(&call).unwrap();
        again.extend_from_slice(call.bytes());
        let same = understood::<C>(&again).unwrap();
        assert_eq!(same.bytes(), call.bytes());
        assert_eq!(serde_json::to_vec(&same).unwrap(), serde_json::to_vec(&call).unwrap());
    }

    #[test]
    fn any_bytes_are_a_call_or_refused() {
        let all: [fn(&[u8]); 14] = [
            call::<FactsQuestion>,
            call::<InventoryQuestion>,
            call::<OfferBlobs>,
            call::<Fetch>,
            call::<RegistryPull>,
            call::<Assemble>,
            call::<Checkout>,
            call::<SwitchTree>,
            call::<Run>,
            call::<FileToWrite>,
            call::<ReadPart>,
            call::<WritePart>,
            call::<Claim>,
            call::<HostsBlock>,
        ];
        let part = WritePart {
            path: "/x".to_owned(),
            mode: 0o644,
            offset: 1,
            content: b"content".to_vec(),
            compressed: false,
            is_last: true,
        };
        let mut valid = serde_json::to_vec(&part).unwrap();
        valid.extend_from_slice(part.bytes());
        bolero::check!().for_each(|input: &[u8]| {
            let Some((which, input)) = input.split_first() else { return };
            all[usize::from(*which) % all.len()](input);
            call::<WritePart>(&damaged(&valid, input));
        });
    }
}
