//! Reporting of errors: what users and machines see of them, and the exit code.

use std::process::ExitCode;

use serde_json::json;

use imgctl_base::error::{Error, Kind};
use imgctl_base::text::{Lines, Tone, is_unsafe};
use imgctl_frontend::settings::Early;
use imgctl_ui as ui;

/// Returns the exit code of a kind. Scripts depend on it (docs/cli.md).
fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Failed => 1,
        Kind::Usage => 2,
        Kind::NotFound => 3,
        Kind::BadContent => 4,
        Kind::Denied => 5,
        Kind::Busy => 6,
        Kind::Network => 7,
        Kind::NoSpace => 8,
        Kind::CommandFailed => 9,
        Kind::CheckFailed => 10,
        // Shells use the same code for a command that SIGINT ended.
        Kind::Interrupted => 130,
    }
}

/// Shows `error` on stderr and returns its exit code. A closed output (`imgctl images | head -1`)
/// is not a failure.
pub(crate) fn report(error: &Error, early: Early) -> ExitCode {
    if ui::edge::reader_is_gone(error) {
        return ExitCode::SUCCESS;
    }
    if early.json {
        ui::edge::json_to_stderr(&as_json(error));
    } else {
        let lines = as_lines(error, ui::colours_stderr(early.colour));
        ui::edge::lines_to_stderr(&lines, early.on_runner);
    }
    ExitCode::from(code(error.kind()))
}

/// Reports errors from clap; help and version go to stdout with exit code 0.
pub(crate) fn of_parser(error: &clap::Error, early: Early) -> ExitCode {
    if !error.use_stderr() || !early.json {
        let shown = error.render().to_string();
        if shown.chars().any(|c| is_unsafe(c) && c != '\n') {
            // An argument of the command line, which a script may have from elsewhere.
            ui::edge::lines_to_stderr(&shown.lines().collect(), early.on_runner);
        } else {
            // Nothing can be done about a closed output.
            let _ = error.print();
        }
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let rendered = error.render().to_string();
    let mut lines = rendered.lines();
    let first = lines.next().unwrap_or_default();
    let message = first.strip_prefix("error: ").unwrap_or(first);
    let mut error = Error::usage(message);
    for line in lines.map(str::trim) {
        if let Some(tip) = line.strip_prefix("tip: ") {
            error = error.hint(tip);
        }
    }
    report(&error, early)
}

/// Formats the error as `error:`, with the causes indented under it and a `hint:` line for each
/// hint.
fn as_lines(error: &Error, colour: bool) -> Lines {
    let tone = |tone| if colour { tone } else { Tone::Plain };
    let mut lines = Lines::default();
    for (depth, message) in error.chain().iter().enumerate() {
        // Only an excerpt that the error was given (a build's caret) has lines of its own.
        for (number, line) in message.split('\n').enumerate() {
            match (depth, number) {
                (0, 0) => lines
                    .pieces(&[(tone(Tone::Error), &"error:"), (Tone::Plain, &format!(" {line}"))]),
                (0, _) => lines.line(line),
                (_, 0) => lines.line(format!("  because: {line}")),
                _ => lines.line(format!("  {line}")),
            };
        }
    }
    for hint in error.hints() {
        lines.pieces(&[(tone(Tone::Hint), &"hint:"), (Tone::Plain, &format!(" {hint}"))]);
    }
    lines
}

fn as_json(error: &Error) -> serde_json::Value {
    let chain = error.chain();
    let mut document = json!({ "error": {
        "kind": error.kind(),
        "message": error.message(),
        "causes": chain.get(1..).unwrap_or_default(),
        "hints": error.hints(),
    }});
    let places: Vec<_> = error
        .places()
        .map(|place| {
            json!({
                "file": place.file.to_string_lossy(), "line": place.line, "column": place.column,
                "endLine": place.end_line, "endColumn": place.end_column, "message": place.message,
                "hint": place.hint, "rule": place.rule,
                "severity": if place.is_warning { "warning" } else { "error" },
            })
        })
        .collect();
    if !places.is_empty() {
        document["error"]["places"] = places.into();
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Error {
        Error::bad_content("blob sha256:12 is truncated")
            .hint("load the archive again")
            .context("cannot mount `etcd:v1`")
    }

    #[test]
    fn text_shows_causes_and_hints() {
        assert_eq!(
            as_lines(&sample(), false).as_str(),
            "error: cannot mount `etcd:v1`\n  because: blob sha256:12 is truncated\nhint: load the archive again\n"
        );
    }

    #[test]
    fn json_is_one_object() {
        assert_eq!(
            as_json(&sample()).to_string(),
            r#"{"error":{"kind":"bad-content","message":"cannot mount `etcd:v1`","causes":["blob sha256:12 is truncated"],"hints":["load the archive again"]}}"#
        );
    }

    proptest::proptest! {
        #[test]
        fn foreign_text_adds_no_line_and_no_sequence(
            text in "[\n\r\t\u{1b}\u{7}\u{7f}-\u{9f}\u{200b}-\u{202e}\u{2066}a-c:]{0,30}",
        ) {
            let host = imgctl_base::wire::Failure::from(&Error::failed(&text).hint(&text));
            let error = Error::from(host)
                .caused_by(std::io::Error::other(text.clone()))
                .context(&text)
                .hint(&text)
                .lines([format!("  {text}")]);
            let shown = as_lines(&error, false).as_str().to_owned();
            let is_foreign = |c: char| is_unsafe(c) && c != '\n';
            proptest::prop_assert!(!shown.contains(is_foreign), "{shown:?}");
            for line in shown.lines() {
                let is_ours = ["error: ", "  because: ", "hint: ", "  "]
                    .iter()
                    .any(|start| line.starts_with(start));
                proptest::prop_assert!(is_ours, "{shown:?}");
            }
            let messages = error.chain().len() + error.hints().len() + 1;
            proptest::prop_assert_eq!(shown.lines().count(), messages);
            // JSON has the same value, without what a terminal obeys.
            let json = as_json(&error).to_string();
            let escaped = imgctl_base::text::escape_json(&json).into_owned();
            proptest::prop_assert!(!escaped.contains(is_unsafe));
        }
    }

    #[test]
    fn exit_codes_are_distinct() {
        let mut codes = Kind::NAMES.map(|(kind, _)| code(kind)).to_vec();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 130]);
    }
}
