//! Plans the change from a cluster's current state to its desired state: creation, new images,
//! added and removed hosts, separately or in one run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::context::ClusterContext;
use crate::cluster::host::Host;
use crate::cluster::image::{ClusterImage, ImageKind};
use crate::pipeline::check::{self, Findings, Problem, Question};
use crate::pipeline::execution_context::{ExecutionContext, FilesPlan, PhaseUpdate};
use crate::pipeline::image_commands::{self, Replacement};
use crate::pipeline::look::{self, Looks};
use crate::pipeline::nodes::{self, Wait};
use crate::pipeline::record;
use crate::pipeline::step::{Lane, OnFailure, Order, Phase, Plan, Step};
use crate::pipeline::{bootstrap, members, redact};
use imgctl_base::error::{Error, Result};

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
    /// `mount_name`s of applications that newer applications of the same name replace.
    pub replaced: Vec<String>,
    /// Variables or Config documents changed: files are rendered again.
    pub rerender: bool,
    /// Whether to wait until Nodes are Ready, if the cluster has Nodes.
    pub wait: Wait,
}

impl Change {
    /// Returns whether there is nothing to do.
    pub fn is_empty(&self, scene: &ClusterContext) -> bool {
        !self.create
            && !self.rerender
            && self.add.is_empty()
            && self.install.is_empty()
            && scene.leaving.is_empty()
    }

    /// Returns whether hosts are added or removed and nothing else changes.
    fn only_moves_hosts(&self, scene: &ClusterContext) -> bool {
        let moves = !self.add.is_empty() || !scene.leaving.is_empty();
        moves && !self.create && !self.rerender && self.install.is_empty()
    }

    fn installs(&self, image: &ClusterImage) -> bool {
        self.create || self.install.contains(&image.name)
    }

    /// Returns the identity of the operation: added hosts, removed hosts, installed images.
    fn intent(&self, scene: &ClusterContext) -> String {
        if self.create {
            // A creation is resumed even if its hosts or images were corrected.
            return "create".to_owned();
        }
        let ids = |hosts: &[Host]| {
            let ids: BTreeSet<String> = hosts.iter().map(Host::id).collect();
            ids.into_iter().collect::<Vec<_>>().join(",")
        };
        let images: BTreeSet<String> = scene
            .images
            .iter()
            .filter(|image| self.installs(image))
            .map(|image| format!("{}@{}", image.name, image.digest))
            .collect();
        format!(
            "add {} remove {} install {}",
            ids(&self.add),
            ids(&scene.leaving),
            images.into_iter().collect::<Vec<_>>().join(",")
        )
    }
}

/// A plan and its cluster context, which includes the names that the hosts reported.
pub struct Planned {
    pub plan: Plan,
    pub scene: Arc<ClusterContext>,
    pub crew: Arc<dyn crate::runtime::HostPool + Send>,
    /// IDs of hosts with a different rootfs image than the cluster, for example hosts that an
    /// upgrade left out. Their files stay unchanged.
    pub behind: BTreeSet<String>,
}

/// Queries the hosts and returns the plan. Changes nothing on them.
pub fn plan(
    means: &ExecutionContext<'_>,
    scene: &ClusterContext,
    change: &Change,
) -> Result<Planned> {
    refuse_nonsense(scene, change)?;
    means.runtime.check(scene)?;
    let looks = look::look(scene.hosts.iter().chain(&scene.leaving), &means.crew, means.parallel);
    let scene = Arc::new(look::informed(scene, &looks));
    let lost = lost_hosts(means, &scene, &looks)?;
    let mut files = means.files.plan(&scene, &reachable(&scene, &looks), &means.crew)?;
    let mut behind = std::mem::take(&mut files.leave_rootfs);
    behind.retain(|id| !change.create && !change.add.iter().any(|host| host.id() == *id));
    if !behind.is_empty() && change.only_moves_hosts(&scene) {
        let mut others = reachable(&scene, &looks);
        others.retain(|host| !behind.contains(&host.id()));
        files = means.files.plan(&scene, &others, &means.crew)?;
    }
    let bytes: BTreeMap<String, u64> =
        files.hosts.iter().map(|files| (files.host.id(), files.bytes)).collect();
    let new: &[Host] = if change.create { &scene.hosts } else { &change.add };
    let new_ids: BTreeSet<String> = new.iter().map(Host::id).collect();
    let new: Vec<&Host> = scene.hosts.iter().filter(|host| new_ids.contains(&host.id())).collect();
    let owned: Vec<Host> = new.iter().copied().cloned().collect();
    let mut findings = check::findings(&Question {
        scene: &scene,
        runtime: means.runtime,
        looks: &looks,
        new: &owned,
        bytes: &bytes,
        force: means.force,
    });
    if !change.only_moves_hosts(&scene) {
        check::refuse_switch(&scene, &behind, &mut findings);
    }

    let mut plan = Plan::new(&change.verb, &scene.name, &change.intent(&scene));
    plan.notes.clone_from(&findings.notes);
    plan.destroys = !scene.leaving.is_empty();
    let planned = |mut plan: Plan, scene: Arc<ClusterContext>, lost: BTreeSet<String>| Planned {
        plan: {
            plan.redact(&redact::of_scene(&scene));
            plan
        },
        scene,
        crew: if lost.is_empty() {
            Arc::clone(&means.crew)
        } else {
            Arc::new(members::WithLosses { crew: Arc::clone(&means.crew), lost })
        },
        behind: behind.clone(),
    };
    let is_well = findings.problems.is_empty() && files.failed.is_empty();
    if change.is_empty(&scene) && is_well && files.hosts.is_empty() {
        // Every host is up to date: a plan without steps.
        return Ok(planned(plan, scene, lost));
    }
    plan.push(check_phase(&scene, &new, &findings, &files));
    plan.push(Phase::new("prepare", Order::Serial).lane(Lane::controller(vec![record::mark(
        "record",
        "write the Clusterfile, phase ClusterInProcess",
        &means.keeper,
        PhaseUpdate::InProcess,
    )])));
    plan.push(sync_phase(files));
    let (leaving_masters, leaving_workers): (Vec<&Host>, Vec<&Host>) =
        scene.leaving.iter().partition(|host| host.is_control_plane());
    for phase in members::leave(means, &scene, &leaving_masters, &lost, "leave")? {
        plan.push(phase);
    }
    arrive(&mut plan, means, &scene, &new)?;
    if change.create {
        plan.push(members::init(means, &scene)?);
    }
    let first = scene.first();
    let joining: Vec<&Host> =
        new.iter().copied().filter(|host| !change.create || first != Some(*host)).collect();
    for phase in members::join(means, &scene, &joining)? {
        plan.push(phase);
    }
    for phase in members::leave(means, &scene, &leaving_workers, &lost, "leave-workers")? {
        plan.push(phase);
    }
    if scene.hosts.len() > 1 && (!new.is_empty() || !scene.leaving.is_empty()) {
        plan.push(members::settle(means, &scene)?);
    }
    commands(&mut plan, &scene, change, &owned);
    if means.runtime.has_api() && (!owned.is_empty() || !change.install.is_empty()) {
        let step = nodes::wait_step(&scene, change.wait, &owned);
        plan.push(
            Phase::new("nodes", Order::Serial).lane(Lane::controller(step.into_iter().collect())),
        );
    }
    end(&mut plan, means, &scene, change);
    Ok(planned(plan, scene, lost))
}

fn refuse_nonsense(scene: &ClusterContext, change: &Change) -> Result<()> {
    let Some(first) = scene.first() else {
        return Err(Error::usage(format!("cluster {} has no control plane", scene.name))
            .hint("name at least one with --masters"));
    };
    if !change.create && change.add.contains(first) {
        return Err(Error::usage(format!(
            "{} would become the first control plane, which cannot be replaced",
            first.id()
        ))
        .hint("keep the first control plane first in the list"));
    }
    Ok(())
}

/// Returns the leaving hosts that do not answer. Fails if there are any and `force` is not set.
fn lost_hosts(
    means: &ExecutionContext<'_>,
    scene: &ClusterContext,
    looks: &Looks,
) -> Result<BTreeSet<String>> {
    let mut lost = BTreeSet::new();
    for host in &scene.leaving {
        if let Some(Err(error)) = looks.get(&host.id()) {
            if !means.force {
                return Err(Error::new(
                    error.kind(),
                    format!("{} does not answer: {error}", host.id()),
                )
                .hint("pass --force to remove it from the cluster without cleaning it up"));
            }
            lost.insert(host.id());
        }
    }
    Ok(lost)
}

fn reachable(scene: &ClusterContext, looks: &Looks) -> Vec<Host> {
    scene
        .hosts
        .iter()
        .filter(|host| matches!(looks.get(&host.id()), Some(Ok(_))))
        .cloned()
        .collect()
}

/// Returns the phase that checks every host of the cluster before anything is changed on any of
/// them.
fn check_phase(
    scene: &ClusterContext,
    new: &[&Host],
    findings: &Findings,
    files: &FilesPlan,
) -> Phase {
    let mut phase = Phase::new("check", Order::Parallel).on_failure(OnFailure::FinishPhase);
    for host in &scene.hosts {
        let id = host.id();
        let problems = findings.problems.get(&id).cloned().unwrap_or_default();
        let failed = files
            .failed
            .iter()
            .find(|(other, _)| other.address == host.address)
            .map(|(_, error)| (error.kind(), error.to_string()));
        let mut says = if new.contains(&host) {
            "clock, disk, bash, ports, other clusters, names".to_owned()
        } else {
            "clock, disk, bash".to_owned()
        };
        for problem in &problems {
            says.push_str(&format!("\nwill fail: {}", problem.what));
        }
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

fn sync_phase(files: FilesPlan) -> Phase {
    let mut phase = Phase::new("sync", Order::Parallel);
    phase.together = Some(files.work);
    for files in files.hosts {
        phase =
            phase.lane(Lane::on(&files.host, [Step::together("files", files.says, files.bytes)]));
    }
    phase
}

/// Adds the phases that new hosts need before they can join.
fn arrive(
    plan: &mut Plan,
    means: &ExecutionContext<'_>,
    scene: &ClusterContext,
    new: &[&Host],
) -> Result<()> {
    let mut preflight = Phase::new("preflight", Order::Parallel).on_failure(OnFailure::FinishPhase);
    let mut registry = Phase::new("registry", Order::Parallel);
    let mut bootstrap_phase = Phase::new("bootstrap", Order::Parallel);
    for host in new {
        preflight = preflight.lane(Lane::on(host, bootstrap::preflight(scene, host)));
        bootstrap_phase =
            bootstrap_phase.lane(Lane::on(host, bootstrap::prepare(means, scene, host)?));
    }
    for host in &scene.hosts {
        let is_new = new.contains(&host);
        let mut actions = Vec::new();
        if is_new {
            actions.push(bootstrap::names(means, scene, host));
        }
        let serves = scene.registry_hosts().iter().any(|other| other.address == host.address);
        if serves && is_new {
            actions.extend((means.registry)(scene, host)?);
        }
        registry = registry.lane(Lane::on(host, actions));
    }
    plan.push(preflight);
    plan.push(registry);
    plan.push(bootstrap_phase);
    Ok(())
}

/// Adds the commands of images, one image after the other, in the order of `spec.image`.
fn commands(plan: &mut Plan, scene: &ClusterContext, change: &Change, new: &[Host]) {
    for image in &scene.images {
        let is_application = image.kind == ImageKind::Application;
        let everywhere = change.installs(image);
        if is_application && !everywhere {
            continue;
        }
        let hosts = if everywhere { &scene.hosts[..] } else { new };
        plan.push(image_commands::phase(scene, image, hosts, change.replacement.as_ref()));
    }
    if let Some(first) = scene.first() {
        let actions: Vec<_> = change
            .replaced
            .iter()
            .map(|mount_name| image_commands::remove(scene, mount_name))
            .collect();
        plan.push(Phase::new("replaced", Order::Serial).lane(Lane::on(first, actions)));
    }
}

fn end(plan: &mut Plan, means: &ExecutionContext<'_>, scene: &ClusterContext, change: &Change) {
    let mut marks = Vec::new();
    let applications: Vec<String> = scene
        .images
        .iter()
        .filter(|image| change.installs(image))
        .map(|image| image.name.clone())
        .collect();
    if !applications.is_empty() && !change.create {
        let mark = PhaseUpdate::Commands { images: applications, failed: None };
        marks.push(record::mark("commands", "record the installed images", &means.keeper, mark));
    }
    marks.push(record::mark(
        "record",
        "write the Clusterfile, phase ClusterSuccess",
        &means.keeper,
        PhaseUpdate::Success,
    ));
    for phase in record::phases(means, scene, marks) {
        plan.push(phase);
    }
}
