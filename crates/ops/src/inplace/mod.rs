//! Changing running Pods in place: planning, carrying out, undoing, and comparing with templates.

mod pullers;
mod reach;

use std::collections::BTreeMap;
use std::time::Duration;

use reach::Reach;
pub use reach::{ClusterAccess, PrePull};

use crate::front_end::{Announcement, Consent, InPlace};
use crate::operation::Operation;
use crate::{session::Session, work::declined};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_inplace::request::{Desired, Pace, Request, Resize, Selection, TemplatePolicy, Verify};
use imgctl_inplace::target::{Access, Target};
use imgctl_inplace::{batches::Share, plan::Plan, pull_access, rollback};
use imgctl_inplace::{drift, drift::Report};
use imgctl_inplace::{engine, engine::Engine};
use imgctl_inplace::{journal, journal::Past};
use imgctl_inplace::{planner, planner::Inputs};
use imgctl_inplace::{world, world::World};
use imgctl_journal::interrupt::Interrupt;
use imgctl_model::state::own_name;

/// Interval between two checks of Pods.
const POLL: Duration = Duration::from_secs(1);
/// Directory of the journals of runs, in the state of their cluster.
pub(crate) const JOURNALS: &str = "inplace";
/// Directory of the journals of runs through a kubeconfig, beside the states of clusters, whose names
/// never begin with a dot.
pub(crate) const KUBECONFIG_JOURNALS: &str = ".inplace";
/// Timeout for controllers to observe a change.
const CONTROLLERS: Duration = Duration::from_secs(120);

/// How Pods are changed.
#[derive(Clone, Debug)]
pub struct Care {
    /// How to treat the workload's template; by default, Pods of workloads are refused.
    pub template: Option<TemplatePolicy>,
    /// Share of Pods that is changed by the end of each batch.
    pub batches: Vec<Share>,
    /// Maximum number of Pods of a workload out of service at once.
    pub max_unavailable: Share,
    pub verify: Verify,
    pub include_sidecars: bool,
    pub include_init: bool,
    pub allow_single_replica: bool,
    pub force_owner: bool,
    /// Readiness gate to close while containers restart.
    pub gate: Option<String>,
    /// How to pull new images; by default on the hosts, if they are known.
    pub pre_pull: Option<PrePull>,
    /// Maximum time for a Pod to become ready.
    pub ready_timeout: Duration,
    /// Time that a Pod must stay ready.
    pub bake: Duration,
}

impl Care {
    /// Returns a request without any change.
    fn request(&self, selection: Selection) -> Request {
        Request {
            selection,
            set: BTreeMap::new(),
            resize: BTreeMap::new(),
            template: self.template.unwrap_or(TemplatePolicy::Refuse),
            batches: self.batches.clone(),
            max_unavailable: self.max_unavailable,
            verify: self.verify,
            include_sidecars: self.include_sidecars,
            include_init: self.include_init,
            allow_single_replica: self.allow_single_replica,
            force_owner: self.force_owner,
            gate: self.gate.clone(),
        }
    }
}

/// New images and resources of selected Pods, by container.
#[derive(Clone, Debug)]
pub struct Change {
    pub selection: Selection,
    pub set: BTreeMap<String, String>,
    pub resize: BTreeMap<String, Resize>,
}

impl Change {
    fn request(&self, care: &Care) -> Request {
        let (set, resize) = (self.set.clone(), self.resize.clone());
        Request { set, resize, ..care.request(self.selection.clone()) }
    }
}

/// A change to plan or carry out.
#[derive(Clone, Debug)]
pub struct ChangeRequest {
    pub access: ClusterAccess,
    /// By default, that of the run `id`, which is resumed.
    pub change: Option<Change>,
    pub care: Care,
    /// Name of the run.
    pub id: Option<String>,
    /// The plan that the current state must yield.
    pub plan_digest: Option<String>,
    /// After a failure, also restore Pods in earlier batches.
    pub rollback_all: bool,
}

#[derive(Clone, Debug)]
pub struct UndoRequest {
    pub access: ClusterAccess,
    /// Run to undo; by default, the last run of each Pod.
    pub id: Option<String>,
    /// By default, the Pods of the run.
    pub selection: Option<Selection>,
    pub care: Care,
    pub dry_run: bool,
}

/// Returns the error for a request that selects no Pods.
pub fn nothing_said() -> Error {
    Error::usage("no Pods selected").hint(
        "pass --workload KIND/NAMESPACE/NAME, or -n NAMESPACE with --selector LABELS or --pods \
         NAMES",
    )
}

struct Prepared {
    world: World,
    desired: Desired,
    plan: Plan,
}

pub fn plan(request: &ChangeRequest, session: &Session<'_>) -> Result<Plan> {
    let reach = Reach::new(Operation::InPlace, &request.access, false, session)?;
    let past = past(&reach, request.id.as_deref())?;
    let change = request.change.as_ref().ok_or_else(nothing_said)?;
    let question = Question {
        request: &change.request(&request.care),
        care: &request.care,
        ids: request.id.as_slice(),
        past: past.as_ref(),
        rollback: false,
    };
    Ok(question.plan_common(&reach)?.plan)
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
    care: &'a Care,
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

/// Changes Pods in batches. Resumes the run of that ID, if there is one.
pub fn apply(request: &ChangeRequest, session: &Session<'_>) -> Result<()> {
    let reach = Reach::new(Operation::InPlaceApply, &request.access, true, session)?;
    let past = past(&reach, request.id.as_deref())?;
    let own = match (&request.change, past.as_ref().and_then(|past| past.plan.as_ref())) {
        (Some(change), _) => change.request(&request.care),
        // Resumed by its ID alone.
        (None, Some(plan)) if !plan.rollback => plan.request.clone(),
        (None, _) => return Err(nothing_said()),
    };
    if let Some(before) = past.as_ref().and_then(|past| past.plan.as_ref())
        && (before.request.selection != own.selection
            || before.request.set != own.set
            || before.request.resize != own.resize)
    {
        return Err(Error::usage(format!(
            "run {} had other Pods or changes",
            request.id.as_deref().unwrap_or_default()
        ))
        .hint("pass another --id to start a new run, or `--id` alone to resume the old one"));
    }
    let id = request.id.clone().unwrap_or_else(|| new_id(&own.selection));
    let ids = [id.clone()];
    let question = Question {
        request: &own,
        care: &request.care,
        ids: &ids,
        past: past.as_ref(),
        rollback: false,
    };
    let prepared = question.plan_common(&reach)?;
    if let Some(expected) = &request.plan_digest
        && *expected != prepared.plan.digest
    {
        return Err(Error::check_failed(format!(
            "the plan is stale: the current state gives {}",
            prepared.plan.digest
        ))
        .hint("run `imgctl inplace plan` to see the current plan"));
    }
    carry_out(&reach, &prepared, &id, &ids, &request.care, request.rollback_all, session)
}

/// Restores the previous images of Pods. Returns the plan of a dry run.
pub fn undo(undo: &UndoRequest, session: &Session<'_>) -> Result<Option<Plan>> {
    let reach = Reach::new(Operation::InPlaceRollback, &undo.access, !undo.dry_run, session)?;
    let past = past(&reach, undo.id.as_deref())?;
    let before = past.as_ref().and_then(|past| past.plan.as_ref());
    let selection = match (&undo.selection, before) {
        (Some(selection), _) => selection.clone(),
        (None, Some(plan)) => plan.request.selection.clone(),
        (None, None) => return Err(nothing_said()),
    };
    let world = world::observe(&*reach.api, &selection)?;
    let former = rollback::former(&world, past.as_ref(), undo.id.as_deref())?;
    let mut request = undo.care.request(selection);
    request.set = former.desired.common.clone();
    request.resize.clone_from(&former.resize);
    // A rollback uses the same policies and permissions as the run that it undoes.
    if let Some(plan) = before {
        if undo.care.template.is_none() {
            request.template = plan.request.template;
        }
        request.include_sidecars |= plan.request.include_sidecars;
        request.include_init |= plan.request.include_init;
        request.allow_single_replica |= plan.request.allow_single_replica;
        request.force_owner |= plan.request.force_owner;
    }
    let mut ids = former.ids.clone();
    let id = match &undo.id {
        Some(id) => format!("{id}-rollback"),
        None => format!("{}-rollback", new_id(&request.selection)),
    };
    ids.push(id.clone());
    let own = journal::past(&reach.journals, &id)?;
    let question = Question {
        request: &request,
        care: &undo.care,
        ids: &ids,
        past: own.as_ref(),
        rollback: true,
    };
    let prepared = question.plan(&reach, world, former.desired)?;
    if undo.dry_run {
        return Ok(Some(prepared.plan));
    }
    carry_out(&reach, &prepared, &id, &ids, &undo.care, false, session).map(|()| None)
}

fn carry_out(
    reach: &Reach,
    prepared: &Prepared,
    id: &str,
    ids: &[String],
    care: &Care,
    rollback_all: bool,
    session: &Session<'_>,
) -> Result<()> {
    let plan = &prepared.plan;
    plan.check()?;
    let workloads = plan.groups.values().any(|group| group.kind != "Pod");
    let front = &session.front;
    if plan.request.template == TemplatePolicy::Sync
        && workloads
        && front.consent() != Consent::Given
    {
        if front.consent() == Consent::Nobody {
            return Err(Error::usage(
                "--template sync requires --yes with --json or without a terminal",
            )
            .hint("it changes the templates of workloads; `imgctl inplace plan` shows which"));
        }
        front.announce(&Announcement::InPlace(plan))?;
        if !front.confirm("Change these Pods, then the templates?")? {
            return Err(declined());
        }
    }
    let puller = reach.puller(care.pre_pull, &prepared.world)?;
    let journal = journal::open(&reach.journals, id, session.controller.sync)?;
    let interrupt = Interrupt::default();
    front.pass_interrupts(&interrupt)?;
    reach.stop_on_loss(&interrupt);
    front.in_place(&InPlace::Begun { cluster: &reach.cluster, plan, journal: &journal })?;
    let summary = engine::run(&Engine {
        api: &*reach.api,
        plan,
        desired: &prepared.desired,
        journal: &journal,
        ids,
        puller: puller.as_deref(),
        pace: Pace {
            poll: POLL,
            ready_timeout: care.ready_timeout,
            bake: care.bake,
            controllers: CONTROLLERS,
        },
        rollback_all,
        controller: &own_name(),
        interrupt: &interrupt,
        // Output that cannot be shown does not stop the run.
        listener: &|event| drop(front.in_place(&InPlace::Event(event))),
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
    front.in_place(&InPlace::Ended { summary: &summary, journal: &journal })
}

/// Where Pods run other images than their templates specify, and the recorded runs.
pub struct Drift {
    pub report: Report,
    pub runs: Vec<String>,
}

/// Compares Pods of a namespace, or of all, with their templates.
pub fn status(
    access: &ClusterAccess,
    namespace: Option<&str>,
    session: &Session<'_>,
) -> Result<Drift> {
    let reach = Reach::new(Operation::InPlace, access, false, session)?;
    let report = drift::report(&*reach.api, namespace)?;
    Ok(Drift { report, runs: journal::ids(&reach.journals)? })
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
