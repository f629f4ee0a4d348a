//! Events of a run in progress, for the page that follows it: one look a second at the length of its
//! journal, and what was appended as one message. A message's ID is the position after it, from which a
//! browser that lost the connection resumes.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use imgctl_base::error::{Error, Result};
use imgctl_ops::report::{Follower, Progress, ProgressEvent};

/// Interval between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Number of looks without news after which a comment tells whether the browser is still there.
const SILENT_LOOKS: u32 = 15;
/// Messages that wait for a browser that reads slowly; the journal keeps the rest.
pub(crate) const WAITING: usize = 4;

/// Sends events until the run ends, the browser leaves or the console stops.
pub(crate) async fn follow(
    follower: Follower,
    pieces: mpsc::Sender<Bytes>,
    stop: watch::Receiver<bool>,
) {
    tokio::select! {
        () = messages(follower, &pieces) => {}
        () = pieces.closed() => {}
        () = stopped(stop) => {}
    }
}

/// Waits until the console stops.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone has stopped too.
    let _ = stop.wait_for(|is_stopping| *is_stopping).await;
}

async fn messages(mut follower: Follower, pieces: &mpsc::Sender<Bytes>) {
    let mut silent = 0;
    let mut outcome = None;
    loop {
        let progress = match look(follower).await {
            Ok((progress, back)) => {
                follower = back;
                progress
            }
            Err(error) => {
                tracing::warn!("cannot follow a run: {error}");
                return;
            }
        };
        if progress.replaced {
            let _ = pieces.send(message("replaced", None, &json!({}))).await;
            return;
        }
        for event in &progress.events {
            match event {
                ProgressEvent::Finish { outcome: word, .. } => outcome = Some(word.clone()),
                ProgressEvent::Start { .. } => outcome = None,
                _ => {}
            }
        }
        let has_news = !progress.events.is_empty();
        if has_news {
            silent = 0;
            if pieces.send(message("progress", Some(progress.at), &progress)).await.is_err() {
                return;
            }
        }
        // The look was taken after the process was seen: nothing that it wrote is missing.
        if !progress.running && !progress.more {
            let state = outcome.as_deref().unwrap_or("unfinished");
            let _ = pieces.send(message("end", None, &json!({"state": state}))).await;
            return;
        }
        if progress.more {
            continue;
        }
        silent += 1;
        if silent >= SILENT_LOOKS {
            silent = 0;
            if pieces.send(Bytes::from_static(b":\n\n")).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Looks on a thread that may wait for the disk.
async fn look(mut follower: Follower) -> Result<(Progress, Follower)> {
    let looked = tokio::task::spawn_blocking(move || Ok((follower.look()?, follower))).await;
    looked.unwrap_or_else(|_| Err(Error::failed("a look at the journal ended early")))
}

/// Writes one message. JSON has no line feeds, which would end a line of it.
fn message(event: &str, id: Option<u64>, data: &impl Serialize) -> Bytes {
    // Values of ours have only strings as keys: writing them cannot fail.
    let data = serde_json::to_string(data).unwrap_or_else(|_| "{}".to_owned());
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Bytes::from(format!("event: {event}\n{id}data: {data}\n\n"))
}
