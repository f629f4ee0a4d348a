//! Determines which stages a target needs and what each of them starts from.
//!
//! A pure function of the syntax tree and the arguments, without any I/O. `FROM`, `COPY --from` and
//! `RUN --mount from=` are resolved here, so that execution has no names left to interpret.

use std::collections::{BTreeMap, BTreeSet};

use crate::build::file::Source;
use crate::build::options::NamedContext;
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
}

/// The needed stages, in the Kubefile's order; the last one is the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BuildPlan {
    pub(crate) stages: Vec<StagePlan>,
    /// `ARG`s before the first FROM, with their values.
    pub globals: BTreeMap<String, String>,
}

impl BuildPlan {
    /// Returns the stage whose image is the result.
    pub(super) fn target(&self) -> Option<&StagePlan> {
        self.stages.last()
    }
}

/// Prefixes of image names in `FROM` and `--from` (BuildKit, buildah).
const IMAGE_PREFIXES: [&str; 2] = ["docker-image://", "container-image://"];

/// Plans the build of `target` (the last stage if `None`) for `platform`.
pub(super) fn plan(
    source: &Source,
    kubefile: &Kubefile,
    target: Option<&str>,
    contexts: &BTreeMap<String, NamedContext>,
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
    let mut needed: BTreeMap<usize, StagePlan> = BTreeMap::new();
    let mut queue = vec![target];
    while let Some(index) = queue.pop() {
        if needed.contains_key(&index) {
            continue;
        }
        let Some(stage) = kubefile.stages.get(index) else {
            continue;
        };
        let planned = planner.stage(stage, globals, platform)?;
        queue.extend(&planned.needs);
        needed.insert(index, planned);
    }
    Ok(BuildPlan { stages: needed.into_values().collect(), globals: globals.values() })
}

/// Returns the images that the stages start from, each once.
pub(super) fn images<'a>(
    stages: &[&'a StagePlan],
    contexts: &'a BTreeMap<String, NamedContext>,
) -> Vec<&'a str> {
    let image = |stage: &&'a StagePlan| match &stage.base {
        From::Image(name) => Some(name.as_str()),
        From::Context(name) => match contexts.get(name) {
            Some(NamedContext::Image(image)) => Some(image.as_str()),
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
    contexts: &'a BTreeMap<String, NamedContext>,
}

impl Planner<'_> {
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
        let platform = match &stage.from.platform {
            Some(raw) => {
                let text = globals.word(raw).map_err(here)?;
                if text.is_empty() {
                    target.clone()
                } else {
                    Platform::parse(&text).map_err(here)?
                }
            }
            None => target.clone(),
        };
        let base = self.base(&image, stage.index);
        let mut needs = BTreeSet::new();
        if let From::Stage(index) = base {
            needs.insert(index);
        }
        for (_, name) in sources_of(stage) {
            if let From::Stage(index) = self.from(name, stage)? {
                needs.insert(index);
            }
        }
        let name = stage.from.name.clone().unwrap_or_else(|| stage.index.to_string());
        Ok(StagePlan { index: stage.index, name, base, platform, needs })
    }

    fn base(&self, image: &str, index: usize) -> From {
        // A number in FROM does not name a stage (Dockerfile reference): `FROM 1` is an image named
        // 1.
        let lower = image.to_lowercase();
        let named = self.kubefile.stages.get(..index).and_then(|all| {
            all.iter().rposition(|stage| stage.from.name.as_deref() == Some(&lower))
        });
        match named {
            Some(stage) => From::Stage(stage),
            None if self.contexts.contains_key(image) => From::Context(image.to_owned()),
            None if image == "scratch" => From::Scratch,
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
    contexts: &BTreeMap<String, NamedContext>,
    name: &str,
    index: usize,
) -> Result<From> {
    if let Some(stage) = stage_called(kubefile, name, index) {
        return Ok(From::Stage(stage));
    }
    if contexts.contains_key(name) {
        return Ok(From::Context(name.to_owned()));
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
    if name == "scratch" {
        return Ok(From::Scratch);
    }
    Ok(From::Image(without_prefix(name).to_owned()))
}

fn without_prefix(image: &str) -> &str {
    IMAGE_PREFIXES.iter().find_map(|prefix| image.strip_prefix(prefix)).unwrap_or(image)
}

/// Returns every name that an instruction of the stage takes files from.
fn sources_of(stage: &Stage) -> impl Iterator<Item = (&Instruction, &str)> {
    stage.instructions.iter().flat_map(|instruction| {
        let kind = match &instruction.kind {
            InstructionKind::Onbuild(onbuild) => &onbuild.instruction.kind,
            kind => kind,
        };
        let names: Vec<&str> = match kind {
            InstructionKind::Copy(copy) | InstructionKind::Add(copy) => {
                copy.flags.from.iter().map(String::as_str).collect()
            }
            InstructionKind::Run(run) => {
                run.mounts.iter().filter_map(|mount| mount.from.as_deref()).collect()
            }
            _ => Vec::new(),
        };
        names.into_iter().map(move |name| (instruction, name)).collect::<Vec<_>>()
    })
}
