//! What a Kubefile offers to those who build it: its stages, and what a stage takes (BuildKit's
//! subrequests `targets` and `outline`). Must not know how an answer is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::build::file::{self, Source};
use crate::build::lint;
use crate::build::options::Options;
use crate::build::plan::{self, From, StagePlan};
use crate::build::plan::{global_scope, stage_name};
use crate::build::scope::{self, Args, Scope};
use imgctl_base::error::Result;
use imgctl_base::image::Platform;
use imgctl_kubefile::ast::{Instruction, InstructionKind, Kubefile, MountKind, Run, Stage};
use imgctl_kubefile::diagnostic::Span;
use imgctl_kubefile::expand;
use imgctl_store::store::Store;

/// The lines of a definition.
pub type Lines = RangeInclusive<usize>;

/// An answer, and the text that it is about.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    pub answer: T,
    /// The Kubefile.
    pub text: Vec<u8>,
}

/// A stage that can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// In lower case.
    pub name: Option<String>,
    /// Whether a build without `--target` makes it.
    pub is_default: bool,
    pub description: Option<String>,
    /// What its `FROM` names, as written.
    pub base: String,
    /// As written.
    pub platform: Option<String>,
    pub lines: Lines,
}

/// What one target takes, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Of the target, in lower case.
    pub name: Option<String>,
    pub description: Option<String>,
    pub arguments: Vec<Argument>,
    pub secrets: Vec<Need>,
    pub agents: Vec<Need>,
}

/// A build argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    /// Its value in this build.
    pub value: Option<String>,
    pub description: Option<String>,
    pub lines: Lines,
}

/// A secret or an SSH agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub id: String,
    /// Whether a step fails without it.
    pub is_required: bool,
    pub lines: Lines,
}

/// Lists the stages of the Kubefile of a build.
pub fn targets(store: &Store, options: &Options) -> Result<Answer<Vec<Target>>> {
    let (_, source) = file::load(store, options)?;
    let kubefile = source.parse(options)?;
    let last = kubefile.stages.len().saturating_sub(1);
    let target = |stage: &Stage| Target {
        name: stage.from.name.clone(),
        is_default: stage.index == last,
        description: described(&stage.from.comments, stage.from.name.as_deref()),
        base: stage.from.image.clone(),
        platform: stage.from.platform.clone(),
        lines: lines(stage.from.span),
    };
    Ok(Answer { answer: kubefile.stages.iter().map(target).collect(), text: source.bytes })
}

/// Returns what the target of a build takes, the stages that it needs included.
pub fn outline(store: &Store, options: &Options) -> Result<Answer<Outline>> {
    let (_, source) = file::load(store, options)?;
    let kubefile = source.parse(options)?;
    let platform = lint::target_platform(options);
    let globals = global_scope(&source, &kubefile, options, &platform)?;
    let (target, contexts) = (options.target.as_deref(), &options.build_contexts);
    let plan = plan::plan(&source, &kubefile, target, contexts, &globals, &platform)?;
    let defined = defined(&source, &kubefile, options, &platform)?;
    let mut outline = Outline::default();
    let mut scopes: BTreeMap<usize, Args> = BTreeMap::new();
    // Of the definitions of one name, the one that is nearest to the target counts.
    let mut found: Vec<OfStage> = Vec::new();
    for planned in &plan.stages {
        let Some(stage) = kubefile.stages.get(planned.index) else { continue };
        outline.name.clone_from(&stage.from.name);
        outline.description = described(&stage.from.comments, stage.from.name.as_deref());
        if planned.is_replaced {
            continue;
        }
        let inherited = match planned.base {
            From::Stage(index) => scopes.get(&index).cloned().unwrap_or_default(),
            _ => Args::default(),
        };
        let (escape, given) = (kubefile.directives.escape, options.build_args.clone());
        let env = environment(store, planned);
        let mut scope = Scope::new(escape, given, globals.values(), inherited, env);
        let mut of_stage = OfStage::new(&defined, &globals, &options.build_args);
        for raw in [Some(&stage.from.image), stage.from.platform.as_ref()].into_iter().flatten() {
            used(raw, escape).into_iter().for_each(|name| of_stage.uses(name));
        }
        for instruction in &stage.instructions {
            let added = of_stage.add(instruction, &mut scope);
            added.map_err(|error| scope::at(&source, instruction, error))?;
        }
        scopes.insert(stage.index, scope.into_args());
        found.push(of_stage);
    }
    for of_stage in found.into_iter().rev() {
        of_stage.merge(&mut outline);
    }
    outline.arguments.sort_by_key(|argument| *argument.lines.start());
    outline.secrets.sort_by_key(|need| *need.lines.start());
    outline.agents.sort_by_key(|need| *need.lines.start());
    Ok(Answer { answer: outline, text: source.bytes })
}

/// Returns the environment of a stage's base image, as far as the store knows it.
fn environment(store: &Store, planned: &StagePlan) -> Vec<(String, String)> {
    match &planned.base {
        From::Image(name) => lint::base_image(store, name, &planned.platform),
        _ => None,
    }
    .map(|base| base.env)
    .unwrap_or_default()
}

/// An argument before the first `FROM`.
struct Global {
    argument: Argument,
    /// The arguments that its value depends on.
    uses: BTreeSet<String>,
}

type Globals = BTreeMap<String, Global>;

/// Returns the arguments before the first `FROM` with their last values.
fn defined(
    source: &Source,
    kubefile: &Kubefile,
    options: &Options,
    platform: &Platform,
) -> Result<Globals> {
    let escape = kubefile.directives.escape;
    let mut defined = Globals::new();
    let predefined =
        scope::platform_args(&Platform::host(), platform, stage_name(options, kubefile));
    let mut scope = Scope::global(escape, &options.build_args, predefined);
    for instruction in &kubefile.global_args {
        let InstructionKind::Arg(pairs) = &instruction.kind else { continue };
        for (name, default) in pairs {
            scope
                .declare(name, default.as_deref())
                .map_err(|error| scope::at(source, instruction, error))?;
            let mut uses = BTreeSet::new();
            if let Some(default) =
                default.as_ref().filter(|_| !options.build_args.contains_key(name))
            {
                uses = used(default, escape);
                if uses.remove(name)
                    && let Some(before) = defined.get(name)
                {
                    uses.extend(before.uses.iter().cloned());
                }
            }
            let argument = argument(instruction, name, &scope);
            defined.insert(name.clone(), Global { argument, uses });
        }
    }
    Ok(defined)
}

/// Returns the names of the variables of a raw word.
fn used(raw: &str, escape: char) -> BTreeSet<String> {
    let variables = expand::variables(raw, escape).unwrap_or_default();
    variables.into_iter().map(|variable| variable.name).collect()
}

/// What the instructions of one stage take.
struct OfStage<'a> {
    defined: &'a Globals,
    /// The values of the arguments before the first `FROM`.
    outer: &'a Scope,
    given: &'a BTreeMap<String, String>,
    /// Arguments that the stage itself defines, the last definition of each.
    own: BTreeMap<String, Argument>,
    /// Arguments before the first `FROM` that it uses, with those that they depend on.
    globals: BTreeSet<String>,
    secrets: Vec<Need>,
    agents: Vec<Need>,
}

impl<'a> OfStage<'a> {
    fn new(defined: &'a Globals, outer: &'a Scope, given: &'a BTreeMap<String, String>) -> Self {
        let (own, globals, secrets, agents) = Default::default();
        Self { defined, outer, given, own, globals, secrets, agents }
    }

    fn uses(&mut self, name: String) {
        let mut next = vec![name];
        while let Some(name) = next.pop() {
            if let Some(global) = self.defined.get(&name)
                && self.globals.insert(name)
            {
                next.extend(global.uses.iter().cloned());
            }
        }
    }

    fn add(&mut self, instruction: &Instruction, scope: &mut Scope) -> Result<()> {
        match &instruction.kind {
            InstructionKind::Arg(pairs) => {
                for (name, default) in pairs {
                    scope.declare(name, default.as_deref())?;
                    let has_value = default.is_some() || self.given.contains_key(name);
                    if has_value || self.outer.get(name).is_none() {
                        self.own.insert(name.clone(), argument(instruction, name, scope));
                    } else {
                        self.uses(name.clone());
                    }
                }
            }
            InstructionKind::Env(pairs) => {
                let expanded: Vec<(String, String)> = pairs
                    .iter()
                    .map(|(name, value)| Ok((scope.word(name)?, scope.word(value)?)))
                    .collect::<Result<_>>()?;
                expanded.iter().for_each(|(name, value)| scope.set_env(name, value));
            }
            InstructionKind::Run(run) => self.run(instruction, run, scope),
            _ => {}
        }
        Ok(())
    }

    fn run(&mut self, instruction: &Instruction, run: &Run, scope: &Scope) {
        let word = |word: &str| expand::expand(word, scope.escape(), &|name| scope.get(name));
        for mount in run.mounts.iter().filter_map(|mount| mount.resolve(&word).ok()) {
            let (needs, id, is_required) = match mount.kind {
                MountKind::Secret { id, required, .. } => (&mut self.secrets, id, required),
                MountKind::Ssh { id, required, .. } => (&mut self.agents, id, required),
                _ => continue,
            };
            needs.push(Need { id, is_required, lines: lines(instruction.span) });
        }
    }

    /// Adds what the stages nearer to the target do not have.
    fn merge(self, outline: &mut Outline) {
        let own = self.own.into_values();
        let known = self.globals.iter().filter_map(|name| self.defined.get(name));
        for argument in own.chain(known.map(|global| global.argument.clone())) {
            if !outline.arguments.iter().any(|known| known.name == argument.name) {
                outline.arguments.push(argument);
            }
        }
        for (mine, all) in
            [(self.secrets, &mut outline.secrets), (self.agents, &mut outline.agents)]
        {
            for need in mine {
                match all.iter_mut().find(|known| known.id == need.id) {
                    Some(known) => known.is_required |= need.is_required,
                    None => all.push(need),
                }
            }
        }
    }
}

fn argument(instruction: &Instruction, name: &str, scope: &Scope) -> Argument {
    Argument {
        name: name.to_owned(),
        value: scope.get(name),
        description: described(&instruction.comments, Some(name)),
        lines: lines(instruction.span),
    }
}

/// Returns the lines of a definition.
fn lines(span: Span) -> Lines {
    span.line..=span.end().0
}

/// Returns what the comments above a definition say about `name`: `# NAME text`.
fn described(comments: &[String], name: Option<&str>) -> Option<String> {
    let name = name?;
    let text = |comment: &String| Some(comment.strip_prefix(name)?.strip_prefix(' ')?.to_owned());
    comments.iter().find_map(text)
}
