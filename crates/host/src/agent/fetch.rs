//! Fetches blobs that another host offers: in parallel, with verification, resuming after
//! interruptions and trying the host's addresses in turn, as from any registry. Blobs that the host
//! cannot deliver are returned, not an error: another host has them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::agent::protocol::PeerSource;
use crate::agent::wire::REPOSITORY;
use imgctl_base::error::{Kind, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_registry::Repository;
use imgctl_store::store::Store;
use imgctl_transfer::transfer::ends::counted;
use imgctl_transfer::transfer::workers::{for_each, lock};

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
            Ok(peer) => bring(store, peer, blob, fetched)?,
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
fn bring(
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
