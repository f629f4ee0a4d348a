//! `imgctl inplace plan`, `apply`, `status`, `rollback`.

mod arguments;
mod reach;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::context::Context;
use crate::cli::duration;
use crate::cli::signals;
use crate::ui::prompt;
use arguments::{ApplyArgs, CareArgs, PlanArgs, PrePull, RollbackArgs, StatusArgs};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_cluster::inplace::drift;
use imgctl_cluster::inplace::engine::{self, Engine};
use imgctl_cluster::inplace::journal::{self, Journal, Past};
use imgctl_cluster::inplace::plan::Plan;
use imgctl_cluster::inplace::planner::{self, Inputs};
use imgctl_cluster::inplace::pull_access;
use imgctl_cluster::inplace::request::{
    Desired, Pace, Request, Selection, TemplatePolicy, checked,
};
use imgctl_cluster::inplace::rollback;
use imgctl_cluster::inplace::target::{Access, Target};
use imgctl_cluster::inplace::world::{self, World};
use imgctl_cluster::pipeline::interrupt::Interrupt;
use reach::Reach;

/// Interval between two checks of Pods.
const POLL: Duration = Duration::from_secs(1);
/// Timeout for controllers to observe a change.
const CONTROLLERS: Duration = Duration::from_secs(120);

/// Change the images of running Pods without rescheduling them
#[derive(Args, Debug)]
#[command(
    after_help = "Containers restart with their new image in the same Pod, which keeps its address, node and volumes.
docs/inplace.md describes the risks.

Examples:
  imgctl inplace plan --workload deployment/shop/web --set app=registry.example.com/web:v2
  imgctl inplace apply --workload deployment/shop/web --set app=registry.example.com/web:v2 --template sync
  imgctl inplace status
  imgctl inplace rollback --id 20260401T101500Z-web"
)]
pub(crate) struct InplaceArgs {
    #[command(subcommand)]
    command: InplaceVerb,
}

#[derive(Debug, Subcommand)]
enum InplaceVerb {
    Plan(Box<PlanArgs>),
    Apply(Box<ApplyArgs>),
    Status(Box<StatusArgs>),
    Rollback(Box<RollbackArgs>),
}

/// Runs one of the subcommands.
pub(crate) fn run(args: &InplaceArgs, context: &Context) -> Result<()> {
    match &args.command {
        InplaceVerb::Plan(args) => plan(args, context),
        InplaceVerb::Apply(args) => apply(args, context),
        InplaceVerb::Status(args) => status(args, context),
        InplaceVerb::Rollback(args) => roll_back(args, context),
    }
}

/// Observed state, and the plan for it.
struct Prepared {
    world: World,
    desired: Desired,
    plan: Plan,
}

fn plan(args: &PlanArgs, context: &Context) -> Result<()> {
    let args = &args.change;
    let reach = Reach::new("inplace", &args.access, false, context)?;
    let past = past(&reach, args.id.as_deref())?;
    let request = args.what.request(&args.care, args.access.namespace()?)?;
    let ids = args.id.clone().into_iter().collect::<Vec<_>>();
    let question = Question {
        request: &request,
        care: &args.care,
        ids: &ids,
        past: past.as_ref(),
        rollback: false,
    };
    let prepared = question.plan_common(&reach)?;
    view::plan(&prepared.plan, context)?;
    match prepared.plan.problems.is_empty() {
        true => Ok(()),
        false => Err(Error::new(
            Kind::CheckFailed,
            "the plan cannot be carried out, for the reasons above",
        )),
    }
}

/// Returns the recorded journal of a run.
fn past(reach: &Reach, id: Option<&str>) -> Result<Option<Past>> {
    match id {
        Some(id) => journal::past(&reach.journals, id),
        None => Ok(None),
    }
}

/// Input for a plan.
struct Question<'a> {
    request: &'a Request,
    care: &'a CareArgs,
    /// Runs to resume or undo.
    ids: &'a [String],
    past: Option<&'a Past>,
    rollback: bool,
}

impl Question<'_> {
    /// Plans the same change for all Pods.
    fn plan_common(&self, reach: &Reach) -> Result<Prepared> {
        let world = world::observe(&*reach.api, &self.request.selection)?;
        let desired = Desired { common: self.request.set.clone(), by_pod: BTreeMap::new() };
        self.plan(reach, world, desired)
    }

    fn plan(&self, reach: &Reach, world: World, desired: Desired) -> Result<Prepared> {
        let mut targets: BTreeMap<String, Target> = BTreeMap::new();
        let mut silent: BTreeMap<String, Access> = BTreeMap::new();
        for image in desired.images() {
            match reach.images.target(image) {
                Ok(target) => {
                    targets.insert(image.clone(), target);
                }
                // The plan reports the error.
                Err(error) => {
                    tracing::info!("{error}");
                    // A registry that does not answer is not waited for twice.
                    if error.kind() == Kind::Network {
                        silent.insert(image.clone(), Access::Unknown(error.to_string()));
                    }
                }
            }
        }
        let plan = planner::plan(&Inputs {
            world: &world,
            request: self.request,
            desired: &desired,
            targets: &targets,
            ids: self.ids,
            done: &self.past.map(Past::done).unwrap_or_default(),
            rollback: self.rollback,
            access: &pull_access::survey(&*reach.api, &*reach.images, &world, &desired, silent),
            is_there: self.care.pre_pull == Some(PrePull::None),
        })?;
        Ok(Prepared { world, desired, plan })
    }
}

fn apply(args: &ApplyArgs, context: &Context) -> Result<()> {
    let change = &args.change;
    let reach = Reach::new("inplace apply", &change.access, true, context)?;
    let past = past(&reach, change.id.as_deref())?;
    let request = match (change.what.is_said(), past.as_ref().and_then(|past| past.plan.as_ref())) {
        (true, _) => change.what.request(&change.care, change.access.namespace()?)?,
        // Resumed by its ID alone.
        (false, Some(plan)) if !plan.rollback => plan.request.clone(),
        (false, _) => return Err(arguments::nothing_said()),
    };
    if let Some(before) = past.as_ref().and_then(|past| past.plan.as_ref())
        && (before.request.selection != request.selection
            || before.request.set != request.set
            || before.request.resize != request.resize)
    {
        return Err(Error::usage(format!(
            "run {} had other Pods or changes",
            change.id.as_deref().unwrap_or_default()
        ))
        .hint("pass another --id to start a new run, or `--id` alone to resume the old one"));
    }
    let id = change.id.clone().unwrap_or_else(|| new_id(&request.selection));
    let ids = [id.clone()];
    let question = Question {
        request: &request,
        care: &change.care,
        ids: &ids,
        past: past.as_ref(),
        rollback: false,
    };
    let prepared = question.plan_common(&reach)?;
    if let Some(expected) = &args.plan_digest
        && *expected != prepared.plan.digest
    {
        return Err(Error::new(
            Kind::CheckFailed,
            format!("the plan is stale: the current state gives {}", prepared.plan.digest),
        )
        .hint("run `imgctl inplace plan` to see the current plan"));
    }
    carry_out(&reach, &prepared, &id, &ids, &change.care, args.rollback_all, context)
}

fn roll_back(args: &RollbackArgs, context: &Context) -> Result<()> {
    let reach = Reach::new("inplace rollback", &args.access, !args.dry_run, context)?;
    let past = past(&reach, args.id.as_deref())?;
    let before = past.as_ref().and_then(|past| past.plan.as_ref());
    let namespace = args.access.namespace()?;
    let selection = match (args.what.selection(namespace)?, before) {
        (Some(selection), _) => selection,
        (None, Some(plan)) => plan.request.selection.clone(),
        (None, None) => return Err(arguments::nothing_said()),
    };
    let world = world::observe(&*reach.api, &selection)?;
    let former = rollback::former(&world, past.as_ref(), args.id.as_deref())?;
    let mut request = args.care.request(selection)?;
    request.set = former.desired.common.clone();
    request.resize.clone_from(&former.resize);
    // A rollback uses the same policies and permissions as the run that it undoes.
    if let Some(plan) = before {
        if args.care.template.is_none() {
            request.template = plan.request.template;
        }
        request.include_sidecars |= plan.request.include_sidecars;
        request.include_init |= plan.request.include_init;
        request.allow_single_replica |= plan.request.allow_single_replica;
        request.force_owner |= plan.request.force_owner;
    }
    let mut ids = former.ids.clone();
    let id = match &args.id {
        Some(id) => format!("{id}-rollback"),
        None => format!("{}-rollback", new_id(&request.selection)),
    };
    ids.push(id.clone());
    let own = journal::past(&reach.journals, &id)?;
    let question = Question {
        request: &request,
        care: &args.care,
        ids: &ids,
        past: own.as_ref(),
        rollback: true,
    };
    let prepared = question.plan(&reach, world, former.desired)?;
    if args.dry_run {
        return view::plan(&prepared.plan, context);
    }
    carry_out(&reach, &prepared, &id, &ids, &args.care, false, context)
}

fn carry_out(
    reach: &Reach,
    prepared: &Prepared,
    id: &str,
    ids: &[String],
    care: &CareArgs,
    rollback_all: bool,
    context: &Context,
) -> Result<()> {
    let plan = &prepared.plan;
    plan.check()?;
    let workloads = plan.groups.values().any(|group| group.kind != "Pod");
    if plan.request.template == TemplatePolicy::Sync && workloads && !context.settings.assume_yes {
        if context.ui.is_json() || !prompt::can_ask() {
            return Err(Error::usage(
                "--template sync requires --yes with --json or without a terminal",
            )
            .hint("it changes the templates of workloads; `imgctl inplace plan` shows which"));
        }
        view::plan(plan, context)?;
        if !context.ui.confirm("Change these Pods, then the templates?")? {
            return Err(Error::new(Kind::Denied, "declined; nothing was changed"));
        }
    }
    let puller = reach.puller(care.pre_pull, &prepared.world)?;
    let (journal, _) = Journal::open(&reach.journals, id, context.settings.sync)?;
    let interrupt = Interrupt::default();
    signals::listen(&interrupt)?;
    reach.stop_on_loss(&interrupt);
    let json = context.ui.is_json();
    view::begin(plan, &journal, context)?;
    let summary = engine::run(&Engine {
        api: &*reach.api,
        plan,
        desired: &prepared.desired,
        journal: &journal,
        ids,
        puller: puller.as_deref(),
        pace: Pace {
            poll: POLL,
            ready_timeout: duration::parse(&care.ready_timeout)?,
            bake: duration::parse(&care.bake)?,
            controllers: CONTROLLERS,
        },
        rollback_all,
        interrupt: &interrupt,
        listener: &|event| view::event(event, context),
    })
    .map_err(|error| match error.kind() {
        Kind::Interrupted => reach.check_lease().err().unwrap_or(error),
        Kind::Usage => error,
        _ if plan.rollback => error.hint(format!(
            "run {id}: run the same command again to \
                                                  continue"
        )),
        _ => error.hint(format!(
            "run {id}: `imgctl inplace apply --id {id}` continues it, `imgctl inplace rollback \
             --id {id}` undoes it"
        )),
    })?;
    match json {
        true => view::line(
            &json!({
                "event": "end", "id": id, "changed": summary.changed, "skipped": summary.skipped,
                "gone": summary.gone, "templates": summary.synced,
                "journal": journal.path(),
            }),
            context,
        ),
        false => context.ui.line(&format!(
            "run {id}: {} Pods changed, {} already up to date, {} replaced, {} templates updated",
            summary.changed, summary.skipped, summary.gone, summary.synced
        )),
    }
}

fn status(args: &StatusArgs, context: &Context) -> Result<()> {
    let reach = Reach::new("inplace", &args.access, false, context)?;
    let namespace = args.access.namespace.as_deref();
    let namespace = namespace.map(|name| checked(name, "a namespace")).transpose()?;
    let report = drift::report(&*reach.api, namespace.as_deref())?;
    view::status(&report, &journal::ids(&reach.journals)?, context)?;
    match report.is_well() {
        true => Ok(()),
        false => Err(Error::new(
            Kind::CheckFailed,
            format!(
                "workloads whose Pods run other images than their templates: {}",
                report.workloads.len()
            ),
        )
        .hint(
            "run `imgctl inplace rollback` to restore the former images, or `apply --template \
               sync` to update the templates",
        )),
    }
}

/// Returns a run ID like `20260401T101500Z-web`.
fn new_id(selection: &Selection) -> String {
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let name = match selection {
        Selection::Workload { name, .. } => name.as_str(),
        Selection::Labels { namespace, .. } => namespace,
        Selection::Pods { names, .. } => names.first().map_or("pods", String::as_str),
    };
    format!("{time}-{}", name.chars().take(63).collect::<String>())
}
