//! How CI systems are spoken to through the log: commands of GitHub's runner, sections of GitLab's.
//!
//! A runner takes every line of the log that looks like a command for one, so lines with foreign text
//! are made harmless first. Must not know what the lines mean.

use imgctl_base::text::escape;

/// A CI system that reads the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Workflow commands of GitHub Actions, which Gitea and Forgejo read, too.
    Github,
    /// Sections of GitLab CI.
    Gitlab,
}

/// What an annotation says, and where it belongs.
#[derive(Clone, Debug, Default)]
pub struct Annotation<'a> {
    /// `error` or `warning`.
    pub level: &'a str,
    pub title: &'a str,
    pub message: &'a str,
    pub place: Option<Region<'a>>,
}

/// A range of a file.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    pub file: &'a str,
    /// Line and column, from 1.
    pub start: (usize, usize),
    /// Does not belong to the range.
    pub end: (usize, usize),
}

impl Annotation<'_> {
    /// Returns the workflow command (@actions/core, `command.ts`).
    pub fn command(&self) -> String {
        let mut properties = Vec::new();
        if let Some(Region { file, start: (line, column), end: (end_line, end_column) }) =
            self.place
        {
            let end_line = end_line.max(line);
            properties.push(format!("file={}", property(file)));
            properties.push(format!("line={line},endLine={end_line}"));
            // GitHub ignores columns of an annotation over several lines, or refuses it.
            if end_line == line && column > 0 {
                let last = end_column.saturating_sub(1).max(column);
                properties.push(format!("col={column},endColumn={last}"));
            }
        }
        properties.push(format!("title={}", property(self.title)));
        format!("::{} {}::{}", self.level, properties.join(","), data(self.message))
    }
}

/// Escapes a command's message. The runner shows it on a page and in the log.
fn data(text: &str) -> String {
    let text = text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    escape(&text).into_owned()
}

/// Escapes a property of a command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Returns text that no runner takes for a command: GitHub's takes lines that begin with `::`, after
/// white space, and lines with `##[` anywhere, and ends a line at `\r`, too; GitLab's shows sections.
pub(crate) fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for line in text.split_inclusive(['\n', '\r']) {
        let start = line.len() - line.trim_start().len();
        let (space, rest) = line.split_at(start);
        safe.push_str(space);
        if rest.starts_with("::") {
            safe.push_str("| ");
        }
        safe.push_str(rest);
    }
    safe.replace("##[", "## [")
        .replace("section_start:", "section_start :")
        .replace("section_end:", "section_end :")
}

/// Returns the line that begins a group.
pub(crate) fn group_start(system: System, number: u64, time: i64, title: &str) -> String {
    match system {
        System::Github => format!("::group::{}", data(title)),
        System::Gitlab => format!(
            "\x1b[0Ksection_start:{time}:imgctl_{number}[collapsed=true]\r\x1b[0K{}",
            harmless(title)
        ),
    }
}

/// Returns the line that ends a group.
pub(crate) fn group_end(system: System, number: u64, time: i64) -> String {
    match system {
        System::Github => "::endgroup::".to_owned(),
        System::Gitlab => format!("\x1b[0Ksection_end:{time}:imgctl_{number}\r\x1b[0K"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_escaped_as_the_toolkit_does() {
        let annotation = Annotation {
            level: "error",
            title: "a:b,c",
            message: "50%\nof it: x, y\r",
            place: Some(Region { file: "dir,1/Kube:file", start: (2, 3), end: (2, 6) }),
        };
        assert_eq!(
            annotation.command(),
            "::error file=dir%2C1/Kube%3Afile,line=2,endLine=2,col=3,endColumn=5,\
             title=a%3Ab%2Cc::50%25%0Aof it: x, y%0D"
        );
        let lines = Annotation {
            place: Some(Region { file: "K", start: (2, 3), end: (4, 1) }),
            ..annotation
        };
        assert!(lines.command().starts_with("::error file=K,line=2,endLine=4,title="));
    }

    #[test]
    fn foreign_lines_are_no_commands() {
        for (text, safe) in [
            ("::add-path::/x", "| ::add-path::/x"),
            (" \u{2003}::error::x", " \u{2003}| ::error::x"),
            ("50%\r::set-env name=x::y", "50%\r| ::set-env name=x::y"),
            ("a\n::x\nb", "a\n| ::x\nb"),
            ("x ##[error]y", "x ## [error]y"),
            ("a::b", "a::b"),
            ("section_start:1:x\r", "section_start :1:x\r"),
        ] {
            assert_eq!(harmless(text), safe, "{text:?}");
        }
    }
}
