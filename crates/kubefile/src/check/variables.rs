//! `UndefinedVar`: variables that are used before they are set.

use std::collections::HashSet;

use super::{CheckOptions, Diagnostic, Instruction, InstructionKind, Kubefile, Stage, is_scratch};
use crate::ast::{Source, Transfer};
use crate::expand;
use imgctl_base::suggest::closest;

/// Maximum number of findings: each requires a search for the intended name.
const MAX_FINDINGS: usize = 100;

/// The variables that are set at some point of a stage.
#[derive(Default)]
struct Scope {
    /// Environment variables and arguments, which stages built on this one inherit.
    names: HashSet<String>,
    /// The stage that this stage builds on.
    parent: Option<usize>,
    /// Whether the base image may set variables that are unknown here.
    open: bool,
}

pub(super) fn check(
    kubefile: &Kubefile,
    parents: &[Option<usize>],
    options: &CheckOptions<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let escape = kubefile.directives.escape;
    let mut scopes: Vec<Scope> = Vec::new();
    let enough = found.len() + MAX_FINDINGS;
    for stage in &kubefile.stages {
        let parent = parents.get(stage.index).copied().flatten();
        scopes.push(match parent.and_then(|parent| scopes.get(parent)) {
            Some(inherited) => Scope { open: inherited.open, parent, ..Scope::default() },
            None => base(stage, options),
        });
        for instruction in &stage.instructions {
            for raw in words(instruction) {
                if found.len() < enough {
                    report(escape, &scopes, instruction, raw, found);
                }
            }
            let Some(scope) = scopes.last_mut() else {
                continue;
            };
            match &instruction.kind {
                InstructionKind::Env(pairs) => {
                    scope.names.extend(pairs.iter().map(|(key, _)| key.clone()));
                }
                InstructionKind::Arg(args) => {
                    scope.names.extend(args.iter().map(|(key, _)| key.clone()));
                }
                _ => {}
            }
        }
    }
}

fn base(stage: &Stage, options: &CheckOptions<'_>) -> Scope {
    let mut scope = Scope::default();
    // Every builder sets a PATH.
    scope.names.insert("PATH".to_owned());
    if !is_scratch(&stage.from) {
        let names = options.base_environment.and_then(|names| names(&stage.from.image));
        scope.open = names.is_none();
        scope.names.extend(names.unwrap_or_default());
    }
    scope
}

/// Returns the names available to a stage: its own, and those of the stages it builds on.
fn names(scopes: &[Scope]) -> impl Iterator<Item = &HashSet<String>> {
    let all = std::iter::successors(scopes.last(), |scope| scopes.get(scope.parent?));
    all.map(|scope| &scope.names)
}

fn report(
    escape: char,
    scopes: &[Scope],
    instruction: &Instruction,
    raw: &str,
    found: &mut Vec<Diagnostic>,
) {
    for used in expand::variables(raw, escape).unwrap_or_default() {
        let name = used.name.as_str();
        let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let known =
            super::PROXY_ARGS.contains(&name) || names(scopes).any(|set| set.contains(name));
        if used.optional || !is_name || known {
            continue;
        }
        let mut all: Vec<&str> = names(scopes).flatten().map(String::as_str).collect();
        all.sort_unstable();
        let suggestion = closest(name, all);
        if scopes.last().is_some_and(|scope| scope.open) && suggestion.is_none() {
            continue;
        }
        let mut span = instruction.span_of(&format!("${name}"));
        if span == instruction.span {
            span = instruction.span_of(&format!("${{{name}"));
        }
        let message = format!("nothing sets {name} before this use");
        let diagnostic = Diagnostic::warning("UndefinedVar", message, span);
        found.push(match suggestion {
            Some(other) => diagnostic.hint(format!("did you mean ${other}?")),
            None => diagnostic.hint(format!(
                "add ARG {name} or ENV {name}=… to the stage, or write ${{{name}:-}} if it may be unset"
            )),
        });
    }
}

/// Returns the raw words of an instruction that are expanded.
fn words(instruction: &Instruction) -> Vec<&str> {
    match &instruction.kind {
        InstructionKind::Add(transfer) | InstructionKind::Copy(transfer) => transferred(transfer),
        InstructionKind::Arg(args) => args.iter().filter_map(|(_, v)| v.as_deref()).collect(),
        InstructionKind::Env(pairs) | InstructionKind::Label(pairs) => {
            pairs.iter().flat_map(|(key, value)| [key.as_str(), value]).collect()
        }
        InstructionKind::Expose(words) | InstructionKind::Volume(words) => {
            words.iter().map(String::as_str).collect()
        }
        InstructionKind::Run(run) => run.mounts.iter().map(|mount| mount.raw.as_str()).collect(),
        InstructionKind::StopSignal(word)
        | InstructionKind::User(word)
        | InstructionKind::Workdir(word) => vec![word],
        _ => Vec::new(),
    }
}

fn transferred(transfer: &Transfer) -> Vec<&str> {
    let flags = &transfer.flags;
    let mut words: Vec<&str> = [&flags.chown, &flags.chmod, &flags.checksum, &flags.from]
        .into_iter()
        .flatten()
        .chain(&flags.exclude)
        .map(String::as_str)
        .collect();
    for source in &transfer.sources {
        if let Source::Path(path) = source {
            words.push(path);
        }
    }
    words.push(&transfer.dest);
    words
}
