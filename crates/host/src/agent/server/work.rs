//! Work on trees and commands, on behalf of calls.

use std::path::Path;

use crate::agent::execution::{self, Caller};
use crate::agent::protocol::{
    CheckedOut, Checkout, Inventory, InventoryQuestion, Outcome, OutputLine, Run,
};
use crate::agent::tree;
use imgctl_base::error::Result;
use imgctl_store::store::Store;

/// Returns which of the requested items the host has. The blobs found are protected from `prune`
/// while this agent lives.
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

/// Runs a command, or follows a running one, until `gone` reports that the controller is gone.
pub(super) fn run(
    request: &Run,
    gone: &dyn Fn() -> bool,
    output: &mut dyn FnMut(OutputLine),
) -> Result<Outcome> {
    let caller = Caller { program: Path::new("/proc/self/exe"), gone };
    execution::run(request, &caller, output)
}

/// Ends a command.
pub(super) fn cancel(directory: &str, key: &str) -> Result<()> {
    execution::cancel(directory, key)
}
