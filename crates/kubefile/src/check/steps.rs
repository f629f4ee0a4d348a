//! Rules for instructions that depend on the values of variables. As in BuildKit, they concern only the
//! stages that are built, if a target is chosen.

use super::scope::{Known, Scopes};
use super::variables::Undefined;
use super::{CheckOptions, Diagnostic, Instruction, InstructionKind, Kubefile, style};
use crate::ast::{Source, Transfer};
use crate::expose;
use crate::lexer;

const TWICE: &str = "MultipleInstructionsDisallowed";

pub(super) fn check(
    kubefile: &Kubefile,
    known: &Known<'_>,
    options: &CheckOptions<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let escape = kubefile.directives.escape;
    let mut scopes = Scopes::new(known.globals, &options.build_args);
    let mut undefined = Undefined::default();
    // Whether a WORKDIR has set the working directory at the end of each stage.
    let mut has_directory: Vec<bool> = Vec::new();
    for stage in &kubefile.stages {
        let parent = known.parents.get(stage.index).copied().flatten();
        scopes.enter(parent, known.bases.get(stage.index).and_then(Option::as_ref));
        let mut is_set =
            parent.and_then(|stage| has_directory.get(stage).copied()).unwrap_or(false);
        let mut of_stage = Vec::new();
        for instruction in &stage.instructions {
            undefined.check(escape, &scopes, instruction, &mut of_stage);
            match &instruction.kind {
                InstructionKind::Arg(arguments) => {
                    for (name, default) in arguments {
                        style::secret(instruction, name, name, &mut of_stage);
                        if let Some(default) =
                            default.as_deref().filter(|_| scopes.uses_default(name))
                        {
                            undefined.word(escape, &scopes, instruction, default, &mut of_stage);
                        }
                        scopes.declare(name, default.as_deref());
                    }
                }
                InstructionKind::Env(pairs) => {
                    for (raw, _) in pairs {
                        let name = scopes.word(raw).unwrap_or_else(|| raw.clone());
                        style::secret(instruction, raw, &name, &mut of_stage);
                    }
                }
                InstructionKind::Expose(words) => {
                    for raw in words {
                        exposed(instruction, raw, &scopes, &mut of_stage);
                    }
                }
                InstructionKind::Workdir(raw) => {
                    if !is_set {
                        workdir(instruction, raw, &scopes, &mut of_stage);
                    }
                    // One warning is enough: one absolute path repairs all.
                    is_set = true;
                }
                InstructionKind::Copy(transfer) | InstructionKind::Add(transfer) => {
                    ignored(instruction, transfer, &scopes, options, &mut of_stage);
                }
                _ => {}
            }
            scopes.apply(instruction);
        }
        has_directory.push(is_set);
        repeated(&stage.instructions, &mut of_stage);
        if options.builds(stage.index) {
            found.append(&mut of_stage);
        }
    }
}

/// `EXPOSE`: words that are no ports are mistakes, whatever is built from them.
fn exposed(instruction: &Instruction, raw: &str, scopes: &Scopes<'_>, found: &mut Vec<Diagnostic>) {
    let span = instruction.span_of(raw);
    for word in scopes.words(raw).unwrap_or_default() {
        let Some(exposed) = expose::parse(&word) else {
            let mistake = Diagnostic::error(format!("`{word}` is not a port"), span);
            found.push(mistake.hint("EXPOSE takes PORT[-PORT][/tcp|udp|sctp]"));
            continue;
        };
        let lower = exposed.protocol.to_lowercase();
        if exposed.is_published {
            let message = format!("{word} has an address or a port of the host");
            let own = word.rsplit(':').next().unwrap_or_default();
            let warning = Diagnostic::warning("ExposeInvalidFormat", message, span);
            found.push(warning.hint(format!("write {own}")));
        }
        if exposed.protocol != lower {
            let message = format!("the protocol of {word} is not in lower case");
            let warning = Diagnostic::warning("ExposeProtoCasing", message, span);
            found.push(warning.hint(format!("write {lower}")));
        }
    }
}

/// `WorkdirRelativePath`, also on an empty image (BuildKit).
fn workdir(instruction: &Instruction, raw: &str, scopes: &Scopes<'_>, found: &mut Vec<Diagnostic>) {
    let is_absolute = match scopes.word(raw) {
        Some(path) => path.starts_with('/'),
        None => raw.trim_start_matches(['"', '\'']).starts_with(['/', '$']),
    };
    if !is_absolute {
        let message = format!("the location of {raw} depends on the base image");
        let span = instruction.span_of(raw);
        let warning = Diagnostic::warning("WorkdirRelativePath", message, span);
        found.push(warning.hint("start with an absolute WORKDIR"));
    }
}

/// `CopyIgnoredFile`: sources in the context that the ignore file hides.
fn ignored(
    instruction: &Instruction,
    transfer: &Transfer,
    scopes: &Scopes<'_>,
    options: &CheckOptions<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let Some(hides) = options.hides.filter(|_| transfer.flags.from.is_none()) else { return };
    for source in &transfer.sources {
        let Source::Path(raw) = source else { continue };
        let Some(path) = scopes.word(raw).filter(|path| !is_remote(path)) else { continue };
        if hides(&path) {
            let message = format!("the ignore file hides {path}");
            let span = instruction.span_of(raw);
            let warning = Diagnostic::warning("CopyIgnoredFile", message, span);
            found
                .push(warning.hint("add an exception to the ignore file, or leave the source out"));
        }
    }
}

/// Whether a source of ADD is a URL or a git repository.
fn is_remote(path: &str) -> bool {
    path.contains("://") || path.starts_with("git@")
}

/// `MultipleInstructionsDisallowed`: instructions that have no effect because a later one replaces
/// them. A `# check=` comment counts above the later one (BuildKit).
fn repeated(instructions: &[Instruction], found: &mut Vec<Diagnostic>) {
    for name in ["CMD", "ENTRYPOINT", "HEALTHCHECK"] {
        let all: Vec<&Instruction> = instructions.iter().filter(|i| i.name() == name).collect();
        for pair in all.windows(2) {
            let [replaced, later] = pair else { continue };
            let check = lexer::check_comment(&later.comments);
            if check.is_some_and(|check| check.skips(TWICE)) {
                continue;
            }
            let message = format!("only the last {name} of a stage takes effect");
            let warning = Diagnostic::warning(TWICE, message, super::name_span(replaced));
            found.push(warning.hint("remove this one"));
        }
    }
}
