//! Parser directives: `# key=value` lines at the very top of a Kubefile.

use super::ast::{CheckDirective, Directives};

/// Type of a line at the top of the file.
pub(super) enum Line {
    /// A directive that was accepted.
    Directive,
    /// Another line: no directive may follow it.
    Other,
    /// An invalid directive, and the reason.
    Wrong(String),
}

/// The directives seen so far.
#[derive(Default)]
pub(super) struct Seen {
    syntax: bool,
    escape: bool,
    check: bool,
}

/// Reads one line as a directive.
pub(super) fn read(line: &str, directives: &mut Directives, seen: &mut Seen) -> Line {
    let Some((key, value)) = key_value(line) else {
        return Line::Other;
    };
    let key = key.to_ascii_lowercase();
    let before = match key.as_str() {
        "syntax" => &mut seen.syntax,
        "escape" => &mut seen.escape,
        "check" => &mut seen.check,
        _ => return Line::Other,
    };
    if std::mem::replace(before, true) {
        return Line::Wrong(format!("the directive `{key}` is given twice"));
    }
    match key.as_str() {
        "syntax" => directives.syntax = Some(value.to_owned()),
        "escape" => match value {
            "\\" => directives.escape = '\\',
            "`" => directives.escape = '`',
            _ => return Line::Wrong(format!("the escape character is \\ or `, not {value}")),
        },
        _ => match check(value) {
            Ok(check) => directives.check = check,
            Err(message) => return Line::Wrong(message),
        },
    }
    Line::Directive
}

/// Parses `# key = value`; the key consists of letters and digits, the value is not empty.
fn key_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim().strip_prefix('#')?.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    let word = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.chars().all(|c| c.is_ascii_alphanumeric());
    (word && !value.is_empty()).then_some((key, value))
}

/// Parses `skip=A,B;error=true;experimental=C`.
fn check(value: &str) -> Result<CheckDirective, String> {
    let mut check = CheckDirective::default();
    for setting in value.split(';').map(str::trim).filter(|s| !s.is_empty()) {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| format!("`{setting}` in the directive `check` is not KEY=VALUE"))?;
        let value = value.trim();
        let rules = || {
            value
                .split(',')
                .map(|rule| rule.trim().to_owned())
                .filter(|rule| !rule.is_empty())
                .collect::<Vec<_>>()
        };
        let all = value.eq_ignore_ascii_case("all");
        match key.trim().to_ascii_lowercase().as_str() {
            "skip" if all => check.skip_all = true,
            "skip" => check.skip = rules(),
            "experimental" if all => check.experimental_all = true,
            "experimental" => check.experimental = rules(),
            "error" => {
                check.error = match value.to_ascii_lowercase().as_str() {
                    "true" | "1" | "t" => true,
                    "false" | "0" | "f" => false,
                    _ => return Err(format!("`error` must be true or false, not `{value}`")),
                }
            }
            other => {
                return Err(format!(
                    "the directive `check` knows skip, error and experimental, not `{other}`"
                ));
            }
        }
    }
    Ok(check)
}
