//! The variables of a stage between two instructions, as far as they are known without a build. Must
//! not report anything.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::{BaseImage, CheckOptions};
use crate::ast::{Instruction, InstructionKind, Kubefile};
use crate::expand::{self, ExpandError, Lookup};
use crate::parser::parse_instruction;

/// Arguments visible in every `FROM` line; a stage imports one with `ARG NAME` (Dockerfile
/// reference, "Automatic platform ARGs in the global scope").
const PREDEFINED: [&str; 11] = [
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
    "TARGETSTAGE",
];

/// What is known of each stage when its first instruction begins.
pub(super) struct Known<'a> {
    pub(super) globals: &'a Globals,
    /// The earlier stages that the stages build on.
    pub(super) parents: &'a [Option<usize>],
    /// The images that the stages build on.
    pub(super) bases: &'a [Option<BaseImage>],
}

/// Longer values count as unknown, so that `ENV a=$a$a` remains small.
const MAX_VALUE: usize = 512;

/// The value of a variable that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Known(String),
    Unknown,
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Self {
        value.filter(|value| value.len() <= MAX_VALUE).map_or(Self::Unknown, Self::Known)
    }
}

/// Expands with `run`; `None` if it is wrong or depends on a value that is not known.
fn known<T>(
    look: &dyn Fn(&str) -> Option<Value>,
    run: impl FnOnce(&Lookup<'_>) -> Result<T, ExpandError>,
) -> Option<T> {
    let is_known = Cell::new(true);
    let expanded = run(&|name| match look(name)? {
        Value::Known(value) => Some(value),
        Value::Unknown => {
            is_known.set(false);
            None
        }
    });
    expanded.ok().filter(|_| is_known.get())
}

/// The arguments of the lines before the first `FROM`.
#[derive(Debug)]
pub(super) struct Globals {
    escape: char,
    values: BTreeMap<String, Value>,
    /// Those without a value, too.
    declared: BTreeSet<String>,
}

impl Globals {
    /// Evaluates the arguments with the values `given` on the command line.
    pub(super) fn new(
        kubefile: &Kubefile,
        options: &CheckOptions<'_>,
        given: &BTreeMap<String, String>,
    ) -> Self {
        let predefined = PREDEFINED.map(|name| {
            let value = given.get(name).or_else(|| options.platform_args.get(name));
            (name.to_owned(), Value::from(value.cloned()))
        });
        let mut globals = Self {
            escape: kubefile.directives.escape,
            declared: PREDEFINED.map(str::to_owned).into(),
            values: predefined.into(),
        };
        for (name, default) in kubefile.global_args.iter().flat_map(arguments) {
            let value = match (given.get(name), default) {
                (Some(value), _) => Some(Value::from(Some(value.clone()))),
                (None, Some(default)) => Some(Value::from(globals.word(default))),
                (None, None) => None,
            };
            globals.declared.insert(name.clone());
            globals.values.extend(value.map(|value| (name.clone(), value)));
        }
        globals
    }

    /// Whether an `ARG` declares `name`, or the language.
    pub(super) fn declares(&self, name: &str) -> bool {
        self.declared.contains(name)
    }

    /// Returns the declared names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.declared.iter().map(String::as_str)
    }

    /// Returns the value of a raw word, if it is known.
    pub(super) fn word(&self, raw: &str) -> Option<String> {
        known(&|name| self.values.get(name).cloned(), |lookup| {
            expand::expand(raw, self.escape, lookup)
        })
    }
}

/// Returns the names and raw defaults of an `ARG`.
fn arguments(instruction: &Instruction) -> &[(String, Option<String>)] {
    match &instruction.kind {
        InstructionKind::Arg(arguments) => arguments,
        _ => &[],
    }
}

/// What one stage adds to the variables of the stage below.
#[derive(Debug, Default)]
struct Level {
    values: BTreeMap<String, Value>,
    /// Arguments, also those without a value.
    declared: BTreeSet<String>,
    /// What stages that build on this one begin with.
    triggers: Vec<Instruction>,
    /// The stage that this stage builds on.
    parent: Option<usize>,
    /// Whether the base image may set variables that are unknown here.
    open: bool,
}

/// The variables of the current stage, and of all earlier ones at their ends.
#[derive(Debug)]
pub(super) struct Scopes<'a> {
    escape: char,
    given: &'a BTreeMap<String, String>,
    globals: &'a Globals,
    levels: Vec<Level>,
}

impl<'a> Scopes<'a> {
    pub(super) fn new(globals: &'a Globals, given: &'a BTreeMap<String, String>) -> Self {
        Self { escape: globals.escape, given, globals, levels: Vec::new() }
    }

    /// Begins the next stage, on an earlier one or on the image `base` (`None` if it is unknown).
    pub(super) fn enter(&mut self, parent: Option<usize>, base: Option<&BaseImage>) {
        let mut level = Level { parent, open: base.is_none(), ..Level::default() };
        match parent.and_then(|parent| self.levels.get(parent)) {
            Some(below) => level.open = below.open,
            None => {
                // Every builder sets a PATH.
                level.values.insert("PATH".to_owned(), Value::Unknown);
                let env = base.iter().flat_map(|base| &base.env);
                level.values.extend(
                    env.map(|(name, value)| (name.clone(), Value::from(Some(value.clone())))),
                );
            }
        }
        self.levels.push(level);
        let below = parent.and_then(|parent| self.levels.get(parent));
        let triggers = match below {
            Some(below) => below.triggers.clone(),
            None => {
                let texts = base.iter().flat_map(|base| &base.triggers);
                texts.filter_map(|text| parse_instruction(text, self.escape).ok()).collect()
            }
        };
        for trigger in triggers {
            if let InstructionKind::Arg(arguments) = &trigger.kind {
                for (name, default) in arguments {
                    self.declare(name, default.as_deref());
                }
            }
            self.apply(&trigger);
        }
    }

    /// Takes over what an instruction sets. The arguments of one `ARG` are set one by one; see
    /// [`Self::declare`].
    pub(super) fn apply(&mut self, instruction: &Instruction) {
        if let InstructionKind::Onbuild(trigger) = &instruction.kind
            && let Some(level) = self.levels.last_mut()
        {
            level.triggers.push((*trigger.instruction).clone());
        }
        let InstructionKind::Env(pairs) = &instruction.kind else { return };
        let expanded: Vec<(String, Value)> = pairs
            .iter()
            .filter_map(|(name, value)| Some((self.word(name)?, self.word(value).into())))
            .collect();
        if let Some(level) = self.levels.last_mut() {
            level.values.extend(expanded);
        }
    }

    /// Takes over an argument.
    pub(super) fn declare(&mut self, name: &str, default: Option<&str>) {
        let value = match (self.given.get(name), default) {
            (Some(value), _) => Some(Value::from(Some(value.clone()))),
            (None, Some(default)) => Some(Value::from(self.word(default))),
            (None, None) => self.globals.values.get(name).cloned(),
        };
        if let Some(level) = self.levels.last_mut() {
            level.declared.insert(name.to_owned());
            level.values.extend(value.map(|value| (name.to_owned(), value)));
        }
    }

    /// Whether the default of an argument counts.
    pub(super) fn uses_default(&self, name: &str) -> bool {
        !self.given.contains_key(name)
    }

    /// The current stage, and those that it builds on.
    fn chain(&self) -> impl Iterator<Item = &Level> {
        std::iter::successors(self.levels.last(), |level| self.levels.get(level.parent?))
    }

    /// Whether the base image may set variables that are unknown here.
    pub(super) fn is_open(&self) -> bool {
        self.levels.last().is_some_and(|level| level.open)
    }

    /// Whether an instruction or the base image sets or declares `name`.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.chain().any(|level| level.values.contains_key(name) || level.declared.contains(name))
    }

    /// Returns all such names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.chain()
            .flat_map(|level| level.values.keys().chain(&level.declared))
            .map(String::as_str)
    }

    fn look(&self, name: &str) -> Option<Value> {
        let value = self.chain().find_map(|level| level.values.get(name).cloned());
        value.or_else(|| self.is_open().then_some(Value::Unknown))
    }

    /// Returns the value of a raw word, if it is known.
    pub(super) fn word(&self, raw: &str) -> Option<String> {
        known(&|name| self.look(name), |lookup| expand::expand(raw, self.escape, lookup))
    }

    /// Returns the values of a raw word that may stand for several, if they are known.
    pub(super) fn words(&self, raw: &str) -> Option<Vec<String>> {
        known(&|name| self.look(name), |lookup| expand::expand_words(raw, self.escape, lookup))
    }
}
