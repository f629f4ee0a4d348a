//! The header of a hard link has its own mode, owner and attributes. umoci and GNU tar ignore them; Docker,
//! containerd, podman and Python's tarfile apply them to the file. A layer in which they differ from the
//! file's entry therefore has two readings. Times do not count, because writers may round them.
//!
//! Must not depend on where the file is.

use crate::entry::is_left_out;
use crate::{Entry, EntryKind};
use imgctl_base::error::{Error, Result};

/// Refuses a link whose header contradicts the file's own entry. An attribute that only the file has is
/// no contradiction.
pub(crate) fn check(link: &Entry, file: &Entry) -> Result<()> {
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
pub(crate) fn differs(link: &Entry, what: &str) -> Error {
    Error::bad_content(format!(
        "`{}` is a hard link whose header has another {what} than its file: some programs change the file, others \
         do not",
        link.path
    ))
    .hint("write the layer again with a tool that gives all names of a file the same metadata")
}
