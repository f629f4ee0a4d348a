//! What a Kubefile offers to those who build it: its stages, and what a stage takes (BuildKit's
//! subrequests `targets` and `outline`). Must not know how an answer is shown.

use std::collections::{BTreeMap, BTreeSet};

use crate::build::engine::global_scope;
use crate::build::file;
use crate::build::options::Options;
use crate::build::plan::{self, From};
use crate::build::scope::{Args, Scope};
use imgctl_base::error::Result;
use imgctl_base::image::Platform;
use imgctl_kubefile::ast::{Instruction, InstructionKind, MountKind, Stage};
use imgctl_kubefile::expand;
use imgctl_store::store::Store;

/// A stage that can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub name: Option<String>,
    /// Whether a build without `--target` makes it.
    pub is_default: bool,
    pub description: Option<String>,
    /// What its `FROM` names, with variables replaced.
    pub base: String,
    pub platform: Option<String>,
    /// Line of its `FROM`.
    pub line: usize,
}

/// What one target takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    pub name: Option<String>,
    pub description: Option<String>,
    /// By name.
    pub arguments: BTreeMap<String, Argument>,
    /// Secrets and SSH agents by ID, with whether a step fails without them.
    pub secrets: BTreeMap<String, Need>,
    pub agents: BTreeMap<String, Need>,
}

/// A build argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argument {
    /// Its value in this build.
    pub value: Option<String>,
    pub description: Option<String>,
    pub line: usize,
}

/// A secret or an SSH agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    pub is_required: bool,
    pub line: usize,
}

/// Lists the stages of the Kubefile of a build.
pub fn targets(store: &Store, options: &Options) -> Result<Vec<Target>> {
    let (_, source) = file::load(store, options)?;
    let kubefile = source.parse(options)?;
    let globals = global_scope(&source, &kubefile, options, &Platform::host())?;
    let last = kubefile.stages.len().saturating_sub(1);
    let target = |stage: &Stage| {
        let from = &stage.from;
        Ok(Target {
            name: from.written_name.clone(),
            is_default: stage.index == last,
            description: described(&from.comments, from.name.as_deref()),
            base: globals.word(&from.image)?,
            platform: from.platform.as_ref().map(|raw| globals.word(raw)).transpose()?,
            line: from.span.line,
        })
    };
    kubefile.stages.iter().map(target).collect()
}

/// Returns what the target of a build takes, the stages that it needs included.
pub fn outline(store: &Store, options: &Options) -> Result<Outline> {
    let (_, source) = file::load(store, options)?;
    let kubefile = source.parse(options)?;
    let host = Platform::host();
    let globals = global_scope(&source, &kubefile, options, &host)?;
    let target = options.target.as_deref();
    let plan = plan::plan(&source, &kubefile, target, &options.build_contexts, &globals, &host)?;
    let mut outline = Outline::default();
    let mut used = BTreeSet::new();
    let mut scopes: BTreeMap<usize, Args> = BTreeMap::new();
    for planned in &plan.stages {
        let Some(stage) = kubefile.stages.get(planned.index).filter(|_| !planned.is_replaced)
        else {
            continue;
        };
        let from = &stage.from;
        for raw in [Some(&from.image), from.platform.as_ref()].into_iter().flatten() {
            let variables = expand::variables(raw, kubefile.directives.escape).unwrap_or_default();
            used.extend(variables.into_iter().map(|variable| variable.name));
        }
        let inherited = match planned.base {
            From::Stage(index) => scopes.get(&index).cloned().unwrap_or_default(),
            _ => Args::default(),
        };
        let (escape, given) = (kubefile.directives.escape, options.build_args.clone());
        let mut scope = Scope::new(escape, given, globals.values(), inherited, Vec::new());
        for instruction in &stage.instructions {
            outline.add(instruction, &mut scope)?;
        }
        scopes.insert(stage.index, scope.into_args());
        outline.name.clone_from(&from.written_name);
        outline.description = described(&from.comments, from.name.as_deref());
    }
    // Of the arguments before the first FROM, those that a stage does not declare matter to FROM.
    for instruction in &kubefile.global_args {
        let InstructionKind::Arg(pairs) = &instruction.kind else { continue };
        for (name, _) in pairs {
            let argument = || of_argument(instruction, name, &globals);
            match outline.arguments.get_mut(name) {
                Some(known) if known.description.is_none() => {
                    known.description = argument().description;
                }
                None if used.contains(name) => {
                    outline.arguments.insert(name.clone(), argument());
                }
                _ => {}
            }
        }
    }
    Ok(outline)
}

impl Outline {
    fn add(&mut self, instruction: &Instruction, scope: &mut Scope) -> Result<()> {
        match &instruction.kind {
            InstructionKind::Arg(pairs) => {
                for (name, default) in pairs {
                    scope.declare(name, default.as_deref())?;
                    let argument = of_argument(instruction, name, scope);
                    self.arguments.entry(name.clone()).or_insert(argument);
                }
            }
            InstructionKind::Env(pairs) => {
                for (name, value) in pairs {
                    let (name, value) = (scope.word(name)?, scope.word(value)?);
                    scope.set_env(&name, &value);
                }
            }
            InstructionKind::Run(run) => {
                let word =
                    |word: &str| expand::expand(word, scope.escape(), &|name| scope.get(name));
                for mount in run.mounts.iter().filter_map(|mount| mount.resolve(&word).ok()) {
                    let (needs, id, required) = match &mount.kind {
                        MountKind::Secret { id, required, .. } => (&mut self.secrets, id, required),
                        MountKind::Ssh { id, required, .. } => (&mut self.agents, id, required),
                        _ => continue,
                    };
                    let line = instruction.span.line;
                    let need = needs.entry(id.clone()).or_insert(Need { is_required: false, line });
                    need.is_required |= required;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn of_argument(instruction: &Instruction, name: &str, scope: &Scope) -> Argument {
    Argument {
        value: scope.get(name),
        description: described(&instruction.comments, Some(name)),
        line: instruction.span.line,
    }
}

/// Returns what the comments right above a definition say about `name`: `# NAME text`.
fn described(comments: &[String], name: Option<&str>) -> Option<String> {
    comments.iter().find_map(|comment| {
        let (first, text) = comment.split_once(' ')?;
        first.eq_ignore_ascii_case(name?).then(|| text.trim().to_owned())
    })
}
