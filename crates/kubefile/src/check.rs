//! Lint for `build --check`: rules with the names that BuildKit uses, and a few additional ones for
//! cluster images.
//!
//! Pure functions: facts that depend on files or images (ignored sources, a base image's
//! environment) are passed in or left to the builder.

mod cluster;
pub mod rules;
mod stages;
mod style;
mod variables;

use std::collections::HashMap;

use super::ast::{CheckDirective, From, Instruction, InstructionKind, Kubefile, Source, Stage};
use super::diagnostic::Diagnostic;
use super::diagnostic::Span;
use super::lexer;

/// Arguments that, given with `--build-arg`, are available in every `RUN` without a declaration and
/// affect neither cache keys nor history (Dockerfile reference, "Predefined ARGs").
pub const PROXY_ARGS: [&str; 10] = [
    "ALL_PROXY",
    "FTP_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "all_proxy",
    "ftp_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Returns the names of an image's environment variables, or `None` if the image is not available.
pub(crate) type BaseEnvironment<'a> = dyn Fn(&str) -> Option<Vec<String>> + 'a;

/// Facts from the command line and the store that a Kubefile does not contain.
#[derive(Default)]
pub struct CheckOptions<'a> {
    /// Keys given with `--label`.
    pub labels: Vec<String>,
    /// Environment of base images; called with the image as written in the `FROM` line.
    pub base_environment: Option<&'a BaseEnvironment<'a>>,
    /// Clean paths of the archives in the build context whose images the build embeds.
    pub archives: Vec<String>,
    /// Whether the ignore rules of the context hide a path.
    pub is_ignored: Option<&'a dyn Fn(&str) -> bool>,
}

/// Returns all findings in file order, except those that `# check=skip=…` suppresses, at the top of the
/// file or right above an instruction. [`fails`] says whether they fail the build.
pub fn check(kubefile: &Kubefile, options: &CheckOptions<'_>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let parents = parents(kubefile);
    style::check(kubefile, &parents, &mut found);
    descriptions(kubefile, &mut found);
    ignored(kubefile, options, &mut found);
    stages::check(kubefile, &parents, &mut found);
    variables::check(kubefile, &parents, options, &mut found);
    cluster::check(kubefile, options, &mut found);
    cluster::check_archives(kubefile, &parents, &options.archives, &mut found);
    let directive = &kubefile.directives.check;
    let own: Vec<(Span, CheckDirective)> = commented(kubefile)
        .flat_map(|(span, comments)| {
            comments.iter().filter_map(move |text| Some((span, lexer::check_comment(text)?)))
        })
        .collect();
    found.retain(|diagnostic| {
        let line = diagnostic.span.line;
        let above = own.iter().filter(|(span, _)| (span.line..=span.end_line).contains(&line));
        let mut directives = above.map(|(_, check)| check).chain([directive]);
        !diagnostic.rule.is_some_and(|rule| directives.any(|check| check.skips(rule)))
    });
    found.sort_by_key(|diagnostic| (diagnostic.span, diagnostic.rule));
    found
}

/// Whether findings fail the build: `# check=error=true` asks for it. Rules that only imgctl has do not
/// count, since the file may come from those who cannot know them.
pub fn fails(check: &CheckDirective, findings: &[Diagnostic]) -> bool {
    let is_shared = |rule: &str| !rules::OWN.contains(&rule);
    check.error && findings.iter().any(|finding| finding.rule.is_some_and(is_shared))
}

/// Returns the place of every instruction with the comments above it.
fn commented(kubefile: &Kubefile) -> impl Iterator<Item = (Span, &[String])> {
    let globals = kubefile.global_args.iter().map(|one| (one.span, &one.comments[..]));
    let stages = kubefile.stages.iter().flat_map(|stage| {
        let all = stage.instructions.iter().map(|one| (one.span, &one.comments[..]));
        [(stage.from.span, &stage.from.comments[..])].into_iter().chain(all)
    });
    globals.chain(stages)
}

/// `InvalidDefinitionDescription`, if asked for: a comment above an `ARG` or a named stage begins with
/// that name.
fn descriptions(kubefile: &Kubefile, found: &mut Vec<Diagnostic>) {
    const RULE: &str = "InvalidDefinitionDescription";
    let check = &kubefile.directives.check;
    let is_wanted = |rule: &String| rule.eq_ignore_ascii_case(RULE);
    if !check.experimental_all && !check.experimental.iter().any(is_wanted) {
        return;
    }
    let of_arg = |instruction: &'_ Instruction| match &instruction.kind {
        InstructionKind::Arg(pairs) => pairs.iter().map(|(name, _)| name.clone()).collect(),
        _ => Vec::new(),
    };
    let stages = kubefile.stages.iter();
    let froms = stages.clone().map(|stage| &stage.from);
    let named =
        froms.map(|from| (from.written_name.iter().cloned().collect(), &from.comments, from.span));
    let args = kubefile.global_args.iter().chain(stages.flat_map(|stage| &stage.instructions));
    let args = args.map(|arg| (of_arg(arg), &arg.comments, arg.span));
    for (names, comments, span) in named.chain(args) {
        let names: Vec<String> = names;
        let Some(comment) = comments.last().filter(|comment| !comment.is_empty()) else { continue };
        let first = comment.split(' ').next().unwrap_or_default();
        let Some(example) = names.first().filter(|_| !names.iter().any(|name| name == first))
        else {
            continue;
        };
        if lexer::check_comment(comment).is_none() {
            let message = format!("the comment above does not describe {}", names.join(" and "));
            let hint = format!("begin it with {example}, or add a blank line below it");
            found.push(Diagnostic::warning(RULE, message, span).hint(hint));
        }
    }
}

/// `CopyIgnoredFile`: sources in the context that the ignore file hides.
fn ignored(kubefile: &Kubefile, options: &CheckOptions<'_>, found: &mut Vec<Diagnostic>) {
    let Some(is_ignored) = options.is_ignored else { return };
    for instruction in kubefile.stages.iter().flat_map(|stage| &stage.instructions) {
        let (InstructionKind::Copy(transfer) | InstructionKind::Add(transfer)) = &instruction.kind
        else {
            continue;
        };
        if transfer.flags.from.is_some() {
            continue;
        }
        for source in &transfer.sources {
            let Source::Path(word) = source else { continue };
            let path = word.trim_matches(['"', '\'']).trim_start_matches(['/', '.']);
            let is_plain = !word.contains("://") && !word.contains(['$', '*', '?', '[', '\\']);
            if is_plain && !path.is_empty() && is_ignored(path.trim_end_matches('/')) {
                let message = format!("the ignore file hides {word}");
                found.push(
                    Diagnostic::warning("CopyIgnoredFile", message, instruction.span_of(word))
                        .hint(format!("add !{path} to the ignore file, or leave the source out")),
                );
            }
        }
    }
}

/// Returns the place of an instruction's name.
fn name_span(instruction: &Instruction) -> Span {
    let text = &instruction.text;
    let length = text.find(char::is_whitespace).unwrap_or(text.len());
    instruction.map.locate(text, 0, length)
}

/// Returns, for each stage, the index of the earlier stage it builds on, if its `FROM` names one
/// without variables. A later stage hides an earlier one of the same name.
fn parents(kubefile: &Kubefile) -> Vec<Option<usize>> {
    let mut names = HashMap::new();
    let mut parents = Vec::new();
    for stage in &kubefile.stages {
        parents.push(names.get(&stage.from.image.to_lowercase()).copied());
        if let Some(name) = &stage.from.name {
            names.insert(name.clone(), stage.index);
        }
    }
    parents
}

fn is_scratch(from: &From) -> bool {
    from.image == "scratch"
}

#[cfg(test)]
mod tests;
