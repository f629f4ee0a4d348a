//! Reporting of errors: what users and machines see of them, and the exit code.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::json;

use crate::cli::settings::Early;
use crate::ui;
use imgctl_base::error::{Error, Kind};
use imgctl_base::text::is_unsafe;

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
    if ui::terminal::reader_is_gone(error) {
        return ExitCode::SUCCESS;
    }
    let text = match (early.json, early.on_runner) {
        // Inside of JSON texts only, where it means the same.
        (true, _) => format!("{}\n", as_json(error)).replace("##[", "##\\u005b"),
        (false, true) => ui::ci::harmless(&as_text(error, ui::colours_stderr(early.colour))),
        (false, false) => as_text(error, ui::colours_stderr(early.colour)),
    };
    ui::terminal::stderr(&text);
    ExitCode::from(code(error.kind()))
}

/// Reports errors from clap; help and version go to stdout with exit code 0.
pub(crate) fn of_parser(error: &clap::Error, early: Early) -> ExitCode {
    if !error.use_stderr() || !early.json {
        // Nothing can be done about a closed output.
        let _ = error.print();
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
fn as_text(error: &Error, colour: bool) -> String {
    let (red, cyan, reset) =
        if colour { ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m") } else { ("", "", "") };
    let chain = error.chain();
    let mut text = String::new();
    for (depth, message) in chain.iter().enumerate() {
        // A multi-line message (a build's caret) keeps its shape.
        let message = printable(message);
        let _ = match depth {
            0 => writeln!(text, "{red}error:{reset} {message}"),
            _ => writeln!(text, "  because: {}", message.replace('\n', "\n  ")),
        };
    }
    for hint in error.hints() {
        let _ = writeln!(text, "{cyan}hint:{reset} {}", printable(hint));
    }
    text
}

fn as_json(error: &Error) -> serde_json::Value {
    let chain = error.chain();
    json!({ "error": {
        "kind": error.kind(),
        "message": error.message(),
        "causes": chain.get(1..).unwrap_or_default(),
        "hints": error.hints(),
    }})
}

/// Escapes control and bidirectional characters: names in messages may come from hostile images.
fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escape = is_unsafe(c) && c != '\n';
            let plain = (!escape).then_some(c);
            escape.then(|| c.escape_default()).into_iter().flatten().chain(plain)
        })
        .collect()
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
            as_text(&sample(), false),
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

    #[test]
    fn control_characters_of_foreign_names_are_escaped() {
        assert_eq!(printable("a\u{7}b\u{9b}c\td\n"), "a\\u{7}b\\u{9b}c\td\n");
    }

    #[test]
    fn exit_codes_are_distinct() {
        let mut codes = Kind::NAMES.map(|(kind, _)| code(kind)).to_vec();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 130]);
    }
}
