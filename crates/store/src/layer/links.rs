//! The header of a hard link has a mode, an owner and attributes of its own. umoci and GNU tar leave the file
//! as it is, Docker, containerd, podman and Python's tarfile give all of it to the file: a layer in which the
//! two differ has two readings. Times alone do not count, as writers may round them.
//!
//! Must not depend on where the file is.

use crate::layer::entry::is_left_out;
use crate::layer::{Entry, EntryKind};
use imgctl_base::error::{Error, Result};

/// Refuses a link whose header says something else of its file than the file's own entry. An attribute that
/// only the file has stays.
pub(in crate::layer) fn check(link: &Entry, file: &Entry) -> Result<()> {
    // Linux does not support modes of symlinks.
    if !matches!(file.kind, EntryKind::Symlink { .. }) && link.mode != file.mode {
        return Err(differs(link, "mode"));
    }
    if (link.uid, link.gid) != (file.uid, file.gid) {
        return Err(differs(link, "owner"));
    }
    for (name, value) in &link.xattrs {
        if !is_left_out(&file.kind, name) && file.xattrs.get(name) != Some(value) {
            return Err(differs(link, &format!("`{}`", name.escape_ascii())));
        }
    }
    Ok(())
}

/// Returns the error for a link that gives its file another `what`.
pub(in crate::layer) fn differs(link: &Entry, what: &str) -> Error {
    Error::bad_content(format!(
        "`{}` is a hard link whose header has another {what} than its file: some programs change the file, others \
         do not",
        link.path
    ))
    .hint("write the layer again with a tool that gives all names of a file the same metadata")
}
