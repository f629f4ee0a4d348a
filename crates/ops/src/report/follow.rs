//! The progress of a run: the records that its journal gets while it is followed. Reads only what was
//! appended, and takes no lock: the run notices nothing of it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use serde::Serialize;

use crate::report::in_place::Reader;
use crate::report::journals::{Found, Kind};
use crate::report::progress::{ProgressEvent, parts};
use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::fs::lock;
use imgctl_inplace::journal as in_place;
use imgctl_journal::{Record, readable};

/// Maximum number of bytes that one look reads.
const MOST: u64 = 256 << 10;
/// Maximum length of a message, in bytes.
const LONGEST: usize = 1000;

/// Follows the journal of a run from a position on.
#[derive(Clone, Debug)]
pub struct Follower {
    path: PathBuf,
    /// Bytes of complete lines that were read.
    at: u64,
    /// Whether the next line begins in front of `at`: it was too long to be read at once.
    in_line: bool,
    /// Reads the records of an in-place update; `None` for a run over hosts.
    in_place: Option<Reader>,
}

/// What one look at a journal found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Position after it, in bytes: from where to follow again.
    pub at: u64,
    pub events: Vec<ProgressEvent>,
    /// Whether a process works on the run; of what was appended after the last look, nothing is
    /// missing if not.
    pub running: bool,
    /// The journal is shorter than what was read of it: it is another one now.
    pub replaced: bool,
    /// Whether more than [`MOST`] bytes were there: look again.
    #[serde(skip)]
    pub more: bool,
}

impl Follower {
    /// Follows a journal from byte `at` on, which is the beginning of a line.
    pub(super) fn new(found: Found, at: u64) -> Self {
        let in_place = (found.kind == Kind::InPlace).then(Reader::default);
        Self { path: found.path, at, in_line: false, in_place }
    }

    /// Returns what was appended since the last look. The first look is not remembered by the file.
    pub fn look(&mut self) -> Result<Progress> {
        // Before the journal is read: what a run appended before it ended is not missed.
        let running = lock::is_held(&self.path);
        let length = std::fs::metadata(&self.path).path("read the journal", &self.path)?.len();
        let mut found = Progress { at: self.at, running, ..Progress::default() };
        if length < self.at {
            found.replaced = true;
            return Ok(found);
        }
        if length == self.at {
            return Ok(found);
        }
        let mut bytes = Vec::new();
        let mut file = File::open(&self.path).path("open the journal", &self.path)?;
        file.seek(SeekFrom::Start(self.at)).path("read the journal", &self.path)?;
        file.take(MOST).read_to_end(&mut bytes).path("read the journal", &self.path)?;
        found.more = bytes.len() as u64 == MOST;
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            if found.more {
                // A line that is longer than what is read at once is not a step's.
                self.at += bytes.len() as u64;
                self.in_line = true;
                found.at = self.at;
            }
            return Ok(found);
        };
        self.at += end as u64 + 1;
        found.at = self.at;
        let mut lines = bytes.get(..end).unwrap_or_default().split(|byte| *byte == b'\n');
        if std::mem::take(&mut self.in_line) {
            lines.next();
            // The plan with which an in-place update is resumed may be as long.
            found.events.push(match self.in_place {
                Some(_) => resumed(),
                None => problem("a record that is too long is left out"),
            });
        }
        match &mut self.in_place {
            Some(reader) => found.events.extend(lines.filter_map(|line| pod_event(line, reader))),
            None => found.events.extend(lines.map(event)),
        }
        Ok(found)
    }
}

fn problem(text: &str) -> ProgressEvent {
    ProgressEvent::Problem { text: text.to_owned() }
}

fn resumed() -> ProgressEvent {
    let unknown = || "this machine".to_owned();
    ProgressEvent::Start { time: String::new(), controller: unknown(), version: String::new() }
}

/// Returns the event of a record of an in-place update, if it is one.
fn pod_event(line: &[u8], reader: &mut Reader) -> Option<ProgressEvent> {
    match in_place::record(line) {
        Ok((record, _)) => reader.take(record).map(shortened),
        Err(why) => Some(problem(&format!("a record is missing here: {why}"))),
    }
}

fn shortened(mut event: ProgressEvent) -> ProgressEvent {
    if let ProgressEvent::End { message: Some(text), .. } = &mut event {
        text.truncate(text.floor_char_boundary(LONGEST));
    }
    event
}

fn event(line: &[u8]) -> ProgressEvent {
    let record = match readable::record(line) {
        Ok((record, _)) => record,
        Err(why) => return problem(&format!("a record is missing here: {why}")),
    };
    let owned = |step: &str| {
        let (phase, host, name) = parts(step);
        (phase.to_owned(), host.to_owned(), name.to_owned())
    };
    match record {
        Record::Start { time, controller, version, .. } => {
            ProgressEvent::Start { time: time.to_string(), controller, version }
        }
        Record::Begin { time, step, attempt, .. } => {
            let (phase, host, step) = owned(&step);
            ProgressEvent::Begin { time: time.to_string(), host, phase, step, attempt }
        }
        Record::End { time, step, attempt, outcome, duration_ms, message, .. } => {
            let (phase, host, step) = owned(&step);
            shortened(ProgressEvent::End {
                time: time.to_string(),
                host,
                phase,
                step,
                attempt,
                outcome: outcome.word().to_owned(),
                duration_ms,
                message,
            })
        }
        Record::Finish { time, outcome } => ProgressEvent::Finish {
            time: time.to_string(),
            outcome: outcome.word().to_owned(),
            message: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn each_line_is_passed_once_and_only_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j.jsonl");
        let mut file = File::create(&path).unwrap();
        let journal = Found {
            kind: Kind::Hosts,
            id: "j".to_owned(),
            path: path.clone(),
            by_kubeconfig: false,
        };
        let mut follower = Follower::new(journal.clone(), 0);
        assert_eq!(follower.look().unwrap().events, []);
        let begin = r#"{"record":"begin","time":"2026-01-01T00:00:00Z","step":"p/h:22/a/b","fingerprint":"f","attempt":1}"#;
        write!(file, "{begin}\nnonsense\n{}", &begin[..20]).unwrap();
        let found = follower.look().unwrap();
        let [ProgressEvent::Begin { host, phase, step, .. }, ProgressEvent::Problem { .. }] =
            &found.events[..]
        else {
            panic!("{found:?}")
        };
        assert_eq!((&**host, &**phase, &**step), ("h:22", "p", "a/b"));
        assert_eq!(follower.look().unwrap().events, []);
        writeln!(file, "{}", &begin[20..]).unwrap();
        let next = follower.look().unwrap();
        assert_eq!((next.events.len(), next.running), (1, false));
        // Followed again from a position that a client remembers.
        let again = Follower::new(journal, found.at).look().unwrap();
        assert_eq!(again, next);
        // A record of any length costs bounded memory.
        writeln!(file, "{}\n{begin}", "x".repeat(600_000)).unwrap();
        let mut events = Vec::new();
        loop {
            let found = follower.look().unwrap();
            events.extend(found.events);
            if !found.more {
                break;
            }
        }
        assert!(matches!(events[..], [ProgressEvent::Problem { .. }, ProgressEvent::Begin { .. }]));
        file.set_len(3).unwrap();
        assert!(follower.look().unwrap().replaced);
    }
}
