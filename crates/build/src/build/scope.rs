//! The variables of a build: `ARG` before and inside stages, `ENV`, predefined variables, and the
//! expansion of raw words.

use std::collections::{BTreeMap, BTreeSet};

use crate::build::file::Source;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Platform;
use imgctl_kubefile::ast::Instruction;
use imgctl_kubefile::diagnostic::Span;
use imgctl_kubefile::diagnostic::{self, Diagnostic};
use imgctl_kubefile::expand;

/// Returns BuildKit's platform arguments: global, but a stage must redeclare them. `stage_name` is
/// the stage that is built.
pub(crate) fn platform_args(
    build: &Platform,
    target: &Platform,
    stage_name: &str,
) -> BTreeMap<String, String> {
    let mut args = BTreeMap::new();
    for (prefix, platform) in [("BUILD", build), ("TARGET", target)] {
        let mut set = |suffix: &str, value: String| args.insert(format!("{prefix}{suffix}"), value);
        set("PLATFORM", platform.to_string());
        set("OS", platform.os.clone());
        set("ARCH", platform.architecture.clone());
        set("VARIANT", platform.variant.clone().unwrap_or_default());
        set("OSVERSION", platform.os_version.clone().unwrap_or_default());
    }
    args.insert("TARGETSTAGE".to_owned(), stage_name.to_owned());
    args
}

/// Arguments that set how something is built, and are no variables of commands (BuildKit).
const FOR_THE_BUILDER: [&str; 2] = ["BUILDKIT_SBOM_SCAN_CONTEXT", "BUILDKIT_SBOM_SCAN_STAGE"];

/// The arguments that a stage has declared. A stage that is FROM this one inherits them (Dockerfile
/// reference, ARG, "Scope").
#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    /// With their values, if any.
    values: BTreeMap<String, Option<String>>,
    /// Those declared after the `ENV` of the same name.
    over_env: BTreeSet<String>,
}

/// The variables of one stage (or of the lines before the first FROM) at a point between two
/// instructions.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    escape: char,
    /// Values from the command line.
    build_args: BTreeMap<String, String>,
    /// Global and platform arguments: values for `ARG NAME` without a default.
    outer: BTreeMap<String, String>,
    args: Args,
    /// The `ENV` so far, in order.
    env: Vec<(String, String)>,
    used: BTreeSet<String>,
}

impl Scope {
    /// Creates a scope with the declarations `args` of the stage below; `env` comes from the base
    /// image.
    pub(super) fn new(
        escape: char,
        build_args: BTreeMap<String, String>,
        outer: BTreeMap<String, String>,
        args: Args,
        env: Vec<(String, String)>,
    ) -> Self {
        Self { escape, build_args, outer, args, env, used: BTreeSet::new() }
    }

    /// Creates the scope of the lines before the first FROM: platform arguments need no declaration
    /// there, and the command line overrides them.
    pub(super) fn global(
        escape: char,
        build_args: &BTreeMap<String, String>,
        mut platform: BTreeMap<String, String>,
    ) -> Self {
        for (name, value) in &mut platform {
            if let Some(given) = build_args.get(name) {
                value.clone_from(given);
            }
        }
        let values = platform.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
        let args = Args { values: values.collect(), ..Args::default() };
        Self::new(escape, build_args.clone(), platform, args, Vec::new())
    }

    /// `ARG NAME[=DEFAULT]`: the command line overrides the default, and the default overrides the
    /// outer scope. Without any of these, an earlier value stays. What it declares counts from here
    /// on, even if ENV has set the name before (as BuildKit does; the Dockerfile reference describes
    /// only the opposite order).
    pub(crate) fn declare(&mut self, name: &str, default: Option<&str>) -> Result<()> {
        let value = if let Some(value) = self.build_args.get(name) {
            Some(value.clone())
        } else if let Some(default) = default {
            Some(self.word(default)?)
        } else {
            self.outer.get(name).cloned()
        };
        self.used.insert(name.to_owned());
        if value.is_some() {
            self.args.over_env.insert(name.to_owned());
            self.args.values.insert(name.to_owned(), value);
        } else {
            self.args.values.entry(name.to_owned()).or_default();
        }
        Ok(())
    }

    /// `ENV NAME=VALUE` with expanded parts: replaces an earlier value in the same position.
    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        self.args.over_env.remove(name);
        match self.env.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.env.push((name.to_owned(), value.to_owned())),
        }
    }

    /// Returns the value of `name`: ENV overrides ARG, unless the ARG comes later.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let env = self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let arg = || self.args.values.get(name).cloned().flatten();
        if self.args.over_env.contains(name) { arg() } else { env.or_else(arg) }
    }

    /// Expands a raw word: replaces variables and removes quotes.
    pub(super) fn word(&self, raw: &str) -> Result<String> {
        expand::expand(raw, self.escape, &|name| self.get(name))
            .map_err(|error| cannot_expand(raw).caused_by(error))
    }

    /// Expands a raw word that may result in several words (`EXPOSE $PORTS`).
    pub(super) fn words(&self, raw: &str) -> Result<Vec<String>> {
        expand::expand_words(raw, self.escape, &|name| self.get(name))
            .map_err(|error| cannot_expand(raw).caused_by(error))
    }

    /// Returns the environment as stored in the image's config.
    pub(super) fn env(&self) -> &[(String, String)] {
        &self.env
    }

    /// Returns declared arguments that have a value and are not overridden by ENV: RUN sees them
    /// before all of ENV, and they enter its cache key.
    pub(crate) fn run_args(&self) -> Vec<(String, String)> {
        let has_env = |name: &String| {
            !self.args.over_env.contains(name) && self.env.iter().any(|(known, _)| known == name)
        };
        let is_for_run = |name: &String| !FOR_THE_BUILDER.contains(&name.as_str());
        let values = self.values().into_iter();
        values.filter(|(name, _)| is_for_run(name) && !has_env(name)).collect()
    }

    /// Returns all declared values: those of the global scope are the outer scope of the stages.
    pub(super) fn values(&self) -> BTreeMap<String, String> {
        let values = self.args.values.iter();
        values.filter_map(|(name, value)| Some((name.clone(), value.clone()?))).collect()
    }

    /// Returns the declarations, for stages that are FROM this one.
    ///
    /// Their `ENV` comes from the image of this one, so it counts over all of them again.
    pub(super) fn into_args(self) -> Args {
        Args { over_env: BTreeSet::new(), ..self.args }
    }

    /// Returns the names declared by `ARG`.
    pub(super) fn declared(&self) -> &BTreeSet<String> {
        &self.used
    }

    /// Returns the escape character of the Kubefile.
    pub(super) fn escape(&self) -> char {
        self.escape
    }
}

fn cannot_expand(raw: &str) -> Error {
    Error::usage(format!("cannot expand `{raw}`")).about(raw)
}

/// Splits the `NAME=VALUE` strings of an image's config.
pub(crate) fn split_env(env: &[String]) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = Vec::with_capacity(env.len());
    for pair in env {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // Of several values, the last one counts, as for a process.
        match pairs.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => value.clone_into(known),
            None => pairs.push((name.to_owned(), value.to_owned())),
        }
    }
    pairs
}

/// Adds the position of an instruction to an error: file, line, column, and a caret under the word
/// that is wrong.
pub(super) fn at(source: &Source, instruction: &Instruction, error: Error) -> Error {
    let span = instruction.span_of(error.word().unwrap_or_default());
    placed(source, span, instruction.name(), error)
}

/// Adds the position `span`, where `what` failed, to an error.
pub(crate) fn placed(source: &Source, span: Span, what: &str, error: Error) -> Error {
    let found = Diagnostic::error(error.message(), span);
    let shown = diagnostic::render(&[found], &source.name, &source.bytes, false);
    let message = format!("{}:{}: {what} failed", source.name, span.line);
    // Without the excerpt, but with the causes: the reader of a place sees nothing else.
    let mut told = Diagnostic::error(error.to_string(), span);
    told.hint = error.hints().first().map(|hint| (*hint).to_owned());
    let place = source.place(&told);
    error.retold(message).lines(shown.lines()).at(place)
}
