//! What can be read of a journal that is cut off, damaged or of another version: for reports, which say
//! what is missing. Runs are resumed from `past` alone, which is strict.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::past::each_line;
use crate::record::{Chain, Record};
use imgctl_base::error::{Error, Result};

/// Maximum number of records.
const MOST: usize = 2_000_000;
/// Maximum number of problems.
const MOST_PROBLEMS: usize = 20;
const OUTCOMES: [&str; 8] =
    ["done", "failed", "interrupted", "lost", "unknown", "assumed", "paused", "aborted"];

/// Records in their order, and what is wrong with the rest.
#[derive(Debug)]
pub struct Readable<R = Record> {
    pub records: Vec<R>,
    /// Sentences for the operator.
    pub problems: Vec<String>,
    /// Length of all complete lines, in bytes.
    pub length: u64,
}

/// A record and what is unusual about it, or the reason why the line is not a record.
type Parsed<R> = Result<(R, Option<String>), String>;

/// Reads the journal of a run over hosts. Fails only if the file cannot be read.
pub fn read(path: &Path) -> Result<Readable> {
    read_as(path, record)
}

/// Reads a journal whose lines `parse` understands. Fails only if the file cannot be read.
pub fn read_as<R>(path: &Path, parse: fn(&[u8]) -> Parsed<R>) -> Result<Readable<R>> {
    let mut found = Readable { records: Vec::new(), problems: Vec::new(), length: 0 };
    let mut more = 0_usize;
    let mut chain = Some(Chain::default());
    let read = each_line(path, |number, line, whole| {
        if found.records.len() >= MOST {
            return Err(Error::bad_content(format!("it has more than {MOST} records")));
        }
        let mut problem = |text: String| {
            if found.problems.len() < MOST_PROBLEMS {
                found.problems.push(text);
            } else {
                more += 1;
            }
        };
        if whole {
            found.length += line.len() as u64 + 1;
        }
        if whole && chain.as_mut().is_some_and(|chain| !chain.follows(line)) {
            problem(format!("the journal was modified at or before line {number}"));
            // One gap breaks all that follows.
            chain = None;
        }
        match parse(line) {
            Ok((record, None)) => found.records.push(record),
            Ok((record, Some(strange))) => {
                problem(format!("line {number}: {strange}"));
                found.records.push(record);
            }
            Err(_) if !whole => {
                problem(format!(
                    "the journal ends in the middle of line {number}, which is missing"
                ));
            }
            Err(why) => problem(format!("line {number} of the journal is missing here: {why}")),
        }
        Ok(())
    });
    match read {
        // What was read until then is worth a report.
        Err(error) if !found.records.is_empty() => {
            found.problems.push(format!("the rest of the journal is missing: {error}"));
        }
        read => read?,
    }
    if more > 0 {
        found.problems.push(format!("{more} more lines are missing or strange"));
    }
    Ok(found)
}

/// Reads a record of one line; of a newer version as far as it is known here, with what is not. The
/// error is a sentence for the operator.
pub fn record(line: &[u8]) -> Result<(Record, Option<String>), String> {
    record_as(line, &["start", "begin", "end", "finish"])
}

/// Reads a record of one line, of one of these kinds.
pub fn record_as<R: DeserializeOwned>(line: &[u8], kinds: &[&str]) -> Parsed<R> {
    let strict = match serde_json::from_slice::<R>(line) {
        Ok(record) => return Ok((record, None)),
        Err(error) => error,
    };
    let mut value: Value =
        serde_json::from_slice(line).map_err(|_| "it is not a record".to_owned())?;
    let kind = value["record"].as_str().unwrap_or_default().to_owned();
    if !kinds.contains(&&*kind) {
        return Err(format!("this imgctl does not know records `{}`", kind.escape_debug()));
    }
    let outcome = value["outcome"].as_str().unwrap_or_default().to_owned();
    if value.get("outcome").is_some() && !OUTCOMES.contains(&&*outcome) {
        value["outcome"] = "unknown".into();
        if let Ok(record) = serde_json::from_value(value) {
            let strange =
                format!("this imgctl does not know the result `{}`", outcome.escape_debug());
            return Ok((record, Some(strange)));
        }
    }
    Err(strict.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_is_read_and_the_rest_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j.jsonl");
        let time = "2026-01-01T00:00:00Z";
        let begin = format!(
            r#"{{"record":"begin","time":"{time}","step":"a/h/x","fingerprint":"f","attempt":1,"new":1}}"#
        );
        let melted = format!(r#"{{"record":"finish","time":"{time}","outcome":"melted"}}"#);
        let other = r#"{"record":"weather","time":"x"}"#;
        std::fs::write(&path, format!("{begin}\n{other}\nnonsense\n{melted}\n{{\"record\":\"en"))
            .unwrap();
        let found = read(&path).unwrap();
        assert_eq!(found.records.len(), 2, "{found:?}");
        let problems = found.problems.join("\n");
        for told in ["records `weather`", "line 3", "`melted`", "ends in the middle of line 5"] {
            assert!(problems.contains(told), "{told}: {problems}");
        }
        assert!(read(&directory.path().join("absent")).is_err());
        std::fs::write(&path, "x\n".repeat(100)).unwrap();
        assert_eq!(read(&path).unwrap().problems.len(), MOST_PROBLEMS + 1);
    }

    /// A journal that was damaged, or that somebody else wrote.
    #[test]
    fn any_file_is_a_journal_or_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j.jsonl");
        let time = "2026-01-01T00:00:00Z";
        let valid = format!(
            "{{\"record\":\"begin\",\"time\":\"{time}\",\"step\":\"a/h/x\",\"fingerprint\":\"f\",\"attempt\":1}}\n\
             {{\"record\":\"end\",\"time\":\"{time}\",\"step\":\"a/h/x\",\"outcome\":\"done\"}}\n\
             {{\"record\":\"finish\",\"time\":\"{time}\",\"outcome\":\"done\"}}\n"
        );
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), imgctl_base::testing::damaged(valid.as_bytes(), input)] {
                let lines = text.split(|byte| *byte == b'\n').count();
                std::fs::write(&path, &text).unwrap();
                let found = read(&path).unwrap();
                assert!(found.records.len() <= lines && found.length <= text.len() as u64);
                assert!(found.problems.len() <= MOST_PROBLEMS + 2);
                let _ = crate::past::Past::read(&path);
            }
        });
    }
}
