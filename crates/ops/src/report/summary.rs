//! A run in a list: what the beginning and the end of its journal say, however long it is.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};

use jiff::Timestamp;
use serde::Deserialize;

use crate::report::in_place::verb_of;
use crate::report::journals::{Found, Kind};
use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::fs::lock;
use imgctl_inplace::journal as in_place;
use imgctl_journal::{Record, readable};
use imgctl_report::model::recorded::RunSummary;

/// Bytes that are read of the beginning and of the end of a journal.
const PART: u64 = 64 << 10;
/// Maximum length of the first record of an in-place update, which has its plan, in bytes.
const LONGEST_START: u64 = 16 << 20;

/// Summarizes a journal, which is that of a run of `cluster`.
pub(super) fn summary(journal: &Found, cluster: &str) -> Result<RunSummary> {
    let path = &journal.path;
    let mut found =
        RunSummary { cluster: cluster.to_owned(), id: journal.id.clone(), ..RunSummary::default() };
    // Before the journal is read: a run that ends meanwhile is shown as running, not as killed.
    let is_running = lock::is_held(path);
    let mut file = File::open(path).path("open the journal", path)?;
    let length = file.metadata().path("read the journal", path)?.len();
    let first = match journal.kind {
        Kind::Hosts => first_line(&file, PART),
        Kind::InPlace => first_line(&file, LONGEST_START),
    }
    .path("read the journal", path)?;
    file.seek(SeekFrom::Start(length.saturating_sub(PART))).path("read the journal", path)?;
    let mut end = Vec::new();
    (&file).take(PART).read_to_end(&mut end).path("read the journal", path)?;

    let begun = match journal.kind {
        Kind::Hosts => begin(&first, &mut found),
        Kind::InPlace => begin_in_place(&first, journal, &mut found),
    };
    if begun.is_none() {
        found.problem = Some("the beginning of its journal cannot be read".to_owned());
    }
    // The last line without its end is one that was being written.
    let mut lines = end.rsplit(|byte| *byte == b'\n');
    let torn = lines.next().is_some_and(|rest| !rest.is_empty());
    let last = lines.next();
    // The first record is longer than the part that was read.
    let is_cut = lines.next().is_none() && length > PART;
    let last =
        last.filter(|_| !is_cut || journal.kind == Kind::Hosts).map(|line| match journal.kind {
            Kind::Hosts => {
                readable::record(line).map(|(record, strange)| (End::of(&record), strange))
            }
            Kind::InPlace => {
                in_place::record(line).map(|(record, strange)| (End::of_in_place(&record), strange))
            }
        });
    found.state = match &last {
        Some(Ok((End { outcome: Some(outcome), .. }, _))) if !is_running && !torn => {
            (*outcome).to_owned()
        }
        _ if is_running => "running".to_owned(),
        _ => "unfinished".to_owned(),
    };
    match last {
        Some(Ok((end, strange))) => {
            found.last = Some(end.time);
            found.problem = found.problem.or(strange);
        }
        Some(Err(why)) => {
            found.problem.get_or_insert(format!("the end of its journal cannot be read: {why}"));
        }
        None => {}
    }
    if torn && !is_running {
        found.problem.get_or_insert("its journal ends in the middle of a record".to_owned());
    }
    Ok(found)
}

/// What the last record says.
struct End {
    time: String,
    /// How the command ended, if it did.
    outcome: Option<&'static str>,
}

impl End {
    fn of(record: &Record) -> Self {
        let outcome = match record {
            Record::Finish { outcome, .. } => Some(outcome.word()),
            _ => None,
        };
        Self { time: record.time().to_string(), outcome }
    }

    fn of_in_place(record: &in_place::Record) -> Self {
        let outcome = match record {
            in_place::Record::Finish { outcome, .. } => Some(outcome.word()),
            _ => None,
        };
        Self { time: record.time().to_string(), outcome }
    }
}

/// Returns the first line, or its first `most` bytes.
fn first_line(file: &File, most: u64) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(file.take(most)).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(line)
}

/// Takes what the first record of a run over hosts says; `None` if it cannot be read.
fn begin(line: &[u8], found: &mut RunSummary) -> Option<()> {
    let Ok((Record::Start { time, verb, controller, .. }, _)) = readable::record(line) else {
        return None;
    };
    found.started = Some(time.to_string());
    found.verb = verb;
    found.controller = Some(controller);
    Some(())
}

/// The first record of an in-place update, without most of its plan.
#[derive(Deserialize)]
struct InPlaceStart {
    time: Timestamp,
    plan: PlanHead,
    #[serde(default)]
    controller: String,
}

#[derive(Deserialize)]
struct PlanHead {
    server: String,
    #[serde(default)]
    rollback: bool,
}

/// Like [`begin`], for an in-place update.
fn begin_in_place(line: &[u8], journal: &Found, found: &mut RunSummary) -> Option<()> {
    let start: InPlaceStart = serde_json::from_slice(line).ok()?;
    found.started = Some(start.time.to_string());
    found.verb = verb_of(start.plan.rollback).to_owned();
    found.server = journal.by_kubeconfig.then_some(start.plan.server);
    found.controller = Some(start.controller).filter(|name| !name.is_empty());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"record":"start","time":"2026-01-01T00:00:00Z","verb":"run","cluster":"c","intent":"i","plan":"p","arguments":[],"version":"1","controller":"me"}"#;
    const FINISH: &str = r#"{"record":"finish","time":"2026-01-01T00:00:09Z","outcome":"done"}"#;

    #[test]
    fn the_state_is_that_of_the_last_record_and_damage_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j.jsonl");
        let journal = |kind, path: &std::path::Path| Found {
            kind,
            id: "j".to_owned(),
            path: path.to_owned(),
            by_kubeconfig: kind == Kind::InPlace,
        };
        let middle = "{\"record\":\"weather\"}\n".repeat(20_000);
        for (text, state, problem) in [
            (format!("{START}\n{middle}{FINISH}\n"), "done", None),
            (format!("{START}\n"), "unfinished", None),
            (format!("{START}\n{FINISH}\n{{\"rec"), "unfinished", Some("in the middle")),
            (format!("{START}\n{middle}"), "unfinished", Some("records `weather`")),
            (format!("{}\n{FINISH}\n", "x".repeat(100_000)), "done", Some("the beginning")),
            (String::new(), "unfinished", Some("the beginning")),
        ] {
            std::fs::write(&path, text).unwrap();
            let found = summary(&journal(Kind::Hosts, &path), "c").unwrap();
            assert_eq!(found.state, state, "{found:?}");
            match problem {
                None => assert_eq!(found.problem, None),
                Some(part) => assert!(found.problem.unwrap().contains(part), "{part}"),
            }
        }
        assert!(summary(&journal(Kind::Hosts, &directory.path().join("absent")), "c").is_err());
        // The plan of an in-place update may be longer than what is read of a journal's end.
        let pods = "x".repeat(100_000);
        let start = format!(
            r#"{{"record":"start","time":"2026-01-01T00:00:00Z","version":"1","plan":{{"rollback":true,"pods":"{pods}","server":"https://api"}}}}"#
        );
        for (text, state) in [
            (format!("{start}\n"), "unfinished"),
            (format!("{start}\n{FINISH}\n"), "done"),
            (format!("{start}\n{FINISH}\n{start}\n"), "unfinished"),
        ] {
            std::fs::write(&path, text).unwrap();
            let found = summary(&journal(Kind::InPlace, &path), "c").unwrap();
            assert_eq!((&*found.state, &*found.verb), (state, "inplace rollback"), "{found:?}");
            assert_eq!((found.server.as_deref(), found.problem), (Some("https://api"), None));
        }
    }
}
