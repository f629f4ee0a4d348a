//! Removes what old runs have left: their number per cluster is bounded.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::agent::execution::place::Place;
use crate::fs::atomic::remove_tree;

/// Runs that are kept.
const KEPT: usize = 200;
/// Removal begins when so many more are there, so that not every start looks at all of them.
const SLACK: usize = 20;

/// Keeps the newest runs in `runs`; those that go on, and `ours`, stay in any case. Best effort:
/// a command is not refused because something old cannot be removed.
pub(super) fn sweep(runs: &Path, ours: &Path) {
    let Ok(entries) = std::fs::read_dir(runs) else {
        return;
    };
    let mut all: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            Some((modified.ok()?, entry.path()))
        })
        .filter(|(_, path)| path != ours)
        .collect();
    if all.len() < KEPT + SLACK {
        return;
    }
    all.sort();
    for (_, path) in all.iter().take(all.len() - KEPT) {
        let place = Place::at(path);
        let (Ok(Some(_start)), Ok(Some(_alive))) = (place.try_lock_start(), place.try_lock_alive())
        else {
            continue;
        };
        let _ = remove_tree(path);
    }
}
