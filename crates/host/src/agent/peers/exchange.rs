//! Tells the hosts that keep records what this host has: everything when the service starts, and then each change
//! in containerd's directory. A host that does not answer is told everything later.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::agent::peers::answer::Node;
use crate::agent::peers::inventory::Holdings;
use crate::agent::peers::wire::Told;
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::watch::Watch;
use imgctl_base::image::Digest;
use imgctl_base::workers::lock;

/// Pauses after a change: containerd writes several blobs, and labels them a little later.
const SETTLE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];
/// Pause before imgctl asks a containerd that did not answer again.
const CONTAINERD: Duration = Duration::from_secs(30);
/// First and longest pause before hosts that did not answer are told again.
const AGAIN: Duration = Duration::from_secs(15);
const LONGEST: Duration = Duration::from_secs(30 * 60);
/// Maximum number of hosts that are told at the same time.
const TOGETHER: usize = 16;

/// Runs until it is aborted.
pub(super) async fn run(node: Arc<Node>, source: Arc<dyn Holdings>, blobs: PathBuf) {
    let changed = Arc::new(Notify::new());
    // The thread ends when this function does.
    let _open = match io::pipe() {
        Ok((end, open)) => {
            watch(blobs, Arc::clone(&changed), end);
            Some(open)
        }
        Err(error) => {
            tracing::warn!("cannot watch containerd's directory: {error}");
            None
        }
    };
    let mut missed = begin(&node, &source).await;
    let mut pause = AGAIN;
    loop {
        tokio::select! {
            () = changed.notified() => {
                for time in SETTLE {
                    tokio::time::sleep(time).await;
                    missed.extend(refresh(&node, &source).await);
                }
            }
            () = tokio::time::sleep(pause), if !missed.is_empty() => {
                missed = meet(&node, missed).await;
                pause = if missed.is_empty() { AGAIN } else { (pause * 2).min(LONGEST) };
            }
        }
    }
}

/// Waits for containerd and exchanges everything with all other hosts; returns those that did not answer.
async fn begin(node: &Arc<Node>, source: &Arc<dyn Holdings>) -> BTreeSet<String> {
    loop {
        match list(source).await {
            Ok(all) => {
                *lock(&node.own) = all;
                break;
            }
            Err(error) => {
                tracing::warn!("cannot ask containerd for its content: {error}");
                tokio::time::sleep(CONTAINERD).await;
            }
        }
    }
    let own = &node.settings.address;
    node.note(own, node.kept_by(own), &[], true);
    let others = node.settings.peers.iter().filter(|peer| *peer != own);
    meet(node, others.cloned().collect()).await
}

async fn list(source: &Arc<dyn Holdings>) -> Result<HashSet<Digest>> {
    let source = Arc::clone(source);
    let listed = tokio::task::spawn_blocking(move || source.all()).await;
    listed.unwrap_or_else(|_| Err(Error::failed("the question was dropped")))
}

/// Exchanges everything with these hosts; returns those that did not answer.
async fn meet(node: &Arc<Node>, hosts: BTreeSet<String>) -> BTreeSet<String> {
    let from = node.settings.address.clone();
    let told = hosts.into_iter().map(|host| {
        let has = node.kept_by(&host);
        (host, Told { from: from.clone(), has, all: true, ..Told::default() })
    });
    tell(node, told.collect()).await
}

/// Tells what has changed since the last time; returns the hosts that did not answer.
async fn refresh(node: &Arc<Node>, source: &Arc<dyn Holdings>) -> BTreeSet<String> {
    let now = match list(source).await {
        Ok(now) => now,
        Err(error) => {
            tracing::warn!("cannot ask containerd for its content: {error}");
            return BTreeSet::new();
        }
    };
    let former = std::mem::replace(&mut *lock(&node.own), now.clone());
    let own = &node.settings.address;
    let mut told: BTreeMap<String, Told> = BTreeMap::new();
    for (digests, is_new) in [(now.difference(&former), true), (former.difference(&now), false)] {
        for digest in digests {
            for keeper in node.placement.keepers(digest) {
                let one = told.entry(keeper.to_owned()).or_default();
                one.from.clone_from(own);
                if is_new { &mut one.has } else { &mut one.gone }.push(digest.clone());
            }
        }
    }
    if let Some(mine) = told.remove(own) {
        node.note(own, mine.has, &mine.gone, false);
    }
    tell(node, told.into_iter().collect()).await
}

async fn tell(node: &Arc<Node>, told: Vec<(String, Told)>) -> BTreeSet<String> {
    let room = Arc::new(Semaphore::new(TOGETHER));
    let mut tasks = JoinSet::new();
    for (host, told) in told {
        let (node, room) = (Arc::clone(node), Arc::clone(&room));
        tasks.spawn(async move {
            let _place = room.acquire().await;
            match node.search.tell(&host, &told).await {
                Some(answer) if told.all => {
                    node.note(&host, answer.has, &[], true);
                    None
                }
                Some(_) => None,
                None => Some(host),
            }
        });
    }
    let mut missed = BTreeSet::new();
    while let Some(ended) = tasks.join_next().await {
        missed.extend(ended.ok().flatten());
    }
    missed
}

/// Wakes `to` after each change in `directory`, until the other end of `end` closes. A thread of its own
/// waits in the kernel.
fn watch(directory: PathBuf, to: Arc<Notify>, end: io::PipeReader) {
    std::thread::spawn(move || {
        loop {
            match change(&directory, &end) {
                Ok(true) => {}
                Ok(false) => return,
                // containerd has not run yet.
                Err(error) => {
                    tracing::debug!("cannot watch {}: {error}", directory.display());
                    std::thread::sleep(CONTAINERD);
                }
            }
            to.notify_one();
        }
    });
}

/// Waits for a change in `directory`; returns `false` if `end` closes first. The watch is new each time,
/// because the directory may have been replaced. What changes between two watches is listed after the pauses.
fn change(directory: &Path, end: &io::PipeReader) -> io::Result<bool> {
    std::fs::metadata(directory)?;
    let watch = Watch::new()?;
    watch.add(directory)?;
    watch.wait(end)
}
