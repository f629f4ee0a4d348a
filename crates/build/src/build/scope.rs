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

/// Returns BuildKit's platform arguments: global, but a stage must redeclare them.
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

/// The variables of one stage (or of the lines before the first FROM) at a point between two
/// instructions.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    escape: char,
    /// Values from the command line.
    build_args: BTreeMap<String, String>,
    /// Global and platform arguments: values for `ARG NAME` without a default.
    outer: BTreeMap<String, String>,
    /// Arguments declared in this scope, with their values, if any.
    args: BTreeMap<String, Option<String>>,
    /// The `ENV` so far, in order.
    env: Vec<(String, String)>,
    used: BTreeSet<String>,
}

impl Scope {
    /// Creates a scope without declarations; `env` comes from the base image.
    pub(super) fn new(
        escape: char,
        build_args: BTreeMap<String, String>,
        outer: BTreeMap<String, String>,
        env: Vec<(String, String)>,
    ) -> Self {
        Self { escape, build_args, outer, args: BTreeMap::new(), env, used: BTreeSet::new() }
    }

    /// Creates the scope of the lines before the first FROM: platform arguments need no declaration
    /// there.
    pub(super) fn global(
        escape: char,
        build_args: &BTreeMap<String, String>,
        platform: BTreeMap<String, String>,
    ) -> Self {
        let mut scope = Self::new(escape, build_args.clone(), platform.clone(), Vec::new());
        scope.args = platform.into_iter().map(|(name, value)| (name, Some(value))).collect();
        scope
    }

    /// `ARG NAME[=DEFAULT]`: the command line overrides the default, and the default overrides the
    /// outer scope.
    pub(crate) fn declare(&mut self, name: &str, default: Option<&str>) -> Result<()> {
        let value = if let Some(value) = self.build_args.get(name) {
            Some(value.clone())
        } else if let Some(default) = default {
            Some(self.word(default)?)
        } else {
            self.outer.get(name).cloned()
        };
        self.used.insert(name.to_owned());
        self.args.insert(name.to_owned(), value);
        Ok(())
    }

    /// `ENV NAME=VALUE` with expanded parts: replaces an earlier value in the same position.
    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        match self.env.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.env.push((name.to_owned(), value.to_owned())),
        }
    }

    /// Returns the value of `name`: ENV overrides ARG.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let env = self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        env.or_else(|| self.args.get(name).cloned().flatten())
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

    /// Returns declared arguments that have a value and are not overridden by ENV: RUN sees them in
    /// addition to ENV, and they enter its cache key.
    pub(crate) fn run_args(&self) -> Vec<(String, String)> {
        let has_env = |name: &str| self.env.iter().any(|(known, _)| known == name);
        self.args
            .iter()
            .filter(|(name, _)| !has_env(name))
            .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
            .collect()
    }

    /// Returns all declared values: those of the global scope are the outer scope of the stages.
    pub(super) fn values(&self) -> BTreeMap<String, String> {
        self.args.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?))).collect()
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
    env.iter()
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        })
        .collect()
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
