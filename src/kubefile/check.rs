//! Lint for `build --check`: rules named as BuildKit names them, and a few of our own for
//! cluster images.
//!
//! Pure: what depends on files or images (ignored sources, a base image's environment) is told
//! from outside or left to the builder.

mod archives;
mod cluster;
mod stages;
mod style;
mod variables;

use std::collections::HashMap;

use super::ast::{From, Instruction, InstructionKind, Kubefile, Stage};
use super::diagnostic::Diagnostic;
use super::span::Span;

/// Every rule, in alphabetical order.
#[cfg(test)]
pub(crate) const RULES: [&str; 23] = [
    "ClusterImageType",
    "CommandElementsAreCommands",
    "ConsistentInstructionCasing",
    "DuplicateStageName",
    "EmbeddedArchiveCopied",
    "ExposeProtoCasing",
    "FromAsCasing",
    "FromPlatformFlagConstDisallowed",
    "InvalidDefaultArgInFrom",
    "JSONArgsRecommended",
    "LegacyKeyValueFormat",
    "MaintainerDeprecated",
    "MultipleInstructionsDisallowed",
    "NoEmptyContinuation",
    "RedundantTargetPlatform",
    "RelativeCopyPath",
    "ReservedStageName",
    "RootfsVersionLabel",
    "SecretsUsedInArgOrEnv",
    "StageNameCasing",
    "UndefinedArgInFrom",
    "UndefinedVar",
    "WorkdirRelativePath",
];

/// The names of the environment variables of an image, `None` if that image is not at hand.
pub(crate) type BaseEnvironment<'a> = dyn Fn(&str) -> Option<Vec<String>> + 'a;

/// What the command line and the store know and a Kubefile does not say.
#[derive(Default)]
pub(crate) struct CheckOptions<'a> {
    /// Keys given with `--label`.
    pub(crate) labels: Vec<String>,
    /// What base images set; asked with the image as the `FROM` line names it.
    pub(crate) base_environment: Option<&'a BaseEnvironment<'a>>,
    /// Archives of the context whose images the build embeds, as clean paths.
    pub(crate) archives: Vec<String>,
}

/// All findings, in the order of the file, without those that `# check=skip=…` silences.
/// Whether they fail the build is `directives.check.error`'s to say.
pub(crate) fn check(kubefile: &Kubefile, options: &CheckOptions<'_>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let parents = parents(kubefile);
    style::check(kubefile, &mut found);
    stages::check(kubefile, &parents, &mut found);
    variables::check(kubefile, &parents, options, &mut found);
    cluster::check(kubefile, options, &mut found);
    archives::check(kubefile, &parents, &options.archives, &mut found);
    let directive = &kubefile.directives.check;
    found.retain(|diagnostic| {
        let silenced = |rule: &str| directive.skip.iter().any(|s| s.eq_ignore_ascii_case(rule));
        !directive.skip_all && !diagnostic.rule.is_some_and(silenced)
    });
    found.sort_by_key(|diagnostic| (diagnostic.span, diagnostic.rule));
    found
}

/// The place of an instruction's name.
fn name_span(instruction: &Instruction) -> Span {
    let text = &instruction.text;
    let length = text.find(char::is_whitespace).unwrap_or(text.len());
    instruction.map.locate(text, 0, length)
}

/// For each stage the index of the earlier stage it builds on, as far as its `FROM` says so
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
