//! Rules for `FROM`, stages and their working directories.

use std::collections::{HashMap, HashSet};

use super::{Diagnostic, Instruction, InstructionKind, Kubefile, Stage, is_scratch};
use crate::ast::From;
use crate::expand;
use crate::words;
use imgctl_base::suggest::closest;

/// Arguments visible in every `FROM` line; a stage imports one with `ARG NAME` (Dockerfile
/// reference, "Automatic platform ARGs in the global scope").
const PLATFORM_ARGS: [&str; 10] = [
    "BUILDPLATFORM",
    "BUILDOS",
    "BUILDOSVERSION",
    "BUILDARCH",
    "BUILDVARIANT",
    "TARGETPLATFORM",
    "TARGETOS",
    "TARGETOSVERSION",
    "TARGETARCH",
    "TARGETVARIANT",
];

/// Names that have another meaning for builders.
const RESERVED: [&str; 2] = ["scratch", "context"];

pub(super) fn check(kubefile: &Kubefile, parents: &[Option<usize>], found: &mut Vec<Diagnostic>) {
    let mut names: HashSet<&str> = HashSet::new();
    let defaults = defaults(kubefile);
    // Whether the working directory at the end of each stage is known, and whether a WORKDIR set it.
    let mut directories_at_end: Vec<(bool, bool)> = Vec::new();
    for stage in &kubefile.stages {
        if let Some(name) = &stage.from.name {
            let duplicate = !names.insert(name);
            stage_name(&stage.from, name, duplicate, found);
        }
        as_casing(&stage.from, found);
        platform(kubefile.directives.escape, &stage.from, found);
        arguments(kubefile.directives.escape, &defaults, &stage.from, found);
        let at_start = match parents.get(stage.index).copied().flatten() {
            Some(parent) => directories_at_end.get(parent).copied().unwrap_or_default(),
            None => (is_scratch(&stage.from), false),
        };
        directories_at_end.push(directories(stage, at_start, found));
    }
}

fn stage_name(from: &From, name: &str, duplicate: bool, found: &mut Vec<Diagnostic>) {
    let written = from.written_name.as_deref().unwrap_or(name);
    // The name is the last word; the image's name may contain the same text.
    let start = from.text.len() - written.len();
    let span = from.map.locate(&from.text, start, from.text.len());
    if written != name {
        let message = format!("the stage name {written} is not in lower case");
        let warning = Diagnostic::warning("StageNameCasing", message, span);
        found.push(warning.hint(format!("write {name}")));
    }
    if duplicate {
        let message = format!("an earlier stage is already named {name}");
        let warning = Diagnostic::warning("DuplicateStageName", message, span);
        found.push(warning.hint("give each stage a unique name"));
    }
    if RESERVED.contains(&name) {
        found.push(Diagnostic::warning(
            "ReservedStageName",
            format!("{name} is reserved; do not use it as the name of a stage"),
            span,
        ));
    }
}

fn as_casing(from: &From, found: &mut Vec<Diagnostic>) {
    let Some(name) = &from.written_name else {
        return;
    };
    let head = from.text.strip_suffix(name.as_str()).unwrap_or_default().trim_end();
    let (Some(keyword), Some(word)) =
        (head.split_whitespace().next(), head.get(head.len().saturating_sub(2)..))
    else {
        return;
    };
    let lower = keyword == keyword.to_lowercase();
    // ConsistentInstructionCasing reports a keyword in both cases.
    if !lower && keyword != keyword.to_uppercase() {
        return;
    }
    let wanted = if lower { "as" } else { "AS" };
    if word != wanted {
        let span = from.map.locate(&from.text, head.len() - word.len(), head.len());
        let message = format!("{word} is not in the same case as {keyword}");
        let warning = Diagnostic::warning("FromAsCasing", message, span);
        found.push(warning.hint(format!("write {wanted}")));
    }
}

fn platform(escape: char, from: &From, found: &mut Vec<Diagnostic>) {
    let Some(platform) = &from.platform else {
        return;
    };
    if platform == "$TARGETPLATFORM" || platform == "${TARGETPLATFORM}" {
        found.push(
            Diagnostic::warning(
                "RedundantTargetPlatform",
                "the target platform is the default",
                from.span_of(platform),
            )
            .hint("remove --platform"),
        );
    } else if expand::variables(platform, escape).is_ok_and(|used| used.is_empty())
        && !is_named_after(from, platform)
    {
        found.push(
            Diagnostic::warning(
                "FromPlatformFlagConstDisallowed",
                format!("--platform={platform} applies whatever the target platform is"),
                from.span_of(platform),
            )
            .hint("remove it, or use $BUILDPLATFORM"),
        );
    }
}

/// Whether the name of a stage contains the system or the architecture that its platform fixes.
fn is_named_after(from: &From, platform: &str) -> bool {
    let name = from.name.as_deref().unwrap_or_default();
    platform.to_lowercase().split('/').take(2).any(|part| !part.is_empty() && name.contains(part))
}

/// The global arguments with their defaults, if any.
type Defaults = HashMap<String, Option<String>>;

fn defaults(kubefile: &Kubefile) -> Defaults {
    let mut defaults = Defaults::new();
    for (key, value) in kubefile.global_args.iter().flat_map(pairs) {
        let value = value.as_ref().and_then(|raw| {
            let lookup = |name: &str| defaults.get(name).cloned().flatten();
            expand::expand(raw, kubefile.directives.escape, &lookup).ok()
        });
        defaults.insert(key.clone(), value);
    }
    defaults
}

/// Checks the variables of the `FROM` line, where only global arguments are available.
fn arguments(escape: char, defaults: &Defaults, from: &From, found: &mut Vec<Diagnostic>) {
    for raw in [Some(&from.image), from.platform.as_ref()].into_iter().flatten() {
        for used in expand::variables(raw, escape).unwrap_or_default() {
            let known =
                defaults.contains_key(&used.name) || PLATFORM_ARGS.contains(&used.name.as_str());
            if known || used.optional {
                continue;
            }
            let diagnostic = Diagnostic::warning(
                "UndefinedArgInFrom",
                format!("{} is not declared before the first FROM", used.name),
                from.span_of(&used.name),
            );
            let names = defaults.keys().map(String::as_str).chain(PLATFORM_ARGS);
            found.push(match closest(&used.name, names) {
                Some(name) => diagnostic.hint(format!("did you mean {name}?")),
                None => diagnostic.hint(format!("add ARG {} at the top of the file", used.name)),
            });
        }
    }
    let lookup = |name: &str| {
        let platform = PLATFORM_ARGS.contains(&name).then(|| "x".to_owned());
        defaults.get(name).cloned().flatten().or(platform)
    };
    let is_variable = from.image.contains('$');
    if is_variable
        && expand::expand(&from.image, escape, &lookup).is_ok_and(|image| !is_image(&image))
    {
        found.push(
            Diagnostic::warning(
                "InvalidDefaultArgInFrom",
                format!("without --build-arg, {} is not the name of an image", from.image),
                from.span_of(&from.image),
            )
            .hint("give the ARG a valid default"),
        );
    }
}

fn pairs(instruction: &Instruction) -> &[(String, Option<String>)] {
    match &instruction.kind {
        InstructionKind::Arg(args) => args,
        _ => &[],
    }
}

/// Returns whether `name` looks like an image name; detects the gaps left by empty variables.
fn is_image(name: &str) -> bool {
    let edge = |c: char| matches!(c, ':' | '@' | '/');
    !name.is_empty()
        && !name.starts_with(edge)
        && !name.ends_with(edge)
        && !["//", "/:", ":/", ":@", "/@", "::"].iter().any(|bad| name.contains(bad))
        && !name.contains(words::is_blank)
}

/// Reports relative paths whose meaning depends on the base image; returns whether the working
/// directory is known at the end of the stage, and whether a WORKDIR has set it.
fn directories(
    stage: &Stage,
    (mut known, mut is_set): (bool, bool),
    found: &mut Vec<Diagnostic>,
) -> (bool, bool) {
    for instruction in &stage.instructions {
        match &instruction.kind {
            InstructionKind::Workdir(path) => {
                let absolute = path.trim_start_matches(['"', '\'']).starts_with(['/', '$']);
                // Of an empty image, too (BuildKit).
                if !absolute && !is_set {
                    found.push(
                        Diagnostic::warning(
                            "WorkdirRelativePath",
                            format!("the location of {path} depends on the base image"),
                            instruction.span_of(path),
                        )
                        .hint("start with an absolute WORKDIR"),
                    );
                }
                // One warning per stage is enough.
                (known, is_set) = (true, true);
            }
            InstructionKind::Copy(transfer) | InstructionKind::Add(transfer) if !known => {
                let dest = &transfer.dest;
                if !dest.trim_start_matches(['"', '\'']).starts_with(['/', '$']) {
                    found.push(
                        Diagnostic::warning(
                            "RelativeCopyPath",
                            format!("the location of {dest} depends on the base image"),
                            instruction.map.locate(
                                &instruction.text,
                                instruction.text.rfind(dest.as_str()).unwrap_or(0),
                                instruction
                                    .text
                                    .rfind(dest.as_str())
                                    .map_or(0, |at| at + dest.len()),
                            ),
                        )
                        .hint("set WORKDIR first, or write an absolute path"),
                    );
                }
            }
            _ => {}
        }
    }
    (known, is_set)
}
