//! Makes a tree the current one, and removes trees that are no longer needed.

use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::agent::tree::history::History;
use crate::agent::tree::keep;
use crate::agent::tree::names::{LINK, TreePaths};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{remove_tree, sync_directory};
use imgctl_store::store::Store;

/// Points the link at `id`, whose directory exists and is durable. A directory in the link's place
/// (other tools create one) is moved aside; returns a note about it.
pub(super) fn switch(paths: &TreePaths, id: &str) -> Result<Option<String>> {
    let link = paths.link();
    let note = match std::fs::symlink_metadata(&link) {
        Ok(metadata) if metadata.is_dir() => Some(move_aside(paths, &link)?),
        Ok(metadata) if !metadata.is_symlink() => {
            return Err(Error::failed(format!(
                "{} is a file: it must be a symlink or not exist",
                link.display()
            ))
            .hint("move it away"));
        }
        _ => None,
    };
    let temporary = paths.parent.join(format!("{}.{id}{LINK}", paths.base));
    remove_tree(&temporary)?;
    std::os::unix::fs::symlink(paths.target(id), &temporary).path("create", &temporary)?;
    std::fs::rename(&temporary, &link).path("replace the link", &link)?;
    sync_directory(&paths.parent)?;
    Ok(note)
}

/// Keeps the existing directory under another name, because imgctl did not create it.
fn move_aside(paths: &TreePaths, link: &Path) -> Result<String> {
    for number in 1..1000 {
        let name = match number {
            1 => format!("{}.former", paths.base),
            _ => format!("{}.former-{number}", paths.base),
        };
        let former = paths.parent.join(name);
        match renameat_with(CWD, link, CWD, &former, RenameFlags::NOREPLACE) {
            Ok(()) => {
                return Ok(format!(
                    "{} was a directory; it was moved to {} and can be removed when nothing uses \
                     it",
                    link.display(),
                    former.display()
                ));
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(Errno::BUSY) => {
                return Err(Error::failed(format!(
                    "cannot replace {} with a symlink: it is a mount point",
                    link.display()
                ))
                .hint("unmount it, or mount the directory above it instead"));
            }
            Err(error) => return Err(error).path("move aside", link),
        }
    }
    Err(Error::failed(format!(
        "cannot move {} aside: too many earlier copies exist",
        link.display()
    )))
}

/// Removes all trees of the history except for the current one and `keep` predecessors.
pub(super) fn remove_old(
    store: &Store,
    paths: &TreePaths,
    history: &mut History,
    keep: u32,
) -> Result<()> {
    let kept = usize::try_from(keep).unwrap_or(usize::MAX).saturating_add(1);
    // A tree that was abandoned before it was complete does not count.
    let (whole, broken): (Vec<String>, Vec<String>) =
        std::mem::take(&mut history.ids).into_iter().partition(|id| paths.directory(id).is_dir());
    history.ids = whole;
    let old = history.ids.split_off(kept.min(history.ids.len()));
    if old.is_empty() && broken.is_empty() {
        return Ok(());
    }
    for id in old.into_iter().chain(broken) {
        let directory = paths.directory(&id);
        // Renamed first, so that a partially removed tree is not mistaken for a complete one.
        let removing = paths.removing(&id);
        match std::fs::rename(&directory, &removing) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            renamed => {
                renamed.path("rename", &directory)?;
                remove_tree(&removing)?;
            }
        }
        keep::forget(store, paths, &id)?;
    }
    history.write(paths)
}
