//! The work on trees and commands that calls ask for.

use crate::agent::protocol::{
    CheckedOut, Checkout, Inventory, InventoryQuestion, Outcome, OutputLine, Run,
};
use crate::error::{Error, Result};
use crate::store::Store;

/// What the host has of what is asked about. Blobs that are here are safe from `prune` for as long
/// as this agent lives.
pub(super) fn inventory(store: &Store, question: &InventoryQuestion) -> Result<Inventory> {
    let mut blobs = Vec::new();
    for digest in &question.blobs {
        if let Some(size) = store.blob_size(digest)?
            && store.claim_blob(digest, size)?
        {
            blobs.push(digest.clone());
        }
    }
    Ok(Inventory {
        blobs,
        ..Inventory::default()
    })
}

/// Turns layers into a tree.
pub(super) fn checkout(
    _store: &Store,
    _request: &Checkout,
    _done: &(dyn Fn(u64) + Sync),
) -> Result<CheckedOut> {
    Err(not_yet())
}

/// Runs a command, or follows one that runs, until `gone` says that nobody listens any more.
pub(super) fn run(
    _request: &Run,
    _gone: &dyn Fn() -> bool,
    _output: &mut dyn FnMut(OutputLine),
) -> Result<Outcome> {
    Err(not_yet())
}

/// Ends a command.
pub(super) fn cancel(_directory: &str, _key: &str) -> Result<()> {
    Err(not_yet())
}

fn not_yet() -> Error {
    Error::failed("this agent cannot do that yet")
}
