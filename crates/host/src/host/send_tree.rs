//! Copies a directory to a host: streams a tar archive into the host's tar. Must not depend on
//! images.

use std::io::{self, Read, Write};
use std::path::Path;

use crate::host::quote::quote;
use crate::host::transport::{Privilege, Transport};
use crate::host::upload::stream_all;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::metadata::FileKind;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{Found, Visit, walk};
use imgctl_store::layer::tar_writer::{END, append_header, padding};
use imgctl_store::layer::{Entry, EntryKind, LayerPath, Mtime};

/// Number of files and bytes sent, and the files that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentTree {
    pub files: u64,
    pub bytes: u64,
    /// Sockets, pipes and devices.
    pub left_out: Vec<String>,
}

/// Copies the content of `source` to the directory `destination` on the host, with modes and
/// modification times; symlinks are preserved. The files belong to the user who writes them.
/// Existing files that are not in `source` are kept.
pub fn send_tree(
    transport: &dyn Transport,
    source: &Path,
    destination: &str,
    privilege: Privilege,
    sent: &(dyn Fn(u64) + Sync),
) -> Result<SentTree> {
    let root = Root::open(source)?;
    let mode = root.metadata(Path::new("."))?.mode;
    // By default, GNU tar replaces a symlink to a directory with a directory.
    let line = format!(
        "set -eu; d={}; [ -d \"$d\" ] || {{ (umask 022; mkdir -p \"$d\"); chmod {mode:04o} \"$d\"; }}; cd \"$d\"; \
         k=; if tar --keep-directory-symlink --version >/dev/null 2>&1; then k=--keep-directory-symlink; fi; \
         exec tar -x -p -o $k -f -",
        quote(&dashed(destination))
    );
    let doing =
        || format!("cannot copy {} to {destination} on {}", source.display(), transport.label());
    let (reader, writer) = io::pipe().doing(doing)?;
    let (written, output) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| write_tree(&root, writer, sent));
        let mut reader = reader;
        let output = stream_all(transport, &line, privilege, &mut reader);
        // The writer stops once its reader is dropped.
        drop(reader);
        let written = writing.join();
        let written = written.unwrap_or_else(|_| Err(Error::failed("reading the files ended")));
        (written, output)
    });
    // A failed command explains a broken pipe, not the other way round.
    let output = output.context(doing)?;
    if !output.ended.is_success() {
        output.success(transport.label(), &format!("unpack into {destination}"))?;
    }
    written.context(doing)
}

fn dashed(path: &str) -> String {
    if path.starts_with('-') { format!("./{path}") } else { path.to_owned() }
}

fn write_tree(root: &Root, pipe: impl Write, sent: &(dyn Fn(u64) + Sync)) -> Result<SentTree> {
    let mut pipe = io::BufWriter::with_capacity(256 << 10, pipe);
    let mut done = SentTree::default();
    walk(root, &mut |_, _| Visit::Keep, &mut |found| append(&found, &mut pipe, &mut done, sent))?;
    let finished = pipe.write_all(&END).and_then(|()| pipe.flush());
    finished.doing(|| "cannot send the files".to_owned())?;
    Ok(done)
}

fn append(
    found: &Found<'_>,
    pipe: &mut impl Write,
    done: &mut SentTree,
    sent: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let data = found.metadata;
    let kind = match data.kind {
        FileKind::File => EntryKind::File { size: data.size },
        FileKind::Directory => EntryKind::Directory,
        FileKind::Symlink => EntryKind::Symlink { target: found.read_link()? },
        _ => {
            done.left_out.push(found.shown().display().to_string());
            return Ok(());
        }
    };
    let mut entry = Entry::new(LayerPath::parse(found.path)?, kind, data.mode);
    entry.mtime = Mtime { seconds: data.mtime.0, nanoseconds: data.mtime.1 };
    let mut header = Vec::new();
    append_header(&entry, &mut header)?;
    let doing = || format!("cannot send {}", found.shown().display());
    pipe.write_all(&header).doing(doing)?;
    done.files += 1;
    if data.kind != FileKind::File {
        return Ok(());
    }
    let mut content = found.open()?.take(data.size);
    let mut left = data.size;
    let mut buffer = vec![0; 128 << 10];
    while left > 0 {
        let count = content.read(&mut buffer).path("read", found.shown())?;
        if count == 0 {
            return Err(Error::failed(format!(
                "{} shrank while it was read",
                found.shown().display()
            )));
        }
        pipe.write_all(&buffer[..count]).doing(doing)?;
        left -= count as u64;
        sent(count as u64);
    }
    done.bytes += data.size;
    pipe.write_all(&END[..padding(data.size)]).doing(doing)
}
