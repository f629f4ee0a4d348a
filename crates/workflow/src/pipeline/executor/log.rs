//! Log of one step on the controller: created with the first line, free of secrets and of what a terminal
//! obeys (people read it with `cat`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use imgctl_base::text::escape;
use jiff::Timestamp;

/// Maximum length of a log, in bytes. Longer output is truncated; the host keeps the end of it.
const LONGEST: u64 = 16 << 20;

pub(crate) struct StepLog {
    path: PathBuf,
    title: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<File>,
    written: u64,
    /// The log could not be written; the step itself continues.
    broken: bool,
}

impl StepLog {
    /// Returns the log of step number `place` of a host in the run `journal`. Does not access the
    /// disk yet.
    pub(super) fn new(state: &Path, journal: &str, host: &str, place: usize, step: &str) -> Self {
        let name = format!("{place:02}-{}.log", file_safe(step));
        let path = state.join("logs").join(journal).join(file_safe(host)).join(name);
        Self { path, title: String::new(), state: Mutex::default() }
    }

    /// Sets the text of the first line.
    pub(crate) fn titled(mut self, title: String) -> Self {
        self.title = title;
        self
    }

    /// Returns the path of the log, if it was written.
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.lock().file.is_some().then(|| self.path.clone())
    }

    /// Adds a line. Returns `false` if the log is full.
    pub(super) fn line(&self, text: &str) -> bool {
        let mut state = self.lock();
        if state.broken {
            return true;
        }
        if state.written > LONGEST {
            return false;
        }
        if state.file.is_none() {
            match self.open() {
                Ok(file) => state.file = Some(file),
                Err(_) => {
                    state.broken = true;
                    return true;
                }
            }
        }
        let text = escape(text);
        state.written += text.len() as u64 + 1;
        let full = state.written > LONGEST;
        if let Some(file) = &mut state.file {
            let more = if full { "… truncated: the rest is on the host\n" } else { "" };
            let _ = file.write_all(format!("{text}\n{more}").as_bytes());
        }
        true
    }

    fn open(&self) -> std::io::Result<File> {
        if let Some(directory) = self.path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        file.write_all(format!("# {now} {}\n", escape(&self.title)).as_bytes())?;
        Ok(file)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps letters, digits, `.`, `_` and `-`, and replaces any other character by `_`.
pub(crate) fn file_safe(name: &str) -> String {
    let safe: String = name
        .chars()
        .take(100)
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => c,
            _ => '_',
        })
        .collect();
    match safe.as_str() {
        "" | "." | ".." => "_".to_owned(),
        _ => safe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_log_moves_no_cursor_and_has_no_line_in_another_name() {
        let directory = tempfile::tempdir().unwrap();
        let log = StepLog::new(directory.path(), "j", "a", 1, "init").titled("a\nb".to_owned());
        assert!(log.line("\u{1b}[2Jx\u{202e}\r\ty\n# 2026 forged"));
        let text = std::fs::read_to_string(log.path().unwrap()).unwrap();
        let (title, rest) = text.split_once('\n').unwrap();
        assert!(title.ends_with(" a\\nb"), "{title}");
        assert_eq!(rest, "\\u{1b}[2Jx\\u{202e}\\r\ty\\n# 2026 forged\n");
    }

    #[test]
    fn a_log_is_private_and_has_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let log = StepLog::new(directory.path(), "j", "[::1]:22", 3, "init");
        assert_eq!(log.path(), None);
        let line = "x".repeat(1 << 20);
        let mut taken = 0;
        while log.line(&line) {
            taken += 1;
        }
        assert_eq!(taken, 16);
        let path = log.path().unwrap();
        assert!(path.ends_with("logs/j/___1__22/03-init.log"), "{path:?}");
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(metadata.len() < LONGEST + (2 << 20));
    }
}
