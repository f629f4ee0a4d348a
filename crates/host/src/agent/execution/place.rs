//! Location and content of one key's state, log and outcome.
//!
//! ```text
//! <runs>/<key>/start       locked while a caller decides whether to start
//! <runs>/<key>/alive       locked while the supervisor lives
//! <runs>/<key>/state.json  written before the command is started
//! <runs>/<key>/log, log.N  what it wrote (log.rs)
//! <runs>/<key>/outcome.json  how it ended
//! <runs>/<key>/cancel      asks the supervisor to end it
//! ```

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::agent::protocol::Outcome;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::Digest;

/// Maximum length of a directory name; longer names are shortened with a digest.
const LONGEST_NAME: usize = 180;
/// Maximum size of `state.json` and `outcome.json`, in bytes; both are far smaller.
const LONGEST_RECORD: u64 = 64 << 10;

/// Start of the reason if a signal ended the command; its number follows.
pub(super) const KILLED: &str = "killed by signal ";

/// One key's directory.
#[derive(Clone, Debug)]
pub(super) struct Place {
    directory: PathBuf,
}

/// Record written before a command is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) boot_id: String,
    /// Value in the environment of everything that the command starts.
    pub(super) marker: String,
    /// Milliseconds since 1970.
    pub(super) started_ms: u64,
    /// Process ID of the supervisor, for people who inspect the host.
    pub(super) supervisor: u32,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) code: Option<i32>,
    pub(super) reason: Option<String>,
    pub(super) duration_ms: u64,
}

/// Exit codes of a shell whose last command died of a signal are this number and the signal's.
const SIGNALLED: i32 = 128;

impl Record {
    /// Returns whether a signal ended the command, or what a script was running last.
    pub(super) fn is_by_signal(&self) -> bool {
        let of_shell = self.code.is_some_and(|code| code > SIGNALLED);
        of_shell || self.reason.as_ref().is_some_and(|reason| reason.starts_with(KILLED))
    }

    pub(super) fn outcome(&self, place: &Place, recalled: bool) -> Outcome {
        Outcome {
            code: self.code,
            reason: self.reason.clone(),
            duration_ms: self.duration_ms,
            recalled,
            log: place.log().display().to_string(),
        }
    }
}

impl Place {
    /// Returns the place of `key` in `runs`. Keys may hold any text; different keys have different
    /// places.
    pub(super) fn new(runs: &Path, key: &str) -> Result<Self> {
        if !runs.is_absolute() || key.is_empty() {
            return Err(Error::usage(format!(
                "a command needs a key and an absolute directory, not `{key}` in `{}`",
                runs.display()
            )));
        }
        Ok(Self::at(&runs.join(name(key))))
    }

    pub(super) fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Directory of all keys of a cluster.
    pub(super) fn runs(&self) -> &Path {
        self.directory.parent().unwrap_or(Path::new("/"))
    }

    /// Creates the directory with access for root only, because output may hold secrets.
    pub(super) fn create(&self) -> Result<()> {
        if let Some(above) = self.runs().parent() {
            std::fs::create_dir_all(above).path("create the directory", above)?;
        }
        for path in [self.runs(), &self.directory] {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.path("create the directory", path)?,
            }
        }
        Ok(())
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Path of the piece of a long log that begins at the offset `number`.
    pub(super) fn log_piece(&self, number: u64) -> PathBuf {
        self.directory.join(format!("log.{number}"))
    }

    fn outcome_file(&self) -> PathBuf {
        self.directory.join("outcome.json")
    }

    fn state_file(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    pub(super) fn cancel_file(&self) -> PathBuf {
        self.directory.join("cancel")
    }

    /// Acquires the lock that a caller holds while it decides whether to start the command.
    pub(super) fn lock_start(&self) -> Result<Lock> {
        Lock::acquire(&self.directory.join("start"), Mode::Exclusive, &mut || {})
    }

    /// Acquires the same lock if it is free.
    pub(super) fn try_lock_start(&self) -> Result<Option<Lock>> {
        Lock::try_acquire(&self.directory.join("start"), Mode::Exclusive)
    }

    /// Acquires the supervisor's own lock if it is free.
    pub(super) fn try_lock_alive(&self) -> Result<Option<Lock>> {
        Lock::try_acquire(&self.directory.join("alive"), Mode::Exclusive)
    }

    pub(super) fn state(&self) -> Result<Option<State>> {
        read(&self.state_file())
    }

    pub(super) fn write_state(&self, state: &State) -> Result<()> {
        write(&self.state_file(), state)
    }

    pub(super) fn record(&self) -> Result<Option<Record>> {
        read(&self.outcome_file())
    }

    pub(super) fn write_record(&self, record: &Record) -> Result<()> {
        write(&self.outcome_file(), record)
    }

    /// Removes what an earlier run left behind, except for the locks. The state goes last: without
    /// it, the key has never run.
    pub(super) fn forget(&self) -> Result<()> {
        let mut paths = vec![self.cancel_file(), self.outcome_file(), self.log()];
        paths.extend(self.log_pieces()?.into_iter().map(|n| self.log_piece(n)));
        paths.push(self.state_file());
        for path in paths {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed.path("remove", &path)?,
            }
        }
        Ok(())
    }

    /// Returns the offsets at which the existing pieces of the log begin, in ascending order.
    pub(super) fn log_pieces(&self) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        let entries = std::fs::read_dir(&self.directory).path("list", &self.directory)?;
        for entry in entries {
            let name = entry.path("list", &self.directory)?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("log."));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// Returns a file name for a key: any byte other than an ASCII letter, a digit, `-`, `_` or a `.`
/// after the first byte becomes `%XX`.
fn name(key: &str) -> String {
    let mut name = String::new();
    for (at, byte) in key.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && at > 0) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    if name.len() > LONGEST_NAME {
        // Cannot collide with another key's name: those never contain `%-`.
        name.truncate(LONGEST_NAME - 70);
        name.push_str("%-");
        name.push_str(Digest::of(key.as_bytes()).hex());
    }
    name
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => {
            let mut bytes = Vec::new();
            let file = file.path("open", path)?;
            std::io::Read::read_to_end(&mut std::io::Read::take(file, LONGEST_RECORD), &mut bytes)
                .path("read", path)?;
            bytes
        }
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Error::bad_content(format!("{} is damaged", path.display()))
            .caused_by(error)
            .hint("check the log next to it, then remove its directory")
    })
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let bytes = serde_json::to_vec(value).doing(|| format!("cannot write {}", path.display()))?;
    atomic::write(path, &bytes, 0o600, Durability::Durable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_places_of_their_own() {
        let keys = ["a/b", "a%2Fb", "a", ".a", "..", "ä", &"x".repeat(300), &"x".repeat(301)];
        let names: std::collections::BTreeSet<String> = keys.iter().map(|key| name(key)).collect();
        assert_eq!(names.len(), keys.len());
        for name in names {
            assert!(!name.contains('/') && !name.starts_with('.') && name.len() < 256, "{name}");
        }
        assert!(Place::new(Path::new("relative"), "a").is_err());
        assert!(Place::new(Path::new("/runs"), "").is_err());
    }
}
