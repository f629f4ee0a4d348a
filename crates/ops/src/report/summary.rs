//! A run in a list: what the beginning and the end of its journal say, however long it is.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::fs::lock;
use imgctl_cluster::pipeline::journal::{Record, readable};
use imgctl_report::model::recorded::RunSummary;

/// Bytes that are read of the beginning and of the end of a journal.
const PART: u64 = 64 << 10;

/// Summarizes the journal at `path`, which is a run `id` of `cluster`.
pub(super) fn summary(path: &Path, cluster: &str, id: &str) -> Result<RunSummary> {
    let mut found =
        RunSummary { cluster: cluster.to_owned(), id: id.to_owned(), ..RunSummary::default() };
    // Before the journal is read: a run that ends meanwhile is shown as running, not as killed.
    let is_running = lock::is_held(path);
    let mut file = File::open(path).path("open the journal", path)?;
    let length = file.metadata().path("read the journal", path)?.len();
    let mut begin = Vec::new();
    (&file).take(PART).read_to_end(&mut begin).path("read the journal", path)?;
    file.seek(SeekFrom::Start(length.saturating_sub(PART))).path("read the journal", path)?;
    let mut end = Vec::new();
    (&file).take(PART).read_to_end(&mut end).path("read the journal", path)?;

    let first = begin.split(|byte| *byte == b'\n').next().unwrap_or_default();
    match readable::record(first) {
        Ok((Record::Start { time, verb, controller, .. }, _)) => {
            found.started = Some(time.to_string());
            found.verb = verb;
            found.controller = Some(controller);
        }
        _ => found.problem = Some("the beginning of its journal cannot be read".to_owned()),
    }
    // The last line without its end is one that was being written.
    let mut lines = end.rsplit(|byte| *byte == b'\n');
    let torn = lines.next().is_some_and(|rest| !rest.is_empty());
    let last = lines.next().map(readable::record);
    found.state = match &last {
        Some(Ok((Record::Finish { outcome, .. }, _))) if !is_running && !torn => {
            outcome.word().to_owned()
        }
        _ if is_running => "running".to_owned(),
        _ => "unfinished".to_owned(),
    };
    match last {
        Some(Ok((record, strange))) => {
            found.last = Some(record.time().to_string());
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

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"record":"start","time":"2026-01-01T00:00:00Z","verb":"run","cluster":"c","intent":"i","plan":"p","arguments":[],"version":"1","controller":"me"}"#;
    const FINISH: &str = r#"{"record":"finish","time":"2026-01-01T00:00:09Z","outcome":"done"}"#;

    #[test]
    fn the_state_is_that_of_the_last_record_and_damage_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j.jsonl");
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
            let found = summary(&path, "c", "j").unwrap();
            assert_eq!(found.state, state, "{found:?}");
            match problem {
                None => assert_eq!(found.problem, None),
                Some(part) => assert!(found.problem.unwrap().contains(part), "{part}"),
            }
        }
        assert!(summary(&directory.path().join("absent"), "c", "j").is_err());
    }
}
