//! Plans the change from a cluster's current state to its desired state: creation, new images,
//! added and removed hosts, separately or in one run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::pipeline::check::{self, Findings, Problem, Question, Refusal};
use crate::pipeline::execution_context::{ExecutionContext, FilesPlan, PhaseUpdate, Then};
use crate::pipeline::hooks::Hooks;
use crate::pipeline::image_commands::{self, Recording, Replacement};
use crate::pipeline::look::{self, Looks};
use crate::pipeline::nodes::{self, Wait};
use crate::pipeline::ownership::Owner;
use crate::pipeline::registry::Moves;
use crate::pipeline::restore::Restore;
use crate::pipeline::step::{Lane, OnFailure, Order, Phase, Plan, Step};
use crate::pipeline::{bootstrap, host_names, kept, members, ownership, record, registry};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::text::escape;
use imgctl_host::host::resolved;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::{ClusterImage, ImageKind};
use imgctl_model::{host_addresses, local_addresses, redact};
use imgctl_runtime::renewal::timer;

/// Requested changes. The cluster context describes the cluster after the change; removed hosts are
/// in [`ClusterContext::leaving`].
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// For the journal: `run`, `apply`, `add`, `delete`.
    pub verb: String,
    /// The cluster does not exist yet.
    pub create: bool,
    /// Hosts of the cluster context that are new.
    pub add: Vec<Host>,
    /// Names of the images whose commands run. A creation runs the commands of all images.
    pub install: Vec<String>,
    pub replacement: Option<Replacement>,
    /// Names of the applications whose former versions' objects are removed.
    pub prune: Vec<String>,
    /// `mount_name`s of applications that newer applications of the same name replace.
    pub replaced: Vec<String>,
    /// Variables or Config documents changed: files are rendered again.
    pub rerender: bool,
    /// The cluster had no rootfs image before: its registry hosts serve none yet.
    pub first_image: bool,
    /// Whether to wait until Nodes are Ready, if the cluster has Nodes.
    pub wait: Wait,
    /// Whether hosts renew their certificates has changed.
    pub renewal: bool,
    /// Whether the sharing of images between hosts was turned on or off.
    pub sharing: bool,
    /// IDs of hosts on which earlier runs began to work, whether they became members or not.
    pub begun: BTreeSet<String>,
    /// A creation begins with the data of this backup.
    pub restore: Option<Restore>,
}

impl Change {
    pub fn is_empty(&self, context: &ClusterContext) -> bool {
        !self.create
            && !self.rerender
            && !self.renewal
            && !self.sharing
            && self.add.is_empty()
            && self.install.is_empty()
            && self.prune.is_empty()
            && context.leaving.is_empty()
    }

    /// Returns whether hosts are added or removed and nothing else changes.
    fn only_moves_hosts(&self, context: &ClusterContext) -> bool {
        let moves = !self.add.is_empty() || !context.leaving.is_empty();
        moves && !self.create && !self.rerender && self.install.is_empty()
    }

    fn installs(&self, image: &ClusterImage) -> bool {
        self.create || self.install.contains(&image.name)
    }

    /// Returns the identity of the operation: added hosts, removed hosts, installed images.
    fn intent(&self, context: &ClusterContext) -> String {
        if let Some(restore) = &self.restore {
            return format!("restore {}", restore.digest);
        }
        if self.create {
            // A creation is resumed even if its hosts or images were corrected.
            return "create".to_owned();
        }
        let ids = |hosts: &[Host]| {
            let ids: BTreeSet<String> = hosts.iter().map(Host::id).collect();
            ids.into_iter().collect::<Vec<_>>().join(",")
        };
        let images: BTreeSet<String> = context
            .images
            .iter()
            .filter(|image| self.installs(image))
            .map(|image| format!("{}@{}", image.name, image.digest))
            .collect();
        let mut intent = format!(
            "add {} remove {} install {}",
            ids(&self.add),
            ids(&context.leaving),
            images.into_iter().collect::<Vec<_>>().join(",")
        );
        if self.sharing {
            intent.push_str(&format!(" peers {}", context.shares_images()));
        }
        if !self.prune.is_empty() {
            intent.push_str(&format!(" prune {}", self.prune.join(",")));
        }
        intent
    }
}

/// A plan and its cluster context, which includes the names that the hosts reported.
pub struct Planned {
    pub plan: Plan,
    pub context: Arc<ClusterContext>,
    pub pool: Arc<dyn imgctl_runtime::HostPool + Send>,
    /// IDs of hosts with a different rootfs image than the cluster, for example hosts that an
    /// upgrade left out. Their files stay unchanged.
    pub behind: BTreeSet<String>,
    /// Why the plan will fail, if its checks have found that.
    pub refusal: Option<Refusal>,
}

impl Planned {
    /// Removes the cluster's secrets from the plan.
    pub fn new(
        mut plan: Plan,
        context: Arc<ClusterContext>,
        execution: &ExecutionContext<'_>,
    ) -> Self {
        plan.redact(&redact::of_cluster(&context));
        let pool = Arc::clone(&execution.pool);
        Self { plan, context, pool, behind: BTreeSet::new(), refusal: None }
    }
}

/// Queries the hosts and returns the plan. Changes nothing on them.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    change: &Change,
) -> Result<Planned> {
    refuse_nonsense(context, change)?;
    if !change.create {
        ownership::refuse_unfinished_reset(context)?;
    }
    execution.runtime.check(context)?;
    let looks = look::look(
        context.hosts.iter().chain(&context.leaving),
        &execution.pool,
        execution.parallel,
    );
    if change.create || !change.add.is_empty() {
        host_addresses::check_names(&context.hosts, resolved, local_addresses::primary)?;
    }
    let context = Arc::new(look::informed(context, &looks));
    let lost = lost_hosts(execution, &context, &looks)?;
    refuse_without_files(execution, &context, &looks)?;
    let mut files = execution.files.plan(
        &context,
        &reachable(&context, &looks),
        &execution.pool,
        Then::Switch,
    )?;
    let mut behind = std::mem::take(&mut files.leave_rootfs);
    behind.retain(|id| !change.create && !change.add.iter().any(|host| host.id() == *id));
    if !behind.is_empty() && change.only_moves_hosts(&context) {
        let mut others = reachable(&context, &looks);
        others.retain(|host| !behind.contains(&host.id()));
        files = execution.files.plan(&context, &others, &execution.pool, Then::Switch)?;
    }
    let bytes: BTreeMap<String, u64> =
        files.hosts.iter().map(|files| (files.host.id(), files.bytes)).collect();
    let new: &[Host] = if change.create { &context.hosts } else { &change.add };
    let new_ids: BTreeSet<String> = new.iter().map(Host::id).collect();
    let new: Vec<&Host> =
        context.hosts.iter().filter(|host| new_ids.contains(&host.id())).collect();
    let owned: Vec<Host> = new.iter().copied().cloned().collect();
    let question = Question {
        context: &context,
        runtime: execution.runtime,
        looks: &looks,
        new: &owned,
        bytes: &bytes,
        force: execution.force,
        begun: &change.begun,
    };
    let mut findings = check::findings(&question);
    if change.create && change.restore.is_none() {
        check::unfit(&question, &mut findings);
    }
    let stays = !change.create && !change.first_image;
    // --force of a removal is about the host that leaves.
    let force_helps = !change.only_moves_hosts(&context);
    if stays && !(execution.force && force_helps) {
        check::lost_members(&question, force_helps, &mut findings);
    }
    if !change.only_moves_hosts(&context) {
        check::refuse_switch(&context, &behind, &mut findings);
    }
    if let Some(restore) = &change.restore {
        restore.refuse_survivors(&context, &looks, &mut findings);
    }

    let refusal = refusal(&context, &findings, &files);
    let mut plan = Plan::new(&change.verb, &context.name, &change.intent(&context));
    plan.notes.clone_from(&findings.notes);
    plan.destroys = !context.leaving.is_empty();
    plan.blank = ownership::blank(&context, &looks);
    plan.machines = look::machines(&looks);
    let planned = |plan: Plan, context: Arc<ClusterContext>, lost: BTreeSet<String>| {
        let mut planned = Planned::new(plan, context, execution);
        if !lost.is_empty() {
            planned.pool = Arc::new(members::WithLosses { pool: planned.pool, lost });
        }
        Planned { behind: behind.clone(), refusal: refusal.clone(), ..planned }
    };
    let is_well = findings.problems.is_empty() && files.failed.is_empty();
    let reachable_hosts = reachable(&context, &looks);
    let moves = Moves::of(&context, &new, &reachable_hosts);
    // Where the registry's hosts change, all members get other lines anyway.
    let stays = !change.create && !change.first_image && !moves.tells();
    let members = context.hosts.iter().filter(|host| stays && !new_ids.contains(&host.id()));
    let members: Vec<&Host> = members.collect();
    let names = host_names::repair(execution, &context, members.iter().copied(), &looks)?;
    let repair = kept::repair(execution, &context, members, &looks)?;
    let taking = if execution.force { new_ids.clone() } else { BTreeSet::new() };
    let claims = ownership::phase(&context, &looks, &taking);
    let is_well = is_well && [&names, &repair, &claims].iter().all(|phase| phase.lanes.is_empty());
    if change.is_empty(&context) && is_well && files.hosts.is_empty() {
        // Every host is up to date: a plan without steps.
        return Ok(planned(plan, context, lost));
    }
    plan.push(check_phase(&context, &new_ids, &findings, &files));
    let mark = record::mark(execution, PhaseUpdate::InProcess);
    plan.push(Phase::local("prepare", vec![mark]));
    plan.push(claims);
    plan.push(names);
    plan.push(files.phase("sync"));
    plan.push(repair);
    let (leaving_masters, leaving_workers): (Vec<&Host>, Vec<&Host>) =
        context.leaving.iter().partition(|host| host.is_control_plane());
    // Another member serves before one that does leaves.
    if moves.at_once {
        plan.extend(moves.follow(execution, &context)?);
    }
    let hooks = Hooks::find(execution, &context, &lost)?;
    let left = members::leave(execution, &context, &leaving_masters, &lost, "leave")?;
    leave(&mut plan, left, &hooks, &leaving_masters);
    arrive(&mut plan, execution, &context, &new, change.first_image, &hooks)?;
    if !moves.at_once {
        plan.extend(moves.follow(execution, &context)?);
    }
    plan.push(moves.stop(execution, &context)?);
    let joining = begin(&mut plan, execution, &context, change, &new, &hooks)?;
    for phase in members::join(execution, &context, &joining)? {
        let hosts: Vec<Host> = phase.lanes.iter().filter_map(|lane| lane.host.clone()).collect();
        plan.extend(hooks.around(phase, "join", &hosts));
    }
    // Scripts that make the whole cluster install the container runtime, too.
    plan.push(bootstrap::clients_of_scripts(execution, &context, &new)?);
    let left = members::leave(execution, &context, &leaving_workers, &lost, "leave-workers")?;
    leave(&mut plan, left, &hooks, &leaving_workers);
    if context.hosts.len() > 1 && (!new.is_empty() || !context.leaving.is_empty()) {
        let settle = members::settle(execution, &context)?;
        plan.extend(hooks.around(settle, "settle", &reachable_hosts));
    }
    commands(&mut plan, execution, &context, change, &owned)?;
    let moves = change.create || !owned.is_empty() || !context.leaving.is_empty();
    if change.sharing || (moves && !change.create && context.shares_images()) {
        plan.push(registry::sharing(&context, &reachable_hosts, change.sharing)?);
    }
    if moves || change.renewal {
        plan.push(renewal(execution, &context, &reachable_hosts)?);
    }
    if execution.runtime.has_api() && (!owned.is_empty() || !change.install.is_empty()) {
        let step = nodes::wait_step(&context, change.wait, &owned);
        plan.push(Phase::local("nodes", step.into_iter().collect()));
    }
    end(&mut plan, execution, &context, change);
    Ok(planned(plan, context, lost))
}

fn refuse_nonsense(context: &ClusterContext, change: &Change) -> Result<()> {
    let Some(first) = context.first() else {
        return Err(Error::usage(format!("cluster {} has no control plane", context.name))
            .hint("name at least one with --masters"));
    };
    // What is there already may leave.
    if change.create || !change.add.is_empty() {
        host_addresses::check(&context.hosts)?;
    }
    if !change.create && change.add.contains(first) {
        return Err(Error::usage(format!(
            "{} would become the first control plane, which cannot be replaced",
            first.id()
        ))
        .hint("keep the first control plane first in the list"));
    }
    Ok(())
}

/// Returns the leaving hosts that do not answer or belong to another cluster: they are not cleaned.
/// Fails if there are any and `force` is not set.
fn lost_hosts(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    looks: &Looks,
) -> Result<BTreeSet<String>> {
    let mut lost = BTreeSet::new();
    for host in &context.leaving {
        if let Some(Ok(facts)) = looks.get(&host.id())
            && let Owner::Other(other) = ownership::owner(context, facts)
        {
            if !execution.force {
                return Err(ownership::not_cleaned(context, host, &other).hint(
                    "pass --force to remove it from this cluster and leave the host unchanged",
                ));
            }
            lost.insert(host.id());
        }
        if let Some(Err(error)) = looks.get(&host.id()) {
            if !execution.force {
                return Err(look::lost(&host.id(), error)?
                    .hint("pass --force to remove it from the cluster without cleaning it up"));
            }
            lost.insert(host.id());
        }
    }
    Ok(lost)
}

/// Fails if a host that leaves lacks the files that its cleaning needs and `force` is not set.
fn refuse_without_files(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    looks: &Looks,
) -> Result<()> {
    let found = kept::without_files(context, &context.leaving, looks)?;
    match found.into_iter().next() {
        Some((_, error)) if !execution.force => Err(error.hint(
            "or pass --force to remove it from the cluster and leave what they have started",
        )),
        _ => Ok(()),
    }
}

fn reachable(context: &ClusterContext, looks: &Looks) -> Vec<Host> {
    context
        .hosts
        .iter()
        .filter(|host| matches!(looks.get(&host.id()), Some(Ok(_))))
        .cloned()
        .collect()
}

/// Returns why the check phase will fail, if it will.
fn refusal(context: &ClusterContext, findings: &Findings, files: &FilesPlan) -> Option<Refusal> {
    let hosts = context.hosts.iter();
    let errors: Vec<Error> = hosts.filter_map(|host| blocked(host, findings, files)).collect();
    Refusal::of(&errors)
}

/// Returns the error that the check of a host ends with.
fn blocked(host: &Host, findings: &Findings, files: &FilesPlan) -> Option<Error> {
    let id = host.id();
    if let Some(problems) = findings.problems.get(&id) {
        return Some(Problem::error(&id, problems));
    }
    failed_files(host, files).map(|(kind, message)| Error::new(kind, message))
}

fn failed_files(host: &Host, files: &FilesPlan) -> Option<(Kind, String)> {
    let failed = files.failed.iter().find(|(other, _)| other.address == host.address);
    failed.map(|(_, error)| (error.kind(), error.to_string()))
}

/// Returns the phase that checks every host of the cluster before anything is changed on any of
/// them.
fn check_phase(
    context: &ClusterContext,
    new: &BTreeSet<String>,
    findings: &Findings,
    files: &FilesPlan,
) -> Phase {
    let mut phase = Phase::new("check", Order::Parallel).on_failure(OnFailure::FinishPhase);
    for host in &context.hosts {
        let id = host.id();
        let problems = findings.problems.get(&id).cloned().unwrap_or_default();
        let mut says = if new.contains(&id) {
            "clock, disk, bash, ports, other clusters, names".to_owned()
        } else {
            "clock, disk, bash".to_owned()
        };
        for problem in &problems {
            says.push_str(&format!("\nwill fail: {}", escape(&problem.what)));
        }
        let failed = failed_files(host, files);
        let step = Step::local("host", says, "", move |_| {
            if !problems.is_empty() {
                return Err(Problem::error(&id, &problems));
            }
            match &failed {
                Some((kind, message)) => Err(Error::new(*kind, message.clone())),
                None => Ok(()),
            }
        });
        phase = phase.lane(Lane { host: Some(host.clone()), steps: vec![step.always()] });
    }
    phase
}

/// Adds the phases that new hosts need before they can join.
fn arrive(
    plan: &mut Plan,
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    new: &[&Host],
    first_image: bool,
    hooks: &Hooks<'_>,
) -> Result<()> {
    let preflight = Phase::new("preflight", Order::Parallel).on_failure(OnFailure::FinishPhase);
    let all = || new.iter().copied();
    plan.push(preflight.over(all(), |host| Ok(bootstrap::preflight(context, host)))?);
    let ids: BTreeSet<String> = new.iter().map(|host| host.id()).collect();
    let others = || context.hosts.iter().filter(|host| !ids.contains(&host.id()));
    let serving = others().filter(|host| first_image && context.serves_registry(host));
    plan.push(Phase::new("registry", Order::Parallel).over(all().chain(serving), |host| {
        let mut actions = Vec::new();
        if ids.contains(&host.id()) {
            actions.push(host_names::action(execution.runtime, context, host));
        }
        if context.serves_registry(host) {
            actions.extend((execution.registry)(context, host)?);
        }
        Ok(actions)
    })?);
    let prepare = |host| bootstrap::prepare(execution, context, host);
    let bootstrap = Phase::new("bootstrap", Order::Parallel).over(all(), prepare)?;
    plan.extend(hooks.around(bootstrap, "bootstrap", all()));
    Ok(())
}

/// Adds the phases in which hosts leave and are cleaned.
fn leave(plan: &mut Plan, phases: [Phase; 2], hooks: &Hooks<'_>, hosts: &[&Host]) {
    let [out, clean] = phases;
    plan.extend(hooks.around(out, "leave", hosts.iter().copied()));
    plan.push(clean);
}

/// Adds the phases in which a new cluster begins to exist; returns the hosts that join then.
fn begin<'a>(
    plan: &mut Plan,
    execution: &ExecutionContext<'_>,
    context: &'a ClusterContext,
    change: &Change,
    new: &[&'a Host],
    hooks: &Hooks<'_>,
) -> Result<Vec<&'a Host>> {
    if let Some(restore) = &change.restore {
        let (phases, joining) = restore.phases(execution, context)?;
        plan.extend(phases);
        return Ok(joining);
    }
    if !change.create {
        return Ok(new.to_vec());
    }
    plan.extend(hooks.around(members::init(execution, context)?, "init", context.first()));
    let first = context.first();
    Ok(new.iter().copied().filter(|host| first != Some(*host)).collect())
}

/// Returns the phase that installs the timers of certificates, or removes them: their settings name the
/// other hosts.
pub(crate) fn renewal(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    hosts: &[Host],
) -> Result<Phase> {
    let runtime = execution.runtime.name();
    Phase::new("certificates", Order::Parallel)
        .over(hosts, |host| timer::actions(context, host, runtime, execution.validity))
}

/// Adds the commands of images, one image after the other, in the order of `spec.image`.
fn commands(
    plan: &mut Plan,
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    change: &Change,
    new: &[Host],
) -> Result<()> {
    for image in &context.images {
        let is_application = image.kind == ImageKind::Application;
        let everywhere = change.installs(image);
        let replaced = change.replacement.as_ref();
        if !is_application {
            let hosts = if everywhere { &context.hosts[..] } else { new };
            plan.push(image_commands::phase(context, image, hosts, replaced, None));
            continue;
        }
        // What applications did to a cluster comes back with its data.
        let installs = everywhere && change.restore.is_none();
        let prunes = change.prune.contains(&image.name) && !change.create;
        let commands = |recording: Option<&Recording>| {
            image_commands::phase(context, image, &context.hosts, replaced, recording)
        };
        match execution.applications {
            Some(own) if installs => own.install(context, image, &commands, prunes, plan)?,
            Some(own) if prunes => own.prune(context, image, plan)?,
            None if installs => plan.push(commands(None)),
            _ => {}
        }
    }
    if let Some(first) = context.first() {
        let actions: Vec<_> = change
            .replaced
            .iter()
            .map(|mount_name| image_commands::remove(context, mount_name))
            .collect();
        plan.push(Phase::on("replaced", first, actions));
    }
    Ok(())
}

fn end(
    plan: &mut Plan,
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    change: &Change,
) {
    let mut marks = Vec::new();
    let applications: Vec<String> = context
        .images
        .iter()
        .filter(|image| change.installs(image))
        .map(|image| image.name.clone())
        .collect();
    if !applications.is_empty() && !change.create {
        let mark = PhaseUpdate::Commands { images: applications, failed: None };
        marks.push(record::mark(execution, mark));
    }
    marks.push(record::mark(execution, PhaseUpdate::Success));
    plan.extend(record::phases(execution, context, marks));
}
