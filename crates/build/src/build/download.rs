//! Remote sources of ADD: http(s) URLs and git repositories, downloaded into scratch files.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::build::context::ContextTree;
use crate::build::items::{Content, Item, NO_TIME, Opened, SourceTree as _, rewound};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::image::{Digest, Hasher};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_kubefile::ignore::IgnoreRules;
use imgctl_registry::tls;
use imgctl_store::layer::{Entry, EntryKind, LayerPath, Mtime};
use imgctl_store::store::Store;

/// Maximum time to wait for a server without receiving data.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// Mode of a downloaded file (Dockerfile reference, ADD).
const DOWNLOADED_MODE: u32 = 0o600;
/// Protocols that git may use; `ext::` and `file` would run programs or read files on this machine.
const GIT_PROTOCOLS: &str = "git:http:https:ssh";

/// Whether ADD downloads `source`.
pub(crate) fn is_url(source: &str) -> bool {
    source.starts_with("http://") || source.starts_with("https://")
}

/// Whether ADD clones `source` (BuildKit's rule: `git@…`, `git://…`, `….git` URLs).
pub(crate) fn is_git(source: &str) -> bool {
    let address = source.split('#').next().unwrap_or(source);
    source.starts_with("git@")
        || source.starts_with("git://")
        || source.starts_with("ssh://")
        || (is_url(source) && address.ends_with(".git"))
}

/// Downloads `url`. Returns the file's name, the item, and the file for unpacking.
pub(super) fn fetch(
    store: &Store,
    url: &str,
    checksum: Option<&Digest>,
    reporter: &dyn Reporter,
) -> Result<(String, Item, File)> {
    let doing = || format!("cannot download {url}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "cannot start the network runtime".to_owned())?;
    let mut file = store.scratch_file()?;
    let response = runtime.block_on(download(url, &mut file, checksum, reporter)).context(doing)?;
    let name = file_name(&response.url).ok_or_else(|| {
        Error::usage(format!("{url} has no file name"))
            .hint("give a destination that ends with a file name")
    })?;
    let copy = file.try_clone().doing(|| "cannot open a scratch file".to_owned())?;
    let mut entry =
        Entry::new(LayerPath::root(), EntryKind::File { size: response.size }, DOWNLOADED_MODE);
    entry.mtime = match response.modified {
        Some(seconds) => Mtime { seconds, nanoseconds: 0 },
        None => NO_TIME,
    };
    let content = Content::Range { file: rewound(file)?, offset: 0 };
    let item = Item { content, digest: Some(response.content), ..Item::bare(entry) };
    Ok((name, item, copy))
}

struct Downloaded {
    url: String,
    size: u64,
    content: [u8; 32],
    /// Seconds since 1970.
    modified: Option<i64>,
}

async fn download(
    url: &str,
    file: &mut File,
    checksum: Option<&Digest>,
    reporter: &dyn Reporter,
) -> Result<Downloaded> {
    let mut response = client()?.get(url).send().await.map_err(network)?;
    if !response.status().is_success() {
        return Err(Error::new(
            Kind::Network,
            format!("the server answered {}", response.status()),
        ));
    }
    let header = |name: &str| {
        response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let modified = header("last-modified").and_then(|text| {
        jiff::fmt::rfc2822::parse(&text).ok().map(|time| time.timestamp().as_second())
    });
    let task =
        reporter.start(&format!("downloading {url}"), Unit::Bytes, response.content_length());
    let mut sha = checksum.map(|digest| Hasher::with(digest.algorithm()));
    let mut hasher = blake3::Hasher::new();
    let mut size = 0;
    while let Some(chunk) = response.chunk().await.map_err(network)? {
        file.write_all(&chunk).doing(|| "cannot write a scratch file".to_owned())?;
        hasher.update(&chunk);
        if let Some(sha) = &mut sha {
            sha.update(&chunk);
        }
        size += chunk.len() as u64;
        task.advance(chunk.len() as u64);
    }
    if let (Some(sha), Some(expected)) = (sha, checksum) {
        let found = sha.finish();
        if found != *expected {
            return Err(Error::bad_content(format!("its digest is {found}, not {expected}"))
                .hint("the file has changed, or --checksum belongs to another file"));
        }
    }
    task.done(url);
    let url = response.url().path().to_owned();
    Ok(Downloaded { url, size, content: *hasher.finalize().as_bytes(), modified })
}

fn network(error: reqwest::Error) -> Error {
    Error::new(Kind::Network, "the transfer failed").caused_by(error.without_url())
}

fn client() -> Result<reqwest::Client> {
    tls::builder()?
        .read_timeout(SILENCE)
        .connect_timeout(SILENCE)
        .build()
        .map_err(|error| Error::failed("cannot create an HTTP client").caused_by(error))
}

fn file_name(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    (!name.is_empty() && name != "." && name != "..").then(|| name.to_owned())
}

/// Clones `URL[#REF[:SUBDIRECTORY]]` with the installed git. All files get the time of the commit.
pub(super) fn git(
    store: &Store,
    source: &str,
    keep_git_dir: bool,
    commit: Option<&Digest>,
) -> Result<Vec<Item>> {
    if commit.is_some() {
        return Err(Error::usage(
            "--checksum is not supported for git repositories: pin the commit with #COMMIT",
        ));
    }
    let (url, fragment) = source.split_once('#').unwrap_or((source, ""));
    let (reference, subdirectory) = fragment.split_once(':').unwrap_or((fragment, ""));
    let reference = if reference.is_empty() { "HEAD" } else { reference };
    if reference.starts_with('-') || url.starts_with('-') {
        return Err(Error::usage(format!("`{source}` is not a git repository")).about(source));
    }
    let checkout = store.scratch_directory()?;
    let run = |arguments: &[&str]| {
        run_git(checkout.path(), arguments).context(|| format!("cannot clone {url}"))
    };
    run(&["init", "--quiet"])?;
    run(&["fetch", "--quiet", "--depth", "1", "--", url, reference])?;
    run(&["-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"])?;
    let time = run(&["log", "-1", "--format=%ct"])?.trim().parse().unwrap_or(0);
    // The subdirectory, including any symlinks, is resolved inside the checkout (CVE-2026-33748).
    let root = Root::open(checkout.path())?;
    let fd =
        root.open_directory(Path::new(if subdirectory.is_empty() { "." } else { subdirectory }))?;
    let hidden: &[u8] = if keep_git_dir { b"" } else { b".git" };
    let rules = IgnoreRules::parse(hidden).unwrap_or_default();
    let tree = ContextTree::new(source.to_owned(), Root::from_fd(fd, checkout.path()), rules);
    spool(store, tree.below(&LayerPath::root())?, time)
}

fn run_git(directory: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(directory)
        .env("GIT_ALLOW_PROTOCOL", GIT_PROTOCOLS)
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_LFS_SKIP_SMUDGE", "1")
        .output()
        .doing(|| "cannot run git, which ADD needs for a repository".to_owned())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::new(Kind::Network, format!("git said: {said}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies the bytes of all files into one scratch file, so that the checkout can be removed.
fn spool(store: &Store, mut items: Vec<Item>, time: i64) -> Result<Vec<Item>> {
    let mut file = store.scratch_file()?;
    let mut offsets = Vec::new();
    let mut offset = 0;
    for item in &mut items {
        item.entry.mtime = Mtime { seconds: time, nanoseconds: 0 };
        offsets.push(offset);
        if let EntryKind::File { size } = item.entry.kind {
            // The digest covers the bytes copied here, not those that a stat cache remembers.
            let mut bytes = Vec::new();
            let mut reader = Opened::open(item)?;
            io::Read::read_to_end(&mut reader, &mut bytes)
                .doing(|| format!("cannot read {}", item.entry.path))?;
            file.write_all(&bytes).doing(|| "cannot write a scratch file".to_owned())?;
            item.digest = Some(*blake3::hash(&bytes).as_bytes());
            offset += size;
        } else {
            item.digest = Some([0; 32]);
        }
    }
    let file = rewound(file)?;
    for (item, offset) in items.iter_mut().zip(offsets) {
        item.xattrs_unread = false;
        item.content = match item.entry.kind {
            EntryKind::File { .. } => Content::Range { file: Arc::clone(&file), offset },
            _ => Content::None,
        };
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        assert!(is_url("https://example.com/a.tar.gz") && !is_git("https://example.com/a.tar.gz"));
        assert!(is_git("https://example.com/a.git#v1:sub"));
        assert!(is_git("git@example.com:a/b.git"));
        assert!(!is_url("httpdir/file") && !is_git("a.git"));
    }

    #[test]
    fn file_names_come_from_the_path() {
        assert_eq!(file_name("/a/b.txt").as_deref(), Some("b.txt"));
        assert_eq!(file_name("/a/"), None);
        assert_eq!(file_name("/.."), None);
    }
}
