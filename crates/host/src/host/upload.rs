//! Uploads a file to a host by streaming it into a command, or a directory by streaming a tar
//! archive into the host's tar. Must not depend on what the files are, or on images.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::host::command::{Output, Source, follow};
use crate::host::reactor;
use crate::host::transport::{Ended, Privilege, Transport};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::metadata::FileKind;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{Found, Visit, walk};
use imgctl_base::quote::quote;
use imgctl_layer::tar_writer::{END, append_header, padding};
use imgctl_layer::{Entry, EntryKind, LayerPath, Mtime};

/// Timeout for a write: a host that accepts no bytes for this long is unreachable.
const PATIENCE: Duration = Duration::from_secs(120);
const PIECE: usize = 256 << 10;
/// Maximum length of the path of a home directory, in bytes.
const LONGEST_HOME: usize = 4 << 10;

/// Destination and metadata of an uploaded file.
pub struct Place<'a> {
    pub path: &'a str,
    pub mode: u32,
    /// Seconds since 1970; `None`: the current time.
    pub mtime: Option<i64>,
    /// Name of the file if `path` is a directory on the host.
    pub into: Option<&'a str>,
}

/// Returns `path` with `~` and `~/` at its beginning replaced by the home directory of the login user on
/// the host, and `~name/` by that of another user, as scp(1) does.
pub fn at_home(transport: &dyn Transport, path: &str) -> Result<String> {
    let Some(after) = path.strip_prefix('~') else { return Ok(path.to_owned()) };
    let (user, rest) = after.split_at(after.find('/').unwrap_or(after.len()));
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let found = if user.chars().all(is_name) {
        // Unquoted, so that the shell replaces it; an unknown name stays.
        let line = if user.is_empty() {
            "printf %s \"$HOME\"".to_owned()
        } else {
            format!("printf %s ~{user}")
        };
        let mut said = Vec::new();
        let ended = follow(transport, &line, Privilege::User, &mut |source, bytes| {
            if source == Source::Output && said.len() < LONGEST_HOME {
                said.extend_from_slice(bytes);
            }
            Ok(())
        })?;
        String::from_utf8(said).ok().filter(|said| ended.is_success() && said.starts_with('/'))
    } else {
        None
    };
    match found {
        Some(home) => Ok(format!("{}{rest}", home.trim_end_matches('/'))),
        None => Err(Error::not_found(format!(
            "{} knows no home directory for {path}",
            transport.label()
        ))
        .hint(format!("write the path in full, or ./{path} for a file of that name"))),
    }
}

/// Writes `size` bytes of `reader` to a place on the host: first to a temporary file next to it,
/// which replaces it once all bytes have arrived and are on disk. Missing directories are created.
pub fn upload_to(
    transport: &dyn Transport,
    place: &Place<'_>,
    privilege: Privilege,
    reader: &mut (dyn Read + Send),
    size: u64,
) -> Result<()> {
    let path = place.path;
    let output = stream(transport, &script(place, size), privilege, reader, size)
        .context(|| format!("cannot write {path} on {}", transport.label()))?;
    output.success(transport.label(), &format!("write {path}"))?;
    Ok(())
}

fn script(place: &Place<'_>, size: u64) -> String {
    let path = if place.path.starts_with('-') {
        format!("./{}", place.path)
    } else {
        place.path.to_owned()
    };
    let path = quote(&path);
    let into = match place.into {
        Some(name) => format!("[ ! -d \"$p\" ] || p=\"${{p%/}}\"/{};", quote(name)),
        None => String::new(),
    };
    let touch = match place.mtime {
        Some(seconds) => format!("touch -d @{seconds} \"$t\";"),
        None => String::new(),
    };
    format!(
        "set -eu; umask 077; p={path}; {into} d=$(dirname \"$p\"); [ -d \"$d\" ] || (umask 022; mkdir -p \"$d\"); \
         t=$(mktemp \"$p.XXXXXX\"); trap 'rm -f \"$t\"' EXIT; cat > \"$t\"; \
         n=$(wc -c < \"$t\"); [ \"$n\" -eq {size} ] || {{ echo \"got $n bytes of {size}\" >&2; exit 65; }}; \
         chmod {:04o} \"$t\"; {touch} sync \"$t\" 2>/dev/null || sync; \
         [ ! -d \"$p\" ] || {{ echo \"$p is a directory\" >&2; exit 66; }}; mv -f \"$t\" \"$p\"; trap - EXIT",
        place.mode & 0o7777
    )
}

/// Runs `line` with exactly `size` bytes of `reader` on its stdin. At most 64 KiB of each output
/// are kept. A reader that ends early is an error, and the command receives too few bytes.
pub fn stream(
    transport: &dyn Transport,
    line: &str,
    privilege: Privilege,
    reader: &mut (dyn Read + Send),
    size: u64,
) -> Result<Output> {
    feed(transport, line, privilege, reader, Some(size))
}

/// The same for a reader of unknown length, which is read to its end.
pub(crate) fn stream_all(
    transport: &dyn Transport,
    line: &str,
    privilege: Privilege,
    reader: &mut (dyn Read + Send),
) -> Result<Output> {
    feed(transport, line, privilege, reader, None)
}

fn feed(
    transport: &dyn Transport,
    line: &str,
    privilege: Privilege,
    reader: &mut (dyn Read + Send),
    size: Option<u64>,
) -> Result<Output> {
    const LIMIT: u64 = 64 << 10;
    let channel = reactor::block_on(transport.open(line, privilege))?;
    let mut input = channel.input;
    let (output, errors) = (channel.output, channel.errors);
    let runtime = reactor::reactor()?;
    let outputs = runtime.spawn(async move {
        let keep = |mut from: Box<dyn tokio::io::AsyncRead + Send + Unpin>| async move {
            let mut kept = Vec::new();
            (&mut from).take(LIMIT).read_to_end(&mut kept).await?;
            tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
            Ok::<_, io::Error>(kept)
        };
        tokio::join!(keep(output), keep(errors))
    });
    let mut buffer = vec![0; PIECE];
    let mut left = size.unwrap_or(u64::MAX);
    let mut read_error = None;
    // Reading may block (a disk), so it is done here and not on the reactor.
    while left > 0 {
        let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = match reader.read(&mut buffer[..want]) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                read_error = Some(Error::io("cannot read the data to send", error));
                break;
            }
        };
        if count == 0 {
            if size.is_some() {
                read_error = Some(Error::bad_content(format!(
                    "the data to send ended {left} bytes too early"
                )));
            }
            break;
        }
        left -= count as u64;
        let sent = reactor::block_on(async {
            let write = input.write_all(&buffer[..count]);
            match tokio::time::timeout(PATIENCE, write).await {
                // Either the command has ended or the connection is lost; its end tells which.
                Ok(sent) => Ok(sent.is_ok()),
                Err(_) => {
                    Err(Error::network(format!("{} accepts no more bytes", transport.label())))
                }
            }
        })?;
        if !sent {
            break;
        }
    }
    if let Some(error) = read_error {
        // Dropping the channel terminates the command before it can take a partial file for a
        // complete one.
        return Err(error);
    }
    reactor::block_on(async {
        let _ = input.shutdown().await;
        drop(input);
        let ended: Ended = channel.ended.await?;
        let (stdout, stderr) = outputs
            .await
            .map_err(|error| Error::failed("reading an output ended").caused_by(error))?;
        Ok(Output {
            ended,
            stdout: stdout.doing(|| "cannot read the output of a command".to_owned())?,
            stderr: stderr.doing(|| "cannot read the output of a command".to_owned())?,
            truncated: false,
        })
    })
}

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
