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

use super::ast::{From, Instruction, InstructionKind, Kubefile, Stage};
use super::diagnostic::Diagnostic;
use super::diagnostic::Span;

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
}

/// Returns all findings in file order, except those that `# check=skip=…` suppresses.
/// `directives.check.error` determines whether they fail the build.
pub fn check(kubefile: &Kubefile, options: &CheckOptions<'_>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let parents = parents(kubefile);
    style::check(kubefile, &mut found);
    stages::check(kubefile, &parents, &mut found);
    variables::check(kubefile, &parents, options, &mut found);
    cluster::check(kubefile, options, &mut found);
    cluster::check_archives(kubefile, &parents, &options.archives, &mut found);
    let directive = &kubefile.directives.check;
    found.retain(|diagnostic| {
        let silenced = |rule: &str| directive.skip.iter().any(|s| s.eq_ignore_ascii_case(rule));
        !directive.skip_all && !diagnostic.rule.is_some_and(silenced)
    });
    found.sort_by_key(|diagnostic| (diagnostic.span, diagnostic.rule));
    found
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
