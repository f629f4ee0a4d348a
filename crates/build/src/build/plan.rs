//! Determines which stages a target needs and what each of them starts from.
//!
//! A pure function of the syntax tree and the arguments, without any I/O. `FROM`, `COPY --from` and
//! `RUN --mount from=` are resolved here, so that execution has no names left to interpret.

use std::collections::{BTreeMap, BTreeSet};

use crate::build::file::Source;
use crate::build::options::{NamedContext, NamedContexts, Options};
use crate::build::scope::{self, Scope};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Platform;
use imgctl_base::suggest;
use imgctl_kubefile::ast::{Instruction, InstructionKind, Kubefile, Stage};

/// Base of a stage, or the meaning of a `--from` value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// An empty image.
    Scratch,
    /// An earlier stage.
    Stage(usize),
    /// An image of the store.
    Image(String),
    /// A named context of the command line (`--build-context`).
    Context(String),
}

/// A stage that the build needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StagePlan {
    /// Index of the stage in the Kubefile.
    pub index: usize,
    /// Name or number, for messages.
    pub name: String,
    pub base: From,
    pub platform: Platform,
    /// Earlier stages that must be finished first.
    pub needs: BTreeSet<usize>,
    /// A named context stands for the stage: its instructions do not run.
    pub is_replaced: bool,
}

/// The needed stages, in the Kubefile's order; the last one is the target.
#[derive(Clone, Debug)]
pub(crate) struct BuildPlan {
    pub(crate) stages: Vec<StagePlan>,
    /// `ARG`s before the first FROM, with their values.
    pub globals: Scope,
    /// The platform that the build is for.
    pub platform: Platform,
}

impl BuildPlan {
    /// Returns the stage whose image is the result.
    pub(super) fn target(&self) -> Option<&StagePlan> {
        self.stages.last()
    }
}

/// The name of the empty image.
pub(super) const SCRATCH: &str = "scratch";

/// Prefixes of image names in `FROM` and `--from` (BuildKit, buildah).
const IMAGE_PREFIXES: [&str; 2] = ["docker-image://", "container-image://"];

/// Plans the build of `target` (the last stage if `None`) for `platform`.
pub(super) fn plan(
    source: &Source,
    kubefile: &Kubefile,
    target: Option<&str>,
    contexts: &NamedContexts,
    globals: &Scope,
    platform: &Platform,
) -> Result<BuildPlan> {
    let planner = Planner { source, kubefile, contexts };
    let target = planner.target(target)?;
    // Checks stages that are not needed, too: a reference to a later stage is always a mistake.
    for stage in &kubefile.stages {
        for (instruction, name) in sources_of(stage) {
            planner.from(name, stage).map_err(|error| scope::at(source, instruction, error))?;
        }
    }
    let stages = planner.needed(target, globals, platform)?;
    Ok(BuildPlan { stages, globals: globals.clone(), platform: platform.clone() })
}

/// Plans the stage with number `index` and those that it needs, for an instruction that the Kubefile
/// itself does not contain (ONBUILD of a base image).
pub(super) fn stages_for(
    source: &Source,
    kubefile: &Kubefile,
    index: usize,
    contexts: &NamedContexts,
    globals: &Scope,
    platform: &Platform,
) -> Result<Vec<StagePlan>> {
    Planner { source, kubefile, contexts }.needed(index, globals, platform)
}

/// Returns the scope of the lines before the first FROM, with all of its arguments.
pub(super) fn global_scope(
    source: &Source,
    kubefile: &Kubefile,
    options: &Options,
    platform: &Platform,
) -> Result<Scope> {
    let built = stage_name(options, kubefile);
    let args = scope::platform_args(&Platform::host(), platform, built);
    let mut globals = Scope::global(kubefile.directives.escape, &options.build_args, args);
    for instruction in &kubefile.global_args {
        if let InstructionKind::Arg(arguments) = &instruction.kind {
            for (name, default) in arguments {
                globals
                    .declare(name, default.as_deref())
                    .map_err(|error| scope::at(source, instruction, error))?;
            }
        }
    }
    Ok(globals)
}

/// Returns the value of `TARGETSTAGE`.
pub(super) fn stage_name<'a>(options: &'a Options, kubefile: &'a Kubefile) -> &'a str {
    let last = || kubefile.stages.last().and_then(|stage| stage.from.name.as_deref());
    options.target.as_deref().or_else(last).unwrap_or("default")
}

/// Returns the images that the stages start from, each once.
pub(super) fn images<'a>(stages: &[&'a StagePlan], contexts: &'a NamedContexts) -> Vec<&'a str> {
    let image = |stage: &&'a StagePlan| match &stage.base {
        From::Image(name) => Some(name.as_str()),
        From::Context(name) => match contexts.get(name) {
            Some(NamedContext::Image(image)) if image != SCRATCH => Some(image.as_str()),
            _ => None,
        },
        From::Scratch | From::Stage(_) => None,
    };
    let mut images: Vec<&str> = Vec::new();
    for image in stages.iter().filter_map(image) {
        if !images.contains(&image) {
            images.push(image);
        }
    }
    images
}

struct Planner<'a> {
    source: &'a Source,
    kubefile: &'a Kubefile,
    contexts: &'a NamedContexts,
}

impl Planner<'_> {
    /// Plans the stage with number `index` and those that it needs, in the Kubefile's order.
    fn needed(&self, index: usize, globals: &Scope, platform: &Platform) -> Result<Vec<StagePlan>> {
        let mut needed: BTreeMap<usize, StagePlan> = BTreeMap::new();
        let mut queue = vec![index];
        while let Some(index) = queue.pop() {
            if needed.contains_key(&index) {
                continue;
            }
            let Some(stage) = self.kubefile.stages.get(index) else {
                continue;
            };
            let planned = self.stage(stage, globals, platform)?;
            queue.extend(&planned.needs);
            needed.insert(index, planned);
        }
        Ok(needed.into_values().collect())
    }

    fn target(&self, target: Option<&str>) -> Result<usize> {
        let last = self.kubefile.stages.len().saturating_sub(1);
        let Some(name) = target else { return Ok(last) };
        stage_called(self.kubefile, name, last + 1).ok_or_else(|| {
            let names = self.kubefile.stages.iter().filter_map(|stage| stage.from.name.as_deref());
            let error =
                Error::usage(format!("{} has no stage `{name}` to build", self.kubefile.name));
            match suggest::closest(name, names) {
                Some(near) => error.hint(format!("did you mean --target {near}?")),
                None => error.hint(
                    "--target takes the name after AS or the number of a FROM, counted from 0",
                ),
            }
        })
    }

    fn stage(&self, stage: &Stage, globals: &Scope, target: &Platform) -> Result<StagePlan> {
        let here = |error: Error| scope::placed(self.source, stage.from.span, "FROM", error);
        let name = stage.from.name.clone().unwrap_or_else(|| stage.index.to_string());
        if let Some(replaced) = self.replacement(stage) {
            let (platform, needs) = (target.clone(), BTreeSet::new());
            let (index, base) = (stage.index, From::Context(replaced));
            return Ok(StagePlan { index, name, base, platform, needs, is_replaced: true });
        }
        let image = globals.word(&stage.from.image).map_err(here)?;
        if image.is_empty() {
            return Err(here(
                Error::usage(format!(
                    "`{}` expands to an empty string, so there is no base image",
                    stage.from.image
                ))
                .hint("give the ARG a default or pass --build-arg"),
            ));
        }
        let base = self.base(&image, stage.index);
        let platform = match &stage.from.platform {
            Some(raw) => {
                let text = globals.word(raw).map_err(here)?;
                if text.is_empty() {
                    return Err(here(no_platform(raw, globals)));
                }
                let platform = Platform::parse(&text).map_err(here)?;
                // An empty image has no platform of its own (BuildKit).
                if base == From::Scratch { target.clone() } else { platform }
            }
            None => target.clone(),
        };
        let mut needs = BTreeSet::new();
        if let From::Stage(index) = base {
            needs.insert(index);
        }
        for (_, name) in sources_of(stage) {
            if let From::Stage(index) = self.from(name, stage)? {
                needs.insert(index);
            }
        }
        Ok(StagePlan { index: stage.index, name, base, platform, needs, is_replaced: false })
    }

    /// Returns the name of the context that stands for a stage.
    fn replacement(&self, stage: &Stage) -> Option<String> {
        stage.from.name.clone().filter(|name| self.contexts.get(name).is_some())
    }

    fn base(&self, image: &str, index: usize) -> From {
        // A number in FROM does not name a stage (Dockerfile reference): `FROM 1` is an image named
        // 1.
        let lower = image.to_lowercase();
        let named = self.kubefile.stages.get(..index).and_then(|all| {
            all.iter().rposition(|stage| stage.from.name.as_deref() == Some(&lower))
        });
        match named {
            // Nothing replaces the empty image (BuildKit).
            _ if image != SCRATCH && self.contexts.get(image).is_some() => {
                From::Context(image.to_owned())
            }
            Some(stage) => From::Stage(stage),
            None if image == SCRATCH => From::Scratch,
            None => From::Image(without_prefix(image).to_owned()),
        }
    }

    /// Resolves `--from=name` in `stage`.
    fn from(&self, name: &str, stage: &Stage) -> Result<From> {
        from_name(self.kubefile, self.contexts, name, stage.index)
    }
}

/// Returns the stage named `name` before stage `before`; the last one if there are several.
fn stage_called(kubefile: &Kubefile, name: &str, before: usize) -> Option<usize> {
    let earlier = kubefile.stages.get(..before)?;
    let lower = name.to_lowercase();
    let named = earlier.iter().rposition(|stage| stage.from.name.as_deref() == Some(&lower));
    named.or_else(|| name.parse().ok().filter(|index| *index < before))
}

/// Resolves `--from=name` in stage number `index`.
pub(crate) fn from_name(
    kubefile: &Kubefile,
    contexts: &NamedContexts,
    name: &str,
    index: usize,
) -> Result<From> {
    // Context names win, also over a stage that `name` gives by its number (BuildKit).
    let stage = stage_called(kubefile, name, index);
    let own_name = stage.and_then(|stage| kubefile.stages.get(stage)?.from.name.as_deref());
    let is_context = |name: &&str| *name != SCRATCH && contexts.get(name).is_some();
    if let Some(context) = [Some(name), own_name].into_iter().flatten().find(is_context) {
        return Ok(From::Context(context.to_owned()));
    }
    if let Some(stage) = stage {
        return Ok(From::Stage(stage));
    }
    let later = stage_called(kubefile, name, kubefile.stages.len());
    if let Some(later) = later.filter(|later| *later >= index) {
        let what = if later == index { "the stage itself" } else { "a later stage" };
        return Err(Error::usage(format!(
            "stage {index} takes files from `{name}`, which is {what}"
        ))
        .about(name)
        .hint("a stage can only use stages above it; move that stage up"));
    }
    if name == SCRATCH {
        return Ok(From::Scratch);
    }
    // A number is never the name of an image (BuildKit, buildah).
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::usage(format!(
            "stage {index} takes files from stage {name}, which does not exist"
        ))
        .about(name)
        .hint("stages are counted from 0; give the stage a name with AS"));
    }
    Ok(From::Image(without_prefix(name).to_owned()))
}

fn without_prefix(image: &str) -> &str {
    IMAGE_PREFIXES.iter().find_map(|prefix| image.strip_prefix(prefix)).unwrap_or(image)
}

/// Returns every name that an instruction of the stage takes files from.
fn sources_of(stage: &Stage) -> impl Iterator<Item = (&Instruction, &str)> {
    stage.instructions.iter().flat_map(|instruction| {
        let names = sources_of_one(instruction);
        names.into_iter().map(move |name| (instruction, name)).collect::<Vec<_>>()
    })
}

/// Returns every name that the instruction takes files from.
pub(super) fn sources_of_one(instruction: &Instruction) -> Vec<&str> {
    // What a trigger names belongs to the Kubefile that will be FROM this image.
    match &instruction.kind {
        InstructionKind::Copy(copy) | InstructionKind::Add(copy) => {
            copy.flags.from.iter().map(String::as_str).collect()
        }
        InstructionKind::Run(run) => {
            run.mounts.iter().filter_map(|mount| mount.from.as_deref()).collect()
        }
        _ => Vec::new(),
    }
}

/// The error for `FROM --platform=$NAME` without a value, which is mostly a typing error.
fn no_platform(raw: &str, globals: &Scope) -> Error {
    let error = Error::usage(format!("`{raw}` expands to an empty string, which is no platform"));
    let name = raw.trim_matches(['$', '{', '}', '"', '\'']);
    let known = globals.values();
    match suggest::closest(name, known.keys().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean ${near}?")),
        None => error.hint("give the ARG a default or pass --build-arg"),
    }
}
