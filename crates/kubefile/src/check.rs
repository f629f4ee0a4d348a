//! Lint for `build --check`: rules with the names that BuildKit uses, and a few additional ones for
//! cluster images.
//!
//! Pure functions: facts that depend on files or images (ignored sources, a base image's
//! environment) are passed in or left to the builder.

mod cluster;
pub mod rules;
mod scope;
mod stages;
mod steps;
mod style;
mod variables;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::ast::{CheckDirective, Instruction, InstructionKind, Kubefile, Stage};
use super::diagnostic::Diagnostic;
use super::diagnostic::Span;
use super::lexer;
use imgctl_base::image::Platform;
use scope::Globals;
use scope::Known;

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

/// What a base image means for the instructions on top.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseImage {
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// Triggers of `ONBUILD`, as its config has them.
    pub triggers: Vec<String>,
    /// Whether it has a shell of its own, from `SHELL`.
    pub has_shell: bool,
    /// Its platform.
    pub platform: Option<Platform>,
}

/// Returns what is known of an image, or `None` if the image is not available.
pub(crate) type BaseImages<'a> = dyn Fn(&str, &Platform) -> Option<BaseImage> + 'a;

/// Facts from the command line and the store that a Kubefile does not contain.
#[derive(Default)]
pub struct CheckOptions<'a> {
    /// Keys given with `--label`.
    pub labels: Vec<String>,
    /// Values given with `--build-arg`.
    pub build_args: BTreeMap<String, String>,
    /// The platform arguments (`TARGETARCH` and the like) and `TARGETSTAGE`, with their values.
    pub platform_args: BTreeMap<String, String>,
    /// The platform that the build is for; the host's if there is none.
    pub platform: Option<Platform>,
    /// The indices of the stages that are built; all of them if there is nothing.
    pub stages: Option<BTreeSet<usize>>,
    /// Base images, by the name in `FROM` and the platform that is wanted.
    pub base_image: Option<&'a BaseImages<'a>>,
    /// Clean paths of the archives in the build context whose images the build embeds.
    pub archives: Vec<String>,
    /// Whether the ignore rules of the context hide a source of `COPY` or `ADD`.
    pub hides: Option<&'a dyn Fn(&str) -> bool>,
}

impl CheckOptions<'_> {
    /// Whether a stage is built.
    fn builds(&self, stage: usize) -> bool {
        self.stages.as_ref().is_none_or(|stages| stages.contains(&stage))
    }
}

/// Returns all findings in file order, except those that `# check=skip=…` suppresses, at the top of the
/// file or above an instruction, and mistakes that only values show. [`fails`] says whether they fail
/// the build.
pub fn check(kubefile: &Kubefile, options: &CheckOptions<'_>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let globals = Globals::new(kubefile, options, &options.build_args);
    let parents = parents(kubefile, &globals);
    let bases = stages::bases(kubefile, &parents, &globals, options, &mut found);
    let known = Known { globals: &globals, parents: &parents, bases: &bases };
    style::check(kubefile, &known, options, &mut found);
    descriptions(kubefile, &mut found);
    stages::check(kubefile, &known, options, &mut found);
    steps::check(kubefile, &known, options, &mut found);
    cluster::check(kubefile, options, &mut found);
    cluster::check_archives(kubefile, &parents, &options.archives, &mut found);
    suppress(kubefile, &mut found);
    found.sort_by_key(|diagnostic| (diagnostic.span, diagnostic.rule));
    found
}

/// Drops the findings that a directive or a comment suppresses. Experimental rules are never
/// suppressed, only not enabled (BuildKit).
fn suppress(kubefile: &Kubefile, found: &mut Vec<Diagnostic>) {
    let directive = &kubefile.directives.check;
    let mut own: Vec<(Span, CheckDirective)> = commented(kubefile)
        .filter_map(|(span, comments)| Some((span, lexer::check_comment(comments)?)))
        .collect();
    own.sort_by_key(|(span, _)| *span);
    found.retain(|diagnostic| {
        let Some(rule) = diagnostic.rule.filter(|rule| *rule != DESCRIPTIONS) else { return true };
        let line = diagnostic.span.line;
        let next = own.partition_point(|(span, _)| span.line <= line);
        let above = next.checked_sub(1).and_then(|index| own.get(index));
        let above =
            above.filter(|(span, _)| span.end_line >= line && !rules::OF_FILE.contains(&rule));
        !directive.skips(rule) && !above.is_some_and(|(_, check)| check.skips(rule))
    });
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

/// An experimental rule.
const DESCRIPTIONS: &str = "InvalidDefinitionDescription";

/// `InvalidDefinitionDescription`, if asked for: a comment right above an `ARG` or a named stage begins
/// with that name.
fn descriptions(kubefile: &Kubefile, found: &mut Vec<Diagnostic>) {
    let of_arg = |instruction: &'_ Instruction| match &instruction.kind {
        InstructionKind::Arg(pairs) => pairs.iter().map(|(name, _)| name.clone()).collect(),
        _ => Vec::new(),
    };
    let stages = kubefile.stages.iter();
    let froms = stages.clone().map(|stage| &stage.from);
    let named = froms.map(|from| (from.name.iter().cloned().collect(), &from.comments, from.span));
    let args = kubefile.global_args.iter().chain(stages.flat_map(|stage| &stage.instructions));
    let args = args.map(|arg| (of_arg(arg), &arg.comments, arg.span));
    for (names, comments, span) in named.chain(args) {
        let names: Vec<String> = names;
        let (Some(example), Some(comment)) = (names.first(), comments.last()) else { continue };
        let first = comment.split(' ').next().unwrap_or_default();
        if comment.is_empty() || names.iter().any(|name| name == first) {
            continue;
        }
        let is_wanted = kubefile.directives.check.enables(DESCRIPTIONS)
            || lexer::check_comment(comments).is_some_and(|check| check.enables(DESCRIPTIONS));
        if is_wanted {
            let message = format!("the comment above does not describe {}", names.join(" and "));
            let hint = format!("begin it with {example}, or add a blank line below it");
            found.push(Diagnostic::warning(DESCRIPTIONS, message, span).hint(hint));
        }
    }
}

/// Returns the place of an instruction's name.
fn name_span(instruction: &Instruction) -> Span {
    let text = &instruction.text;
    let length = text.find(char::is_whitespace).unwrap_or(text.len());
    instruction.map.locate(text, 0, length)
}

/// Returns, for each stage, the index of the earlier stage it builds on, if its `FROM` names one. A later
/// stage hides an earlier one of the same name.
fn parents(kubefile: &Kubefile, globals: &Globals) -> Vec<Option<usize>> {
    let mut names = HashMap::new();
    let mut parents = Vec::new();
    for stage in &kubefile.stages {
        let base = globals.word(&stage.from.image).unwrap_or_else(|| stage.from.image.clone());
        parents.push(names.get(&base.to_lowercase()).copied());
        if let Some(name) = &stage.from.name {
            names.insert(name.clone(), stage.index);
        }
    }
    parents
}

#[cfg(test)]
mod tests;
