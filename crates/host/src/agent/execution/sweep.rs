//! Removes old runs: the number of runs per cluster is limited.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::agent::execution::place::Place;
use imgctl_base::fs::atomic::remove_tree;

/// Number of runs to keep.
const KEPT: usize = 200;
/// Number of extra runs that triggers removal, so that not every start examines all of them.
const SLACK: usize = 20;

/// Keeps the newest runs in `runs`. Running ones and `ours` are never removed. Best effort: a
/// failure to remove old runs does not prevent a command from starting.
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
