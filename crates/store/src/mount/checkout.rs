//! All layers of an image flattened into one plain directory, streamed from the blobs in order.
//! Needs no privileges, snapshots or mounts.

use std::path::Path;

use crate::mount::layers;
use crate::mount::privilege::Privileges;
use crate::store::Store;
use crate::store::images::Image;
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::fs::directory;
use imgctl_base::progress::{Reporter, Unit};
use imgctl_layer::unpack::{Form, NoLowerFiles, Unpacker};

/// Fills the empty directory `target` with the files of `image`; returns notes about metadata that
/// an ordinary user cannot set. On error, `target` contains some of the files.
pub(crate) fn to_directory(
    store: &Store,
    image: &Image,
    target: &Path,
    privileges: Privileges,
    reporter: &dyn Reporter,
) -> Result<Vec<String>> {
    let root = directory::open_path(target)?;
    let mut unpacker = Unpacker::new(root, Form::Flat, privileges.unpacking())?;
    let layers = layers::all(image);
    let total = layers.iter().map(|layer| layer.blob.size).sum();
    let task = reporter.start("unpacking", Unit::Bytes, Some(total));
    for layer in &layers {
        layers::stream(store, layer, &*task, &mut |entry, content| {
            unpacker.apply(entry, content, &NoLowerFiles).map(drop)
        })
        .context(|| format!("cannot unpack layer {}", layer.blob.digest))?;
        unpacker.next_layer();
    }
    let notes = unpacker.finish()?;
    task.done("unpacked");
    Ok(notes)
}

/// Implements `export -o DIRECTORY`: like [`to_directory`], for a directory that is empty or is
/// created. A failure restores the previous state.
pub fn export(
    store: &Store,
    image: &Image,
    target: &Path,
    reporter: &dyn Reporter,
) -> Result<Vec<String>> {
    let target = std::path::absolute(target).path("find", target)?;
    let existed = match std::fs::read_dir(&target) {
        Ok(mut names) => {
            if names.next().is_some() {
                return Err(Error::new(
                    Kind::Usage,
                    format!("cannot export to {}: it is not empty", target.display()),
                ));
            }
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir_all(&target).path("create", &target)?;
            false
        }
        Err(error) => {
            return Err(Error::io(format!("cannot export to {}", target.display()), error));
        }
    };
    let outcome = to_directory(store, image, &target, Privileges::current(), reporter);
    if outcome.is_err() {
        clear(&target, existed);
    }
    outcome
}

/// Best effort: the error that led here is the one to report.
fn clear(target: &Path, keep_directory: bool) {
    if !keep_directory {
        let _ = imgctl_base::fs::atomic::remove_tree(target);
        return;
    }
    for entry in std::fs::read_dir(target).into_iter().flatten().flatten() {
        let _ = imgctl_base::fs::atomic::remove_tree(&entry.path());
    }
}
