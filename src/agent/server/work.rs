//! The work on trees and commands that calls ask for.

use std::path::Path;

use crate::agent::execution::{self, Caller};
use crate::agent::protocol::{
    CheckedOut, Checkout, Inventory, InventoryQuestion, Outcome, OutputLine, Run,
};
use crate::agent::tree;
use crate::error::Result;
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
    let found = tree::inventory(store, &question.root, question)?;
    Ok(Inventory { blobs, ..found })
}

/// Turns layers into a tree.
pub(super) fn checkout(
    store: &Store,
    request: &Checkout,
    done: &(dyn Fn(u64) + Sync),
) -> Result<CheckedOut> {
    tree::checkout(store, request, done)
}

/// Runs a command, or follows one that runs, until `gone` says that nobody listens any more.
pub(super) fn run(
    request: &Run,
    gone: &dyn Fn() -> bool,
    output: &mut dyn FnMut(OutputLine),
) -> Result<Outcome> {
    let caller = Caller {
        program: Path::new("/proc/self/exe"),
        gone,
    };
    execution::run(request, &caller, output)
}

/// Ends a command.
pub(super) fn cancel(directory: &str, key: &str) -> Result<()> {
    execution::cancel(directory, key)
}
