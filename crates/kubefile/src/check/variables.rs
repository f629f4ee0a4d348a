//! `UndefinedVar`: variables that are used before they are set.

use super::scope::Scopes;
use super::{Diagnostic, Instruction, InstructionKind};
use crate::ast::{Source, Transfer};
use crate::expand::{self, VariableUse};
use imgctl_base::suggest::closest;

/// Maximum number of findings.
const MAX_FINDINGS: usize = 100;

/// Maximum number of searches for the intended name.
const MAX_SEARCHES: usize = 1000;

/// Arguments of builders that no instruction needs to see.
const HIDDEN: [&str; 2] = ["BUILDKIT_SBOM_SCAN_CONTEXT", "BUILDKIT_SBOM_SCAN_STAGE"];

/// Reports variables, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Undefined {
    reported: usize,
    searched: usize,
}

impl Undefined {
    /// Checks the words of an instruction other than `ARG`.
    pub(super) fn check(
        &mut self,
        escape: char,
        scopes: &Scopes<'_>,
        instruction: &Instruction,
        found: &mut Vec<Diagnostic>,
    ) {
        for raw in words(instruction) {
            self.word(escape, scopes, instruction, raw, found);
        }
        let (InstructionKind::Copy(transfer) | InstructionKind::Add(transfer)) = &instruction.kind
        else {
            return;
        };
        for source in &transfer.sources {
            if let Source::Heredoc(heredoc) = source
                && heredoc.expand
            {
                let used = expand::heredoc_variables(&heredoc.body).unwrap_or_default();
                self.report(scopes, instruction, used, found);
            }
        }
    }

    /// Checks a raw word.
    pub(super) fn word(
        &mut self,
        escape: char,
        scopes: &Scopes<'_>,
        instruction: &Instruction,
        raw: &str,
        found: &mut Vec<Diagnostic>,
    ) {
        let used = expand::variables(raw, escape).unwrap_or_default();
        self.report(scopes, instruction, used, found);
    }

    /// A default such as in `${a:-b}` excuses nothing (BuildKit), as nothing could set the variable.
    fn report(
        &mut self,
        scopes: &Scopes<'_>,
        instruction: &Instruction,
        mut used: Vec<VariableUse>,
        found: &mut Vec<Diagnostic>,
    ) {
        used.sort_by(|a, b| a.name.cmp(&b.name));
        used.dedup_by(|a, b| a.name == b.name);
        for VariableUse { name, optional } in used {
            let is_known = HIDDEN.contains(&name.as_str()) || scopes.knows(&name);
            if is_known || self.reported >= MAX_FINDINGS || self.searched >= MAX_SEARCHES {
                continue;
            }
            self.searched += 1;
            let mut all: Vec<&str> = scopes.names().collect();
            all.sort_unstable();
            let suggestion = closest(&name, all);
            if scopes.is_open() && suggestion.is_none() {
                continue;
            }
            self.reported += 1;
            let mut span = instruction.span_of(&format!("${name}"));
            if span == instruction.span {
                span = instruction.span_of(&format!("${{{name}"));
            }
            let message = format!("nothing sets {name} before this use");
            let diagnostic = Diagnostic::warning("UndefinedVar", message, span);
            found.push(match suggestion {
                Some(other) => diagnostic.hint(format!("did you mean ${other}?")),
                None if optional => {
                    diagnostic.hint(format!("add ARG {name} to the stage, so that it can be set"))
                }
                None => diagnostic.hint(format!("add ARG {name} or ENV {name}=… to the stage")),
            });
        }
    }
}

/// Returns the raw words of an instruction in which BuildKit replaces variables one by one. Those of
/// `EXPOSE` may be empty, so variables that are not set do no harm there.
fn words(instruction: &Instruction) -> Vec<&str> {
    match &instruction.kind {
        InstructionKind::Add(transfer) | InstructionKind::Copy(transfer) => transferred(transfer),
        InstructionKind::Env(pairs) | InstructionKind::Label(pairs) => {
            pairs.iter().flat_map(|(key, value)| [key.as_str(), value]).collect()
        }
        InstructionKind::Volume(words) => words.iter().map(String::as_str).collect(),
        InstructionKind::Run(run) => run.mounts.iter().map(|mount| mount.raw.as_str()).collect(),
        InstructionKind::StopSignal(word)
        | InstructionKind::User(word)
        | InstructionKind::Workdir(word) => vec![word],
        _ => Vec::new(),
    }
}

fn transferred(transfer: &Transfer) -> Vec<&str> {
    let flags = &transfer.flags;
    let flags = [&flags.chown, &flags.chmod, &flags.checksum].into_iter().flatten();
    let mut words: Vec<&str> = flags.map(String::as_str).collect();
    for source in &transfer.sources {
        if let Source::Path(path) = source {
            words.push(path);
        }
    }
    words.push(&transfer.dest);
    words
}
