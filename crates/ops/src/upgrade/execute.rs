//! Planning an upgrade or a rollback from cluster contexts, and carrying out its document until it
//! is done, paused or failed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use crate::front_end::{Outcome, Upgraded};
use crate::settings;
use crate::upgrade::images::{ClusterSnapshot, rootfs_of};
use crate::upgrade::{close::tell_late, identity, lag};
use crate::work::Work;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Digest, Platform, Reference};
use imgctl_journal::event::{Listener, NullListener};
use imgctl_journal::{Past, interrupt::Interrupt};
use imgctl_kube::{api::Api, lease};
use imgctl_model::context::ClusterContext;
use imgctl_model::image::ClusterImage;
use imgctl_model::state::own_name;
use imgctl_runtime::{nodes, setting::Setting, upgrade::Upgrader, version as runtime_version};
use imgctl_upgrade::document::{Choices, Direction, Document, PauseAfter};
use imgctl_upgrade::report::{Report, report};
use imgctl_upgrade::request::{RefusedSetting, Request, SCRIPT, Target};
use imgctl_upgrade::upgrade_store::{Again, UpgradeStatus};
use imgctl_upgrade::window::{WindowState, Windows};
use imgctl_upgrade::{
    hooks::Hooks, image_tree, mirror::Mirror, observation::Observation, observe, pause, plan, stale,
};
use imgctl_upgrade::{pipeline, pipeline::UpgradeRun};
use imgctl_workflow::pipeline::executor::{Summary, unfinished};
use imgctl_workflow::pipeline::{change::Planned, execution_context::ExecutionContext, step::Step};

/// Interval at which a running upgrade checks for a pause request.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) struct PlanRequest {
    pub(crate) choices: Choices,
    pub(crate) direction: Direction,
    pub(crate) id: Option<String>,
    /// IDs of the only hosts that move; if empty, all hosts move.
    pub(crate) only: Vec<String>,
    /// Roll back to a snapshot of the data.
    pub(crate) to_snapshot: bool,
    /// Settings that change instead of the image.
    pub(crate) settings: Vec<Setting>,
}

/// Creates the plan. Only reads.
pub(crate) fn plan_of(
    known: &ClusterSnapshot<'_>,
    request: &PlanRequest,
) -> Result<(plan::Planned, Observation)> {
    let (work, execution) = (known.work, known.execution);
    let upgrader = execution.runtime.upgrader()?;
    let from = target(known, &known.from, upgrader)?;
    let store = work.session.store()?;
    let (mut targets, mut warnings) = (Vec::new(), Vec::new());
    let mut version = from.version.clone();
    for context in &known.hops {
        let mut target = target(known, context, upgrader)?;
        if request.direction == Direction::Forward
            && let Some(image) = context.rootfs()
            && target.digests() != from.digests()
        {
            upgrader.permits(&version, &target.version)?;
            target.patches = image_tree::patches_of(context, store)?;
            // sealer's scripts are files; sealer images have no such labels.
            let hooks = Hooks::of(context, store)?;
            let has_no_label = hooks.is_legacy() && image.label(&["upgrade"]).is_none();
            let accepted = if has_no_label && execution.runtime.name() == SCRIPT {
                runtime_version::accepts(image, &version)
            } else {
                upgrader.accepts(image, &version)
            };
            accepted.map_err(|error| with_way(error, &from.name, &image.name))?;
            warnings.extend(hooks.warning());
        }
        version.clone_from(&target.version);
        targets.push(target);
    }
    let images = targets
        .iter()
        .chain([&from])
        .map(|target| (target.name.clone(), target.digests()))
        .collect();
    let images: BTreeMap<_, _> = images;
    let look = |images| observe_now(execution, &known.from, known.api.as_ref(), images);
    let mut observation = look(images.clone());
    if request.direction == Direction::Forward
        && !work.options.dry_run
        && let Some(Ok(api)) = &known.api
        && observe::settle::settle(&observation, &**api, &|what| work.session.front.note(what))
    {
        observation = look(images);
    }
    // A dry run does not hold the Lease.
    if let (Some(seen), Some(Ok(api)), false) = (&mut observation.api, &known.api, work.has_lease())
    {
        seen.lease_holder = lease::living(&**api, lease::Times::default()).unwrap_or_default();
    }
    if !execution.runtime.has_api() {
        let hops = known.hops.iter().zip(&targets);
        let releases: Vec<_> = std::iter::once((&known.from, from.version.as_str()))
            .chain(hops.map(|(context, target)| (context, target.version.as_str())))
            .collect();
        lag::tell_versions(known, &mut observation, &releases);
    }
    let permits = |from: &str, to: &str| match request.direction {
        Direction::Forward => upgrader.permits(from, to),
        Direction::Back => Ok(()),
    };
    let mut planned = plan::plan(
        &observation,
        &Request {
            cluster: work.state.name(),
            runtime: execution.runtime.name(),
            from,
            targets,
            choices: request.choices.clone(),
            direction: request.direction,
            id: request.id.clone(),
            only: request.only.clone(),
            to_snapshot: request.to_snapshot,
            settings: request.settings.clone(),
            refused: refused_settings(known),
            permits: &permits,
        },
    )?;
    if let plan::Planned::Upgrade(document) = &mut planned {
        document.notes.extend(warnings);
    }
    Ok((planned, observation))
}

/// Settings that an image of the path does not accept. The image that a cluster has is not asked: nothing changes for it.
fn refused_settings(known: &ClusterSnapshot<'_>) -> Vec<RefusedSetting> {
    let rootfs = |context: &ClusterContext| context.rootfs().map(|image| image.digest.clone());
    let others = known.hops.iter().filter(|hop| rootfs(hop) != rootfs(&known.from));
    let all: BTreeSet<_> =
        others.flat_map(|hop| settings::not_accepted(&known.from, hop)).collect();
    all.into_iter().collect()
}

fn observe_now(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    api: Option<&Result<Arc<dyn Api>, String>>,
    images: BTreeMap<String, BTreeMap<String, Digest>>,
) -> Observation {
    observe::observe(&observe::Question {
        context,
        runtime: execution.runtime.name(),
        pool: &*execution.pool,
        parallel: execution.parallel,
        api: api.map(|api| match api {
            Ok(api) => Ok(&**api),
            Err(why) => Err(why.clone()),
        }),
        containers: true,
        images,
        key: &format!("upgrade-look-{}", Timestamp::now().as_millisecond()),
    })
}

/// Compares the result with the plan.
fn look_back(known: &ClusterSnapshot<'_>, document: &Document) -> Result<Report> {
    let (context, execution) = (known.target(), known.execution);
    let api = execution
        .runtime
        .has_api()
        .then(|| nodes::api(context, &*execution.pool).map_err(|error| error.chain().join(": ")));
    let after = observe_now(execution, context, api.as_ref(), BTreeMap::new());
    let before = known.upgrades.before(&document.id)?;
    let report = report(document, before.as_ref(), &after);
    known.upgrades.keep_report(&document.id, &report)?;
    Ok(report)
}

fn target(
    known: &ClusterSnapshot<'_>,
    context: &ClusterContext,
    upgrader: &dyn Upgrader,
) -> Result<Target> {
    let rootfs = context
        .rootfs()
        .ok_or_else(|| Error::usage(format!("cluster {} has no rootfs image", context.name)))?;
    let own = Platform::host().architecture;
    let mut images = BTreeMap::new();
    for architecture in &known.architectures {
        if *architecture == own || !rootfs.has_files() {
            images.insert(architecture.clone(), rootfs.clone());
            continue;
        }
        let platform = Platform::parse(&format!("linux/{architecture}"))?;
        let store = known.work.session.store()?;
        if let Ok(image) = ClusterImage::load(store, &context.name, &rootfs.name, Some(&platform)) {
            images.insert(architecture.clone(), image);
        }
    }
    Ok(Target {
        name: rootfs.name.clone(),
        version: upgrader.version(rootfs)?,
        images,
        patches: None,
    })
}

/// Parameters for carrying out a document.
pub(crate) struct Carrying<'a> {
    pub(crate) document: &'a Document,
    pub(crate) pause_after: Option<PauseAfter>,
    /// Hosts begin at any time.
    pub(crate) ignores_windows: bool,
    /// Final step, after all others are done.
    pub(crate) commit: Step,
    /// Hosts whose steps are repeated because something was undone there meanwhile.
    pub(crate) again: Vec<Again>,
    /// Snapshot to roll back to.
    pub(crate) snapshot: Option<PathBuf>,
    /// What will have happened to applications.
    pub(crate) notes: Vec<String>,
}

impl<'a> Carrying<'a> {
    pub(crate) fn new(document: &'a Document, commit: Step) -> Self {
        Self {
            document,
            pause_after: document.choices.pause_after,
            ignores_windows: false,
            commit,
            again: Vec::new(),
            snapshot: None,
            notes: Vec::new(),
        }
    }
}

pub(crate) fn pipeline_of(known: &ClusterSnapshot<'_>, carrying: &Carrying<'_>) -> Result<Planned> {
    let (execution, store) = (known.execution, known.work.session.store()?);
    let (upgrader, settings) = (execution.runtime.upgrader()?, &carrying.document.settings);
    let other_settings = if carrying.document.is_reconfiguration() {
        Some(upgrader.reconfigurer(settings)?)
    } else {
        None
    };
    // Hooks of an image belong to its upgrade.
    let hooks = |context: &Arc<ClusterContext>| match other_settings {
        Some(_) => Ok(Hooks::default()),
        None => Hooks::of(context, store),
    };
    let run = UpgradeRun {
        document: carrying.document,
        from: Arc::clone(&known.from),
        hops: known.hops.clone(),
        upgrader: other_settings.as_deref().unwrap_or(upgrader),
        hooks: known.hops.iter().map(hooks).collect::<Result<_>>()?,
        install: known.install.clone(),
        commit: carrying.commit.clone(),
        snapshot: carrying.snapshot.clone(),
    };
    let plan = pipeline::plan(&run, execution)?;
    Ok(Planned::new(plan, Arc::clone(known.target()), execution))
}

/// Carries out a document from where it stopped.
pub(crate) fn carry(known: &ClusterSnapshot<'_>, carrying: &Carrying<'_>) -> Result<Outcome> {
    let (work, execution, upgrades) = (known.work, known.execution, &known.upgrades);
    let document = carrying.document;
    identity::check(document, known)?;
    let mut planned = pipeline_of(known, carrying)?;
    let past = unfinished(&planned.plan, &planned.context)?;
    let is_cut = carrying
        .pause_after
        .is_some_and(|after| pause::cut(&mut planned.plan, after, past.as_ref()));
    if carrying.pause_after.is_some() && !is_cut {
        work.session.front.note("nothing is left to pause after: it runs to the end");
    }
    let again: Vec<String> = planned
        .plan
        .steps()
        .filter(|step| {
            let host = step.id.split('/').nth(1).unwrap_or_default();
            let of_host = ["control-plane", "canary", "workers"];
            of_host.iter().any(|phase| step.id.starts_with(phase))
                && carrying
                    .again
                    .iter()
                    .any(|again| again.host == host && !is_since(past.as_ref(), step, again))
        })
        .map(|step| step.id.clone())
        .collect();
    planned.plan.aside = upgrades.part(&document.id)?.is_some();
    upgrades.keep_install(&document.id, &known.install)?;
    upgrades.begin(document)?;
    let mirror = if execution.copy_state {
        Some(Mirror::begin(&known.from, &execution.pool, &document.id, &own_name())?)
    } else {
        None
    };
    let also: &dyn Listener = match &mirror {
        Some(mirror) => &**mirror,
        None => &NullListener,
    };
    let mut interrupt = Interrupt::gentle();
    let windows = Windows::of(&document.choices.windows)?.filter(|_| !carrying.ignores_windows);
    if let Some(windows) = windows.clone() {
        interrupt = interrupt.admitting(move || windows.is_open(Timestamp::now()));
    }
    let pause_file = upgrades.pause_file(&document.id)?;
    let ended = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| watch(&pause_file, &interrupt, &ended));
        let outcome = work.execute(&planned, &*execution.state_store, &interrupt, &again, also);
        ended.store(true, Ordering::SeqCst);
        outcome
    });
    let went = went(outcome, is_cut, windows.as_ref(), known, carrying);
    if let Some(mirror) = &mirror {
        tell_late(mirror, work.session);
    }
    went
}

/// Records the outcome.
fn went(
    outcome: Result<Summary>,
    is_cut: bool,
    windows: Option<&Windows>,
    known: &ClusterSnapshot<'_>,
    carrying: &Carrying<'_>,
) -> Result<Outcome> {
    let (document, upgrades) = (carrying.document, &known.upgrades);
    let paused = || Outcome::Paused(Box::new(document.clone()));
    let pause_file = upgrades.pause_file(&document.id)?;
    match outcome {
        Ok(summary) if summary.is_held => {
            let now = windows.map(|windows| windows.at(Timestamp::now()));
            upgrades.set_status(&document.id, UpgradeStatus::Waiting)?;
            let document = Box::new(document.clone());
            Ok(match now {
                Some(WindowState::Closed { opens }) => Outcome::Waiting { document, opens },
                // It has opened meanwhile.
                _ => Outcome::Paused(document),
            })
        }
        Ok(_) if is_cut => {
            upgrades.set_status(&document.id, UpgradeStatus::Paused)?;
            Ok(paused())
        }
        Ok(summary) => Ok(Outcome::Upgraded(Box::new(Upgraded {
            report: look_back(known, document)?,
            document: document.clone(),
            summary,
            notes: carrying.notes.clone(),
        }))),
        // The new holder of the Lease records how the upgrade continues.
        Err(error) if known.work.check_lease().is_err() => Err(error),
        Err(error) if error.kind() == Kind::Interrupted && pause_file.exists() => {
            upgrades.set_status(&document.id, UpgradeStatus::Paused)?;
            Ok(paused())
        }
        Err(error) => {
            let status = match error.kind() {
                Kind::Interrupted => UpgradeStatus::Paused,
                _ => UpgradeStatus::Failed,
            };
            upgrades.set_status(&document.id, status)?;
            Err(told(error, document))
        }
    }
}

/// Adds what to do where an image does not accept an upgrade from the version of the image `from`.
fn with_way(error: Error, from: &str, to: &str) -> Error {
    if !error.hints().is_empty() {
        return error;
    }
    let product = |name: &str| {
        let repository = Reference::parse(name).ok().map(|name| name.repository().to_owned());
        repository.and_then(|path| path.rsplit('/').next().map(str::to_owned))
    };
    if product(from) == product(to) {
        error.hint("upgrade first to an image with a version between the two")
    } else {
        error.hint(format!(
            "the cluster runs {from}, a different product: name an image of that one"
        ))
    }
}

/// Whether a step was done again after it had been undone.
fn is_since(past: Option<&Past>, step: &Step, again: &Again) -> bool {
    let known = past.and_then(|past| past.steps.get(&step.id));
    known.and_then(|known| known.at).is_some_and(|at| at > again.undone)
}

fn told(error: Error, document: &Document) -> Error {
    match document.direction {
        Direction::Forward => error.hint(format!(
            "run `imgctl rollback --cluster {0}` to roll back, or `imgctl upgrade status --cluster {0}` to \
             see the progress",
            document.cluster
        )),
        Direction::Back => error.hint(format!(
            "run `imgctl upgrade resume --cluster {}` to continue the rollback",
            document.cluster
        )),
    }
}

/// Stops the upgrade when a pause is requested.
fn watch(file: &Path, interrupt: &Interrupt, ended: &AtomicBool) {
    let mut waited = Duration::ZERO;
    const TICK: Duration = Duration::from_millis(50);
    while !ended.load(Ordering::SeqCst) {
        if waited >= LOOK {
            waited = Duration::ZERO;
            if file.exists() {
                interrupt.pause();
                return;
            }
        }
        std::thread::sleep(TICK);
        waited += TICK;
    }
}

/// Fails unless a saved plan still matches the cluster when it begins.
pub(crate) fn check_fresh(document: &Document, observation: &Observation) -> Result<()> {
    let changes = stale::stale(document, observation);
    if changes.is_empty() {
        return Ok(());
    }
    let error = Error::check_failed(format!("the plan {} is stale:", document.id))
        .lines(changes.iter().map(|change| format!("  {change}")));
    Err(error.hint("make a new plan with --plan"))
}

/// Fails unless a saved plan starts from the cluster's current image.
pub(crate) fn check_start(document: &Document, work: &Work<'_>) -> Result<()> {
    let now = rootfs_of(work.existing()?)?;
    if now == document.from.image {
        return Ok(());
    }
    let message = format!(
        "the plan {} is stale: cluster {} is now {now}, but was {} when the plan was made",
        document.id, document.cluster, document.from.image
    );
    Err(Error::check_failed(message).hint("make a new plan with --plan"))
}
