//! One folder of the corpus: its files, its context, its command line. Knows no builder.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::common;

/// The base image of the entries that have RUN steps (images/busybox).
pub(crate) const BUSYBOX: &str = "localhost/busybox:latest";

/// In a Kubefile, the image that the entry's own `base.Kubefile` makes.
const BASE: &str = "localhost/corpus-base";

/// The time of everything in a context that sets no time itself.
const CONTEXT_TIME: i64 = 1_600_000_000;

/// A folder of `tests/corpus`.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
}

impl Entry {
    /// Every entry, by name.
    pub(crate) fn all() -> Vec<Self> {
        let corpus = common::repository().join("tests/corpus");
        let mut entries: Vec<Self> = std::fs::read_dir(corpus)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|folder| folder.join("Kubefile").exists())
            .map(|folder| Self {
                name: folder.file_name().unwrap().to_str().unwrap().to_owned(),
                folder,
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    /// Whether the folder holds this file.
    pub(crate) fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    /// A file of the folder.
    pub(crate) fn text(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(file)).ok()
    }

    /// Whether it builds on busybox, so has RUN steps.
    pub(crate) fn needs_busybox(&self) -> bool {
        ["Kubefile", "base.Kubefile"]
            .iter()
            .filter_map(|file| std::fs::read(self.folder.join(file)).ok())
            .any(|text| String::from_utf8_lossy(&text).contains("localhost/busybox"))
    }

    /// The name under which this entry's `base.Kubefile` is built.
    pub(crate) fn base_image(&self) -> String {
        format!("{BASE}-{}:latest", self.name)
    }

    /// Copies the folder below `parent` and makes the context; gives the copy's path.
    pub(crate) fn prepare(&self, parent: &Path) -> PathBuf {
        let work = parent.join(&self.name);
        let context = work.join("context");
        std::fs::create_dir_all(&context).unwrap();
        for file in std::fs::read_dir(&self.folder).unwrap() {
            let path = file.unwrap().path();
            let copy = work.join(path.file_name().unwrap());
            if path.extension().is_some_and(|end| end == "Kubefile") || path.ends_with("Kubefile") {
                // Each entry has a base of its own, as several are built at the same time.
                let text = std::fs::read(&path).unwrap();
                let unique = format!("{BASE}-{}", self.name);
                std::fs::write(copy, replace(&text, BASE.as_bytes(), unique.as_bytes())).unwrap();
            } else {
                std::fs::copy(&path, copy).unwrap();
            }
        }
        let corpus = common::repository().join("tests/corpus");
        let own = work.join("context.sh");
        let script = if own.exists() { own } else { corpus.join("context.sh") };
        let flags =
            [OsString::from("-euc"), OsString::from("umask 022; source \"$0\""), script.into()];
        let mut command = common::tool("bash", flags);
        command.env("CORPUS", corpus).env("LC_ALL", "C").current_dir(&context);
        common::Ran::new(command).ok();
        settle_times(&context);
        work
    }

    /// `build …` for imgctl; the referee's differ only in what is before.
    pub(crate) fn build_arguments(&self, kubefile: &str, image: &str, own: bool) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            ["build", "-f", kubefile, "-t", image].iter().map(OsString::from).collect();
        if own {
            let extra = self.text("args").unwrap_or_default();
            arguments.extend(extra.lines().map(OsString::from));
        }
        arguments.push("context".into());
        arguments
    }
}

/// Gives everything that was made just now one fixed time, so that two runs see the same context.
fn settle_times(root: &Path) {
    let entries = walkdir::WalkDir::new(root).into_iter().map(Result::unwrap);
    let found: Vec<_> =
        entries.map(|entry| (entry.path().to_owned(), entry.metadata().unwrap())).collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = i64::try_from(now.as_secs()).unwrap();
    for (path, metadata) in found {
        if (now - 3600..now + 3600).contains(&metadata.mtime()) {
            let time = Timespec { tv_sec: CONTEXT_TIME, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
}

fn replace(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        result.extend_from_slice(&rest[..at]);
        result.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    result.extend_from_slice(rest);
    result
}

/// What a panicking check said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
}
