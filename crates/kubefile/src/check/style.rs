//! Rules for the style of single instructions.

use super::scope::Known;
use super::{
    CheckOptions, Diagnostic, Instruction, InstructionKind, Kubefile, Stage, cluster, name_span,
};
use crate::ast::CommandForm;
use crate::instruction::legacy_pair;
use crate::words;

/// Segments of a variable's name that indicate a secret.
const SECRET_WORDS: [&str; 10] = [
    "apikey",
    "auth",
    "credential",
    "credentials",
    "key",
    "password",
    "passwd",
    "pword",
    "secret",
    "token",
];

/// Segments that say that such a name is none.
const HARMLESS_WORDS: [&str; 3] = ["file", "public", "version"];

pub(super) fn check(
    kubefile: &Kubefile,
    known: &Known<'_>,
    options: &CheckOptions<'_>,
    found: &mut Vec<Diagnostic>,
) {
    casing(kubefile, found);
    for span in &kubefile.empty_continuations {
        let message = "an instruction continues over a blank line";
        let warning = Diagnostic::warning("NoEmptyContinuation", message, *span);
        found.push(warning.hint("remove the blank line, or make it a comment"));
    }
    let in_cluster = cluster::is_cluster_image(kubefile);
    // Whether a SHELL is in effect at the end of each stage.
    let mut shells: Vec<bool> = Vec::new();
    for stage in &kubefile.stages {
        let is_built = options.builds(stage.index);
        for instruction in &stage.instructions {
            one(kubefile.directives.escape, instruction, is_built, found);
        }
        let parent = known.parents.get(stage.index).copied().flatten();
        let base = known.bases.get(stage.index).and_then(Option::as_ref);
        let has_shell = parent.and_then(|parent| shells.get(parent).copied());
        let has_shell = has_shell.unwrap_or_else(|| base.is_some_and(|base| base.has_shell));
        let mut warnings = Vec::new();
        shells.push(json_arguments(stage, has_shell, &mut warnings));
        if is_built && !in_cluster {
            found.append(&mut warnings);
        }
    }
}

fn one(escape: char, instruction: &Instruction, is_built: bool, found: &mut Vec<Diagnostic>) {
    match &instruction.kind {
        InstructionKind::Maintainer(name) => found.push(
            Diagnostic::warning(
                "MaintainerDeprecated",
                "MAINTAINER is deprecated",
                name_span(instruction),
            )
            .hint(format!("write LABEL org.opencontainers.image.authors=\"{name}\"")),
        ),
        InstructionKind::Env(_) | InstructionKind::Label(_) if is_built => {
            let (_, rest) = words::split_first(&instruction.text);
            if let Some((key, _)) = legacy_pair(rest, escape) {
                let name = instruction.name();
                found.push(
                    Diagnostic::warning(
                        "LegacyKeyValueFormat",
                        format!("{name} in the form \"key value\""),
                        instruction.span_of(rest),
                    )
                    .hint(format!("write {name} {key}=VALUE")),
                );
            }
        }
        _ => {}
    }
}

/// `SecretsUsedInArgOrEnv` for one name, which is written as `raw`.
pub(super) fn secret(
    instruction: &Instruction,
    raw: &str,
    name: &str,
    found: &mut Vec<Diagnostic>,
) {
    let lower = name.to_lowercase();
    let mut segments = lower.split('_');
    let is_secret = segments.clone().any(|segment| SECRET_WORDS.contains(&segment));
    if is_secret && !segments.any(|segment| HARMLESS_WORDS.contains(&segment)) {
        let what = instruction.name();
        let message =
            format!("{what} {name} looks like a secret, and would be readable in the image");
        let span = instruction.span_of(raw);
        let warning = Diagnostic::warning("SecretsUsedInArgOrEnv", message, span);
        found.push(warning.hint("use RUN --mount=type=secret for what the build needs"));
    }
}

/// Reports the shell form, unless a SHELL before it indicates that it is intended. Returns whether
/// there is one at the end of the stage.
fn json_arguments(stage: &Stage, has_shell: bool, found: &mut Vec<Diagnostic>) -> bool {
    let mut has_shell = has_shell;
    for instruction in &stage.instructions {
        has_shell |= matches!(instruction.kind, InstructionKind::Shell(_));
        if !has_shell
            && let InstructionKind::Cmd(CommandForm::Shell(_))
            | InstructionKind::Entrypoint(CommandForm::Shell(_)) = &instruction.kind
        {
            found.push(
                Diagnostic::warning(
                    "JSONArgsRecommended",
                    format!(
                        "{} runs in a shell, which does not pass on signals such as stop",
                        instruction.name()
                    ),
                    name_span(instruction),
                )
                .hint("write it in the JSON form: [\"command\", \"argument\"]"),
            );
        }
    }
    has_shell
}

/// Reports instruction names that differ from the majority, which is either upper or lower case.
fn casing(kubefile: &Kubefile, found: &mut Vec<Diagnostic>) {
    let mut names = Vec::new();
    for stage in &kubefile.stages {
        let name = first_word(&stage.from.text);
        names.push((name, stage.from.map.locate(&stage.from.text, 0, name.len())));
        for instruction in &stage.instructions {
            names.push((first_word(&instruction.text), name_span(instruction)));
        }
    }
    let lower = names.iter().filter(|(name, _)| *name == name.to_lowercase()).count();
    let upper = names.iter().filter(|(name, _)| *name == name.to_uppercase()).count();
    let (case, wanted): (_, fn(&str) -> String) = if lower > upper {
        ("lower", |name| name.to_lowercase())
    } else {
        ("upper", |name| name.to_uppercase())
    };
    for (name, span) in names {
        if name != wanted(name) {
            let message = format!("{name} is not in {case} case like most instructions here");
            let warning = Diagnostic::warning("ConsistentInstructionCasing", message, span);
            found.push(warning.hint(format!("write {}", wanted(name))));
        }
    }
}

fn first_word(text: &str) -> &str {
    words::split_first(text).0
}
