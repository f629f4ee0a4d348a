//! Events for pages with lists: something has changed in the directories behind a list. The kernel reports
//! changes, so nothing runs without one. A message says no more than that; the page then requests its
//! content again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::events::stopped;
use crate::source::Source;
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::watch::{Change, Watch};

/// Time during which changes are combined into one message: a run creates its journal, then writes it.
const TOGETHER: Duration = Duration::from_millis(400);
/// Timestamps of files are coarser than the clock.
const COARSE: Duration = Duration::from_millis(50);
/// Interval of messages where the kernel cannot report changes.
const OTHERWISE: Duration = Duration::from_secs(15);

/// What a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Store,
    /// Clusters, runs and plans of all clusters, or of one.
    Recorded(Option<String>),
}

impl Subject {
    /// Returns the directories to watch; those of clusters that appear later are added then.
    fn directories(&self, source: &Source) -> Vec<PathBuf> {
        match self {
            Self::Store => {
                source.store.path("index.json").parent().map(Path::to_owned).into_iter().collect()
            }
            Self::Recorded(cluster) => source.recorded.directories(cluster.as_deref()),
        }
    }

    /// Returns whether a change of this file or directory affects the list.
    fn concerns(&self, change: Change<'_>) -> bool {
        match (self, change) {
            (_, Change::Unknown) => true,
            (Self::Store, Change::Entry(name)) => name == b"index.json",
            (Self::Store, Change::Closed(_)) => false,
            (Self::Recorded(_), Change::Entry(name)) => {
                ![&b".lock"[..], b".imgctl-"].iter().any(|hidden| name.starts_with(hidden))
            }
            // The run has ended or was killed. What it appends before shows on its own page.
            (Self::Recorded(_), Change::Closed(name)) => name.ends_with(b".jsonl"),
        }
    }
}

/// Returns the current time for the address of a page's events, in milliseconds since 1970; to be called
/// before the page's data are read.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Sends a message for each change since `at`, until the browser leaves or the console stops.
pub(crate) async fn follow(
    subject: Subject,
    source: Arc<Source>,
    at: u64,
    pieces: mpsc::Sender<Bytes>,
    stop: watch::Receiver<bool>,
) {
    let told = async {
        let failed = match watched(&subject, &source) {
            Ok(kernel) => match changes(&subject, &source, kernel, at, &pieces).await {
                Ok(()) => return,
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tracing::warn!("a list is read again from time to time: {failed}");
        while send(&pieces).await {
            tokio::time::sleep(OTHERWISE).await;
        }
    };
    tokio::select! {
        () = told => {}
        () = pieces.closed() => {}
        () = stopped(stop) => {}
    }
}

fn watched(subject: &Subject, source: &Source) -> Result<Watch> {
    let failed = |error| Error::io("cannot watch directories", error);
    let kernel = Watch::new().map_err(failed)?;
    for directory in subject.directories(source) {
        kernel.add(&directory).map_err(failed)?;
    }
    Ok(kernel)
}

async fn changes(
    subject: &Subject,
    source: &Arc<Source>,
    kernel: Watch,
    at: u64,
    pieces: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    // Closed when this function ends, which also ends the thread that waits for a change.
    let (end, _open) = io::pipe()?;
    let (kernel, end) = (Arc::new(kernel), Arc::new(end));
    // What changed after the page was made and before the watch began.
    let mut changed = has_changed(subject, source, at);
    loop {
        if changed {
            tokio::time::sleep(TOGETHER).await;
            // The page will read everything up to now.
            let _ = kernel.read(|_| {});
            for directory in subject.directories(source) {
                let _ = kernel.add(&directory);
            }
            if !send(pieces).await {
                return Ok(());
            }
        }
        let (waiting, end, subject) = (Arc::clone(&kernel), Arc::clone(&end), subject.clone());
        let waited = tokio::task::spawn_blocking(move || -> io::Result<bool> {
            let mut concerns = false;
            if waiting.wait(&*end)? {
                waiting.read(|change| concerns |= subject.concerns(change))?;
            }
            Ok(concerns)
        });
        changed = match waited.await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => false,
            Ok(waited) => waited?,
            Err(_) => return Ok(()),
        };
    }
}

/// Sends a message with the time from which a browser resumes after it reconnects.
async fn send(pieces: &mpsc::Sender<Bytes>) -> bool {
    let message = format!("event: changed\nid: {}\ndata: {{}}\n\n", now());
    pieces.send(Bytes::from(message)).await.is_ok()
}

/// Returns whether a directory, or a journal in it, changed after `at`.
fn has_changed(subject: &Subject, source: &Source, at: u64) -> bool {
    let since = UNIX_EPOCH + Duration::from_millis(at) - COARSE.min(Duration::from_millis(at));
    let is_newer = |path: &Path| {
        let time = std::fs::metadata(path).and_then(|metadata| metadata.modified());
        time.is_ok_and(|time| time >= since)
    };
    let journals = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut journals = entries
            .filter(|entry| subject.concerns(Change::Closed(entry.file_name().as_encoded_bytes())));
        journals.any(|entry| is_newer(&entry.path()))
    };
    subject.directories(source).iter().any(|directory| match subject {
        Subject::Store => is_newer(&directory.join("index.json")),
        Subject::Recorded(_) => is_newer(directory) || journals(directory),
    })
}
