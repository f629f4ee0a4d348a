//! Parses text into the syntax tree: stages, their order, and all errors at once.

use std::borrow::Cow;

use super::ast::{Instruction, InstructionKind, Kubefile, Stage};
use super::diagnostic::Problem;
use super::diagnostic::Span;
use super::diagnostic::{Diagnostic, Severity};
use super::instruction::{self, Parsed, instruction};
use super::lexer::{self, Folded};

/// Maximum size of a Kubefile, in bytes; here-documents can make it long.
pub(crate) const MAX_KUBEFILE: usize = 4 << 20;

/// Maximum number of stages in one Kubefile.
const MAX_STAGES: usize = 1000;

/// Maximum number of errors reported for one file.
const MAX_DIAGNOSTICS: usize = 50;

/// Parses a Kubefile; `name` is the file's display name. Returns all errors in file order.
pub fn parse(name: &str, text: &[u8]) -> Result<Kubefile, Vec<Diagnostic>> {
    let (kubefile, found) = parse_leniently(name, text);
    if found.is_empty() { Ok(kubefile) } else { Err(found) }
}

/// Parses a Kubefile as [`parse`] does, and returns what can be read of it beside the errors.
pub fn parse_leniently(name: &str, text: &[u8]) -> (Kubefile, Vec<Diagnostic>) {
    let mut found = Vec::new();
    let text = decode(text).unwrap_or_else(|problems| {
        found = problems;
        Cow::Borrowed("")
    });
    let lexed = lexer::lex(&text, &mut found);
    let escape = lexed.directives.escape;
    let mut kubefile = Kubefile {
        name: name.to_owned(),
        directives: lexed.directives,
        global_args: Vec::new(),
        stages: Vec::new(),
        empty_continuations: lexed.empty_continuations,
    };
    let mut assembler = Assembler::default();
    for folded in lexed.lines {
        let (parsed, problems) = instruction::parse(&folded, escape);
        report(problems, &folded, &mut found);
        assembler.add(&mut kubefile, parsed, folded, &mut found);
        if found.len() >= MAX_DIAGNOSTICS {
            break;
        }
    }
    if kubefile.stages.is_empty() && found.is_empty() {
        found.push(no_from(&text));
    }
    found.retain(|diagnostic| diagnostic.severity == Severity::Error);
    found.sort_by_key(|diagnostic| diagnostic.span);
    found.truncate(MAX_DIAGNOSTICS);
    (kubefile, found)
}

/// Parses a single instruction: an `ONBUILD` trigger from a base image's config. Rejects `FROM`,
/// `ONBUILD` and `MAINTAINER`.
pub fn parse_instruction(text: &str, escape: char) -> Result<Instruction, Vec<Diagnostic>> {
    let mut found = Vec::new();
    let mut lines = lexer::lex_plain(text, escape, &mut found).into_iter();
    let everything = Span { line: 1, column: 1, end_line: 1, end_column: 1 };
    let (Some(folded), None) = (lines.next(), lines.next()) else {
        found.push(Diagnostic::error("a trigger is exactly one instruction", everything));
        return Err(found);
    };
    let (parsed, problems) = instruction::parse(&folded, escape);
    report(problems, &folded, &mut found);
    match parsed {
        Some(
            Parsed::Instruction(InstructionKind::Onbuild(_) | InstructionKind::Maintainer(_))
            | Parsed::From(_),
        ) => found.push(Diagnostic::error(
            "FROM, ONBUILD and MAINTAINER cannot be triggers",
            folded.span,
        )),
        Some(Parsed::Instruction(kind)) if found.is_empty() => {
            return Ok(instruction(kind, folded));
        }
        _ => {}
    }
    Err(found)
}

/// Assigns instructions to stages.
#[derive(Default)]
struct Assembler {
    /// Whether a `FROM` has been seen, even an invalid one.
    began: bool,
    /// Whether an instruction before the first `FROM` has been reported.
    orphaned: bool,
}

impl Assembler {
    fn add(
        &mut self,
        kubefile: &mut Kubefile,
        parsed: Option<Parsed>,
        folded: Folded,
        found: &mut Vec<Diagnostic>,
    ) {
        let name = folded.text.get(..4).unwrap_or_default();
        self.began |= name.eq_ignore_ascii_case("FROM");
        match parsed {
            None => {}
            Some(Parsed::From(from)) if kubefile.stages.len() == MAX_STAGES => {
                let message = format!("there are more than {MAX_STAGES} stages");
                found.push(Diagnostic::error(message, from.span));
            }
            Some(Parsed::From(from)) => kubefile.stages.push(Stage {
                index: kubefile.stages.len(),
                from,
                instructions: Vec::new(),
            }),
            Some(Parsed::Instruction(kind)) => {
                let instruction = instruction(kind, folded);
                let is_arg = matches!(instruction.kind, InstructionKind::Arg(_));
                match kubefile.stages.last_mut() {
                    Some(stage) => stage.instructions.push(instruction),
                    None if self.began => {}
                    None if is_arg => kubefile.global_args.push(instruction),
                    None if self.orphaned => {}
                    None => {
                        self.orphaned = true;
                        found.push(before_from(&instruction));
                    }
                }
            }
        }
    }
}

fn report(problems: Vec<Problem>, folded: &Folded, found: &mut Vec<Diagnostic>) {
    let problems = problems.into_iter().take(MAX_DIAGNOSTICS);
    found.extend(problems.map(|problem| problem.into_diagnostic(&folded.text, &folded.map)));
}

/// Whether a line may be in an older encoding: comments and names of maintainers. Files with here-documents
/// are excluded, because their content can look like comments.
fn is_forgiven(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    line.starts_with(b"#")
        || line.get(..11).is_some_and(|word| word.eq_ignore_ascii_case(b"MAINTAINER "))
}

fn decode(text: &[u8]) -> Result<Cow<'_, str>, Vec<Diagnostic>> {
    let at = |offset: usize| {
        let line = text[..offset].iter().filter(|&&b| b == b'\n').count() + 1;
        let start = text[..offset].iter().rposition(|&b| b == b'\n').map_or(0, |n| n + 1);
        let column = String::from_utf8_lossy(&text[start..offset]).chars().count() + 1;
        Span { line, column, end_line: line, end_column: column + 1 }
    };
    let diagnostic = if text.len() > MAX_KUBEFILE {
        let message = format!("the file is larger than {MAX_KUBEFILE} bytes");
        Diagnostic::error(message, at(0))
    } else if let Some(offset) = text.iter().position(|&byte| byte == 0) {
        Diagnostic::error("the file contains a NUL byte", at(offset)).hint("is this a Kubefile?")
    } else {
        match std::str::from_utf8(text) {
            Ok(text) => return Ok(Cow::Borrowed(text)),
            Err(_)
                if !text.windows(2).any(|pair| pair == b"<<")
                    && text
                        .split(|byte| *byte == b'\n')
                        .all(|line| is_forgiven(line) || std::str::from_utf8(line).is_ok()) =>
            {
                return Ok(String::from_utf8_lossy(text));
            }
            Err(error) => Diagnostic::error("the file is not UTF-8", at(error.valid_up_to()))
                .hint("save it as UTF-8"),
        }
    };
    Err(vec![diagnostic])
}

fn before_from(instruction: &Instruction) -> Diagnostic {
    let name = instruction.name();
    let span = instruction.map.locate(&instruction.text, 0, name.len());
    Diagnostic::error(format!("{name} comes before the first FROM"), span).hint(
        "start the file with FROM scratch, or with the image to build on; only ARG may \
               come earlier",
    )
}

fn no_from(text: &str) -> Diagnostic {
    let last = text.lines().count().max(1);
    let span = Span { line: last, column: 1, end_line: last, end_column: 1 };
    Diagnostic::error("the file has no FROM", span)
        .hint("start it with FROM scratch, or with the image to build on")
}

#[cfg(test)]
mod tests;
