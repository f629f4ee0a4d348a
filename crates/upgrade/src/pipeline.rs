//! Builds a pipeline from a document: phases, the hosts in each, the steps of each host.
//!
//! The same document gives the same steps in every run, so that a resumed upgrade skips completed
//! steps. Must not make decisions that the document leaves open.

use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, collections::BTreeSet, sync::Arc};

use crate::document::{Direction, Document};
use crate::{backup_copies, host_steps};
use crate::{hooks, hooks::Hooks};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ImageKind;
use imgctl_runtime::registry::clients;
use imgctl_runtime::upgrade::{Move, NO_BACKUP, Place, Upgrader};
use imgctl_workflow::pipeline::execution_context::{ExecutionContext, PhaseUpdate, Then};
use imgctl_workflow::pipeline::step::{Lane, OnFailure, Order, Phase, Plan, Step};
use imgctl_workflow::pipeline::{files_of_hosts, image_commands, look, ownership, record};
use imgctl_workflow::sync::tree::ROOTFS;

/// Names of the phases after which `--pause-after` can pause.
pub(crate) const CONTROL_PLANE: &str = "finish";
pub(crate) const BALANCERS: &str = "balancers";
pub(crate) const CANARY: &str = "canary";
pub const BATCH: &str = "workers";

/// Inputs for executing a document.
pub struct UpgradeRun<'a> {
    pub document: &'a Document,
    pub from: Arc<ClusterContext>,
    /// The cluster context after each hop of the document; the last is the target.
    pub hops: Vec<Arc<ClusterContext>>,
    pub upgrader: &'a dyn Upgrader,
    pub hooks: Vec<Hooks>,
    /// Names of application and patch images whose commands run after all hosts have moved.
    pub install: Vec<String>,
    /// Closes the upgrade after everything is done and the target state is recorded.
    pub commit: Step,
    /// For a rollback: the file on the controller from which the cluster's data is restored.
    pub snapshot: Option<PathBuf>,
}

/// Target trees for each hop, by host ID.
type Trees = Vec<BTreeMap<String, String>>;

/// Builds the pipeline. Queries the hosts, but changes nothing on them.
pub fn plan(run: &UpgradeRun<'_>, execution: &ExecutionContext<'_>) -> Result<Plan> {
    let document = run.document;
    let mut plan = empty(document)?;
    // Agents cache their facts, so this asks no host again.
    let hosts = run.hosts(&run.from);
    let looks = look::look(hosts.iter().copied(), &execution.pool, execution.parallel);
    // The earlier steps are lost there, and the remaining ones cannot bring them back.
    ownership::refuse_lost(&run.from, hosts, &looks).map_err(|error| {
        error.hint(format!(
            "while the upgrade is open, `imgctl upgrade abort --cluster {} --force` comes first",
            document.cluster
        ))
    })?;
    let mark = record::mark(execution, PhaseUpdate::InProcess);
    plan.push(Phase::local("prepare", vec![mark]));
    if document.direction == Direction::Forward {
        plan.push(ownership::phase(run.target(), &looks, &BTreeSet::new()));
    }
    let trees = stage(&mut plan, run, execution)?;
    ready(&mut plan, run, &trees)?;
    match document.direction {
        Direction::Forward => forward(&mut plan, run, &trees)?,
        Direction::Back => back(&mut plan, run, &trees)?,
    }
    // Scripts of the image may have written containerd's files again.
    let target = run.target();
    plan.push(
        Phase::new("registry-clients", Order::Parallel)
            .over(run.hosts(target), |host| Ok(clients::actions(target, host)))?,
    );
    applications(&mut plan, run)?;
    verify(&mut plan, run, &trees)?;
    let mark = record::mark(execution, PhaseUpdate::Success);
    for mut phase in record::phases(execution, run.target(), vec![mark]) {
        // A rollback of some hosts only touches those hosts.
        if document.direction == Direction::Back {
            phase.lanes.retain(|lane| lane.host.as_ref().is_none_or(|host| run.moves(host)));
        }
        plan.push(phase);
    }
    plan.push(Phase::local("commit", vec![run.commit.clone()]));
    Ok(plan)
}

/// Returns the pipeline without phases, with the name and intent of the document.
pub fn empty(document: &Document) -> Result<Plan> {
    let intent = format!("{} {}", document.id, document.digest()?);
    let mut plan = Plan::new(document.direction.verb(), &document.cluster, &intent);
    plan.notes.clone_from(&document.notes);
    // `run` may have started the upgrade, but is refused while it is open.
    plan.goes_on = format!("run `imgctl upgrade resume --cluster {}`", document.cluster);
    Ok(plan)
}

impl UpgradeRun<'_> {
    fn target(&self) -> &Arc<ClusterContext> {
        self.hops.last().unwrap_or(&self.from)
    }

    /// Hosts of `context` that take part in the upgrade.
    fn hosts<'s>(&self, context: &'s ClusterContext) -> Vec<&'s Host> {
        context.hosts.iter().filter(|host| self.moves(host)).collect()
    }

    fn moves(&self, host: &Host) -> bool {
        self.document.hosts.get(&host.id()).is_some_and(|host| host.skipped.is_none())
    }

    fn host<'s>(&self, context: &'s ClusterContext, id: &str) -> Result<&'s Host> {
        context.hosts.iter().find(|host| host.id() == id).ok_or_else(|| {
            Error::not_found(format!(
                "the plan names host {id}, which is not in cluster {}",
                context.name
            ))
            .hint("create the plan again")
        })
    }

    fn hooks(&self, number: usize) -> Result<&Hooks> {
        let unread = || Error::failed("the hooks of the image are unknown");
        self.hooks.get(number).ok_or_else(unread)
    }

    /// The cluster context of a host before hop `number`: workers may have skipped some hops.
    fn before(&self, number: usize, place: Place) -> &Arc<ClusterContext> {
        let mut earlier = self.document.hops.iter().zip(&self.hops).take(number).rev();
        let last = match place {
            Place::Worker => earlier.find(|(release, _)| release.workers),
            _ => earlier.next(),
        };
        last.map_or(&self.from, |(_, context)| context)
    }

    fn step<'s>(
        &'s self,
        number: usize,
        host: &'s Host,
        place: Place,
        trees: &Trees,
    ) -> Result<(Move<'s>, String)> {
        let to = &self.hops[number];
        let id = trees.get(number).and_then(|trees| trees.get(&host.id())).ok_or_else(|| {
            Error::failed(format!("cannot query the files of host {}", host.id()))
        })?;
        let step = Move {
            from: self.before(number, place),
            to,
            host,
            tree: format!("{}/{ROOTFS}.{id}", to.paths.root()),
            place,
            id: &self.document.id,
            renewal: self.document.choices.certificate_renewal,
            external_etcd: self.document.identity.external_etcd,
            keeps_corefile: self
                .document
                .choices
                .skip_checks
                .iter()
                .any(|check| check == "corefile"),
            back: self.document.direction == Direction::Back,
        };
        Ok((step, id.clone()))
    }

    /// In a rollback, `Place::First` is the control plane that was first in the upgrade.
    fn place(&self, host: &Host) -> Place {
        let first = match self.document.direction {
            Direction::Forward => self.document.control_planes.first().cloned(),
            Direction::Back => self.target().first().map(Host::id),
        };
        match (host.is_control_plane(), first == Some(host.id())) {
            (true, true) => Place::First,
            (true, false) => Place::ControlPlane,
            (false, _) => Place::Worker,
        }
    }
}

/// Stages the files of all hops on all hosts before anything is touched, first of all the
/// registry's.
fn stage(plan: &mut Plan, run: &UpgradeRun<'_>, execution: &ExecutionContext<'_>) -> Result<Trees> {
    let mut trees = Trees::new();
    for (number, context) in run.hops.iter().enumerate() {
        let hosts: Vec<Host> = run.hosts(context).into_iter().cloned().collect();
        // Hosts of an adopted cluster have no tree that a switch could replace.
        let then = if number == 0 && gets_image(run) { Then::Switch } else { Then::Keep };
        let files = execution.files.plan(context, &hosts, &execution.pool, then)?;
        if let Some((host, error)) = files.failed.first() {
            return Err(Error::new(
                error.kind(),
                format!("cannot send the files to host {}: {error}", host.id()),
            ));
        }
        // An adopted cluster without an image has no trees to return to.
        let without = (!context.has_rootfs_image()).then(|| NO_TREE.to_owned());
        let tree = |trees: &BTreeMap<String, String>| {
            trees.get(ROOTFS).cloned().or_else(|| without.clone())
        };
        let of_hosts = files.trees.iter();
        trees.push(of_hosts.filter_map(|(id, own)| Some((id.clone(), tree(own)?))).collect());
        plan.push(files.phase(&numbered("stage", number)));
    }
    if gets_image(run) {
        let context = &run.hops[0];
        plan.push(Phase::new("registry", Order::Parallel).over(
            run.hosts(context).into_iter().filter(|host| context.serves_registry(host)),
            |host| (execution.registry)(context, host),
        )?);
    }
    Ok(trees)
}

/// Stands for the tree of a host that has none.
const NO_TREE: &str = "none";

/// Whether this is the first image of an adopted cluster.
fn gets_image(run: &UpgradeRun<'_>) -> bool {
    let is_first = |context: &Arc<ClusterContext>| context.has_rootfs_image();
    !run.from.has_rootfs_image() && run.hops.first().is_some_and(is_first)
}

/// Asks the image, pulls images, and creates and copies backups.
fn ready(plan: &mut Plan, run: &UpgradeRun<'_>, trees: &Trees) -> Result<()> {
    let document = run.document;
    let forward = document.direction == Direction::Forward;
    let last = run.hops.len() - 1;
    let target = run.target();
    // `None` if only workers lag behind.
    let first = match document.control_planes.first() {
        Some(id) => Some(run.host(target, id)?),
        None => None,
    };
    if let Some(first) = first.filter(|_| forward)
        && trees.last().is_some_and(|trees| trees.contains_key(&first.id()))
    {
        let (mut step, _) = run.step(last, first, Place::First, trees)?;
        step.from = &run.from;
        let hooks = run.hooks(last)?;
        let mut actions: Vec<_> = hooks::can_upgrade(hooks, &step, document)?.into_iter().collect();
        actions.extend(hooks::run("pre-cluster", hooks, &step, document));
        plan.push(Phase::on("ask", first, actions));
    }
    for (number, context) in run.hops.iter().enumerate() {
        let name = if document.is_reconfiguration() { "try" } else { "pull" };
        let mut pull =
            Phase::new(&numbered(name, number), Order::Parallel).on_failure(OnFailure::FinishPhase);
        for host in run.hosts(context) {
            let place = run.place(host);
            if place == Place::Worker && !document.hops[number].workers {
                continue;
            }
            let (step, _) = run.step(number, host, place, trees)?;
            pull = pull.lane(Lane::on(host, run.upgrader.pull(&step)?));
        }
        plan.push(pull);
    }
    if !forward {
        return Ok(());
    }
    // The snapshot is not older than the window in which hosts begin to change.
    let backup = Phase::new("backup", Order::Parallel).on_failure(OnFailure::FinishPhase);
    let backup = backup.while_admitted();
    plan.push(backup.over(run.hosts(&run.hops[0]), |host| {
        run.upgrader.backup(&run.step(0, host, run.place(host), trees)?.0)
    })?);
    let Some(first) = first else {
        return Ok(());
    };
    let (step, _) = run.step(0, run.host(&run.hops[0], &first.id())?, Place::First, trees)?;
    let second = run
        .hosts(target)
        .into_iter()
        .filter(|host| host.id() != first.id())
        .max_by_key(|host| host.is_control_plane());
    let here = format!("backup/{}", document.id);
    let is_made = run.upgrader.backup(&step)?.iter().any(|action| action.name != NO_BACKUP);
    let keep = backup_copies::copy(target, &step.backup(), second, &here, is_made);
    plan.push(Phase::on("keep-backup", first, [keep]));
    Ok(())
}

fn forward(plan: &mut Plan, run: &UpgradeRun<'_>, trees: &Trees) -> Result<()> {
    let document = run.document;
    balancers(plan, run, trees)?;
    for (number, context) in run.hops.iter().enumerate() {
        control_planes(plan, run, trees, number)?;
        if let Some(first) = document.control_planes.first() {
            let first = run.host(context, first)?;
            let (step, _) = run.step(number, first, Place::First, trees)?;
            let finish = run.upgrader.finish(&step)?;
            plan.push(Phase::on(&numbered(CONTROL_PLANE, number), first, finish).while_admitted());
        }
        if document.hops[number].workers {
            workers(plan, run, trees, number)?;
        }
        if let Some(first) = document.control_planes.first() {
            let first = run.host(context, first)?;
            let (step, _) = run.step(number, first, Place::First, trees)?;
            let scripts = hooks::legacy_cluster(run.hooks(number)?, &step, document);
            plan.push(Phase::on(&numbered("legacy", number), first, scripts).while_admitted());
        }
    }
    Ok(())
}

/// Prepares workers for control planes that are out of service during the upgrade.
fn balancers(plan: &mut Plan, run: &UpgradeRun<'_>, trees: &Trees) -> Result<()> {
    let Some(context) = run.hops.first() else {
        return Ok(());
    };
    if run.document.control_planes.is_empty() || context.control_planes().count() < 2 {
        return Ok(());
    }
    let workers = run.hosts(context).into_iter().filter(|host| run.place(host) == Place::Worker);
    plan.push(Phase::new(BALANCERS, Order::Parallel).while_admitted().over(workers, |host| {
        run.upgrader.before_control_planes(&run.step(0, host, Place::Worker, trees)?.0)
    })?);
    Ok(())
}

/// Kubelets must never be newer than API servers: workers are rolled back first, then control
/// planes in reverse order.
fn back(plan: &mut Plan, run: &UpgradeRun<'_>, trees: &Trees) -> Result<()> {
    for number in 0..run.hops.len() {
        if let Some(file) = &run.snapshot {
            before_snapshot(plan, run, trees, number, file)?;
        }
        workers(plan, run, trees, number)?;
        match &run.snapshot {
            None => {
                if number == 0 {
                    balancers(plan, run, trees)?;
                }
                control_planes(plan, run, trees, number)?;
            }
            Some(_) => snapshot(plan, run, trees, number)?,
        }
    }
    Ok(())
}

/// Path of the snapshot on a control plane.
fn snapshot_on(step: &Move<'_>) -> String {
    format!("{}/snapshot.db", step.backup())
}

/// Puts the snapshot and the tools to restore it on every control plane before any host is touched.
fn before_snapshot(
    plan: &mut Plan,
    run: &UpgradeRun<'_>,
    trees: &Trees,
    number: usize,
    file: &Path,
) -> Result<()> {
    let mut send = Phase::new("snapshot-send", Order::Parallel);
    let mut check =
        Phase::new("snapshot-check", Order::Parallel).on_failure(OnFailure::FinishPhase);
    for id in &run.document.control_planes {
        let host = run.host(&run.hops[number], id)?;
        let (step, _) = run.step(number, host, run.place(host), trees)?;
        let there = snapshot_on(&step);
        send = send.lane(Lane::on(host, [files_of_hosts::bring("snapshot", file, &there)]));
        check = check.lane(Lane::on(host, run.upgrader.before_snapshot(&step, &there)?));
    }
    plan.push(send);
    plan.push(check);
    Ok(())
}

/// Restores all control planes at the same time, because no cluster can run with both old and new
/// data.
fn snapshot(plan: &mut Plan, run: &UpgradeRun<'_>, trees: &Trees, number: usize) -> Result<()> {
    // Nothing pauses between this phase and the last: the cluster is down.
    let mut stop = Phase::new("snapshot-stop", Order::Parallel).while_admitted();
    let mut restore = Phase::new("snapshot-restore", Order::Parallel);
    let mut start = Phase::new("snapshot-start", Order::Parallel);
    let mut gate = Phase::new("snapshot-gate", Order::Parallel);
    for id in &run.document.control_planes {
        let host = run.host(&run.hops[number], id)?;
        let (step, tree) = run.step(number, host, run.place(host), trees)?;
        let phases = run.upgrader.restore_snapshot(&step, &snapshot_on(&step))?;
        let [stops, restores, starts] = phases;
        stop = stop.lane(Lane::on(host, stops));
        let mut actions = vec![host_steps::switch(&step, &tree)];
        actions.extend(restores);
        restore = restore.lane(Lane::on(host, actions));
        start = start.lane(Lane::on(host, starts));
        gate = gate.lane(Lane::on(host, run.upgrader.gate(&step)?));
    }
    let mut anew = Phase::new("snapshot-anew", Order::Parallel);
    let mut again = Phase::new("snapshot-gate-again", Order::Parallel);
    for host in run.hosts(&run.hops[number]) {
        let (step, _) = run.step(number, host, run.place(host), trees)?;
        let actions = run.upgrader.after_snapshot(&step)?;
        if actions.is_empty() {
            continue;
        }
        anew = anew.lane(Lane::on(host, actions));
        again = again.lane(Lane::on(host, run.upgrader.gate(&step)?));
    }
    plan.extend([stop, restore, start, gate, anew, again]);
    Ok(())
}

fn control_planes(
    plan: &mut Plan,
    run: &UpgradeRun<'_>,
    trees: &Trees,
    number: usize,
) -> Result<()> {
    let document = run.document;
    let mut phase = Phase::new(&numbered("control-plane", number), Order::Serial).while_admitted();
    for id in &document.control_planes {
        let host = run.host(&run.hops[number], id)?;
        if !run.moves(host) {
            continue;
        }
        let (step, tree) = run.step(number, host, run.place(host), trees)?;
        let steps = host_steps::steps(&step, run.upgrader, document, &tree, run.hooks(number)?)?;
        phase = phase.lane(Lane::on(host, steps));
    }
    plan.push(phase);
    Ok(())
}

fn workers(plan: &mut Plan, run: &UpgradeRun<'_>, trees: &Trees, number: usize) -> Result<()> {
    let document = run.document;
    let lane = |id: &String| -> Result<Lane> {
        let host = run.host(&run.hops[number], id)?;
        let (step, tree) = run.step(number, host, Place::Worker, trees)?;
        let steps = host_steps::steps(&step, run.upgrader, document, &tree, run.hooks(number)?)?;
        Ok(Lane::on(host, steps))
    };
    // A failed canary stops the upgrade before any other worker.
    let mut canary = Phase::new(&numbered(CANARY, number), Order::Serial).while_admitted();
    for id in &document.canary {
        canary = canary.lane(lane(id)?);
    }
    plan.push(canary);
    for (batch, ids) in document.batches.iter().enumerate() {
        let name = format!("{}-{}", numbered(BATCH, number), batch + 1);
        let mut phase = Phase::new(&name, Order::Parallel).while_admitted();
        if document.choices.max_failed > 0 {
            phase = phase.on_failure(OnFailure::Tolerate(document.choices.max_failed));
        }
        for id in ids {
            phase = phase.lane(lane(id)?);
        }
        plan.push(phase);
    }
    Ok(())
}

/// Commands of images that are installed together with the rootfs.
fn applications(plan: &mut Plan, run: &UpgradeRun<'_>) -> Result<()> {
    let target = run.target();
    for image in &target.images {
        if image.kind == ImageKind::Rootfs || !run.install.contains(&image.name) {
            continue;
        }
        let hosts: Vec<Host> = run.hosts(target).into_iter().cloned().collect();
        plan.push(image_commands::phase(target, image, &hosts, None, None).while_admitted());
    }
    Ok(())
}

/// Checks every host again at the end.
fn verify(plan: &mut Plan, run: &UpgradeRun<'_>, trees: &Trees) -> Result<()> {
    let document = run.document;
    let last = run.hops.len() - 1;
    let target = &run.hops[last];
    let phase = Phase::new("verify", Order::Parallel).on_failure(OnFailure::FinishPhase);
    plan.push(phase.over(run.hosts(target), |host| {
        let (step, _) = run.step(last, host, run.place(host), trees)?;
        let steps = run.upgrader.gate(&step)?.into_iter().map(Step::from);
        Ok(steps.map(Step::always).collect())
    })?);
    let forward = document.direction == Direction::Forward;
    if let Some(first) = document.control_planes.first().filter(|_| forward) {
        let first = run.host(target, first)?;
        let (step, _) = run.step(last, first, Place::First, trees)?;
        let hooks = hooks::run("post-cluster", run.hooks(last)?, &step, document);
        plan.push(Phase::on("end", first, hooks));
    }
    Ok(())
}

/// `stage`, `stage-2`, …: the first hop has no number.
fn numbered(name: &str, hop: usize) -> String {
    match hop {
        0 => name.to_owned(),
        _ => format!("{name}-{}", hop + 1),
    }
}
