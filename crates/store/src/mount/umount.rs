//! `umount`: finds the selected mounts and removes them together with what was written into them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::mount::mounts::{Listed, State, list};
use crate::mount::workspace::{self, Workspace};
use crate::store::Store;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::quote::quote;

/// Minimum number of digits in an abbreviated ID: a shorter one is too likely a typing mistake.
const SHORTEST_ID: usize = 4;

/// Unmounts the mounts that `names` select: a mount's ID (or a prefix of it), name or path, or an
/// image, which selects all its mounts. Anything written into a mount is removed with it. With
/// `lazy`, mounts in use are detached now and freed by their last user. Returns the mounts that
/// were unmounted.
pub fn umount(store: &Store, names: &[impl AsRef<OsStr>], lazy: bool) -> Result<Vec<Listed>> {
    let mounts = list(store)?;
    let mut chosen: Vec<Listed> = Vec::new();
    for name in names {
        for listed in select(store, &mounts, name.as_ref())? {
            if !chosen.iter().any(|other| other.id == listed.id) {
                chosen.push(listed.clone());
            }
        }
    }
    take_down(store, chosen, lazy)
}

/// Unmounts everything and removes what crashes left behind. A failure does not stop the remaining
/// mounts; the first failure is returned.
pub fn umount_all(store: &Store, lazy: bool) -> Result<Vec<Listed>> {
    workspace::sweep(store)?;
    let mounts = list(store)?
        .into_iter()
        // Another process is creating this mount.
        .filter(|listed| listed.state != State::Unfinished || listed.record.is_none())
        .collect();
    take_down(store, mounts, lazy)
}

fn take_down(store: &Store, mounts: Vec<Listed>, lazy: bool) -> Result<Vec<Listed>> {
    let mut done = Vec::new();
    let mut failure = None;
    for listed in mounts {
        match remove(store, &listed, lazy) {
            Ok(()) => done.push(listed),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(done), Err)
}

fn remove(store: &Store, listed: &Listed, lazy: bool) -> Result<()> {
    if let State::Elsewhere(process) = listed.state {
        return Err(Error::new(
            Kind::Busy,
            format!(
                "cannot unmount {}: it is mounted in another mount namespace, that of process {process}",
                listed.id
            ),
        )
        .hint(format!(
            "run `nsenter -t {process} -m imgctl umount {}`",
            listed.id
        )));
    }
    match Workspace::open(store, &listed.id)? {
        Some(workspace) => workspace.remove(lazy),
        None => Ok(()),
    }
}

fn select<'a>(store: &Store, mounts: &'a [Listed], name: &OsStr) -> Result<Vec<&'a Listed>> {
    let exact: Vec<&Listed> = mounts
        .iter()
        .filter(|listed| {
            name == listed.id.as_str() || has_name(listed, name) || has_path(listed, name)
        })
        .collect();
    if !exact.is_empty() {
        return Ok(exact);
    }
    if name.len() >= SHORTEST_ID {
        let beginning: Vec<&Listed> = mounts
            .iter()
            .filter(|listed| listed.id.as_bytes().starts_with(name.as_bytes()))
            .collect();
        match beginning.len() {
            0 => {}
            1 => return Ok(beginning),
            _ => {
                let ids: Vec<&str> = beginning.iter().map(|listed| listed.id.as_str()).collect();
                return Err(Error::usage(format!(
                    "`{}` is ambiguous: it may be any of {}",
                    name.display(),
                    ids.join(", ")
                )));
            }
        }
    }
    // Image names are text; only paths may be arbitrary bytes.
    let of_image = match name.to_str() {
        Some(name) => of_image(store, mounts, name),
        None => Vec::new(),
    };
    if of_image.is_empty() {
        let error = Error::not_found(format!("nothing is mounted as `{}`", name.display()));
        let image = name.to_str().filter(|name| store.resolve(name).is_ok());
        return Err(match image {
            Some(image) => {
                error.hint(format!("to remove the image, run `imgctl rmi {}`", quote(image)))
            }
            None => error.hint("run `imgctl mounts` to list IDs, names, images and paths"),
        });
    }
    Ok(of_image)
}

fn has_name(listed: &Listed, name: &OsStr) -> bool {
    listed.record.as_ref().and_then(|record| record.name.as_deref()).is_some_and(|own| name == own)
}

fn has_path(listed: &Listed, name: &OsStr) -> bool {
    let Some(record) = &listed.record else {
        return false;
    };
    let path = Path::new(name);
    record.path == path
        || std::fs::canonicalize(path).is_ok_and(|path| path == record.path)
        || std::path::absolute(path).is_ok_and(|path| path == record.path)
}

/// Finds mounts by the name under which the image was mounted, even if the store no longer has that
/// name, or by the image that the name refers to now.
fn of_image<'a>(store: &Store, mounts: &'a [Listed], name: &str) -> Vec<&'a Listed> {
    let meant = store.resolve(name).ok();
    let full_name =
        meant.as_ref().and_then(|named| named.reference.as_ref()).map(ToString::to_string);
    let digest = meant.map(|named| named.descriptor.digest);
    mounts
        .iter()
        .filter(|listed| {
            listed.record.as_ref().is_some_and(|record| {
                record.image == name
                    || full_name.as_ref() == Some(&record.image)
                    || digest.as_ref() == Some(&record.manifest)
            })
        })
        .collect()
}
