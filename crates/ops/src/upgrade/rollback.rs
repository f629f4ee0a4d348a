//! Rolling a cluster, its workers or one host back to their state before an upgrade.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::front_end::{Announcement, Outcome};
use crate::operation::Operation;
use crate::session::Session;
use crate::upgrade::choices::GivenChoices;
use crate::upgrade::close::{abandon, check_blockers, closing};
use crate::upgrade::execute::{Carrying, PlanRequest, carry, plan_of};
use crate::upgrade::images::{
    After, ClusterSnapshot, Start, UpgradeImage, UpgradeImages, after_snapshot, know, rootfs_of,
    settings_of, sides,
};
use crate::upgrade::resume::{Continuing, check_home, release_nodes, resume_in};
use crate::upgrade::windows;
use crate::work::{RunOptions, Work, declined};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_host::agent::protocol::InventoryQuestion;
use imgctl_model::clusterfile::Clusterfile;
use imgctl_model::context::{Host, MASTER};
use imgctl_runtime::setting::Setting;
use imgctl_upgrade::document::{Choices, Direction, Document, KeepContainers, KubeletSwap};
use imgctl_upgrade::plan::Planned;
use imgctl_upgrade::upgrade_store::{UpgradeStatus, UpgradeStore};
use imgctl_workflow::pipeline::execution_context::{PhaseUpdate, Then};
use imgctl_workflow::sync::tree::ROOTFS;

#[derive(Clone, Debug)]
pub struct RollbackRequest {
    pub cluster: String,
    /// By default, the whole cluster.
    pub scope: Option<Scope>,
    /// Upgrade to roll back; by default the open one, otherwise the last.
    pub id: Option<String>,
    /// Show what would happen.
    pub preview: bool,
    /// Snapshot of the cluster's data to restore, a file on this machine.
    pub from_snapshot: Option<PathBuf>,
    pub choices: GivenChoices,
    pub options: RunOptions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One host, by ID or address.
    Node(String),
    Workers,
    Cluster,
}

impl Scope {
    /// Parses `node=HOST`, `workers` or `cluster`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "cluster" => Ok(Self::Cluster),
            "workers" => Ok(Self::Workers),
            _ => match text.strip_prefix("node=") {
                Some(host) if !host.is_empty() => Ok(Self::Node(host.to_owned())),
                _ => Err(Error::usage(format!("invalid --scope {text}"))
                    .hint("use node=HOST, workers or cluster")),
            },
        }
    }

    /// Whether a rollback in progress has this scope.
    fn is_of(&self, back: &Document, is_part: bool) -> bool {
        let mut moving = back.hosts.iter().filter(|(_, host)| host.skipped.is_none());
        match self {
            Self::Cluster => !is_part,
            Self::Workers => {
                is_part && moving.all(|(_, host)| !host.roles.iter().any(|role| role == MASTER))
            }
            Self::Node(name) => is_part && moving.all(|(id, _)| id == name),
        }
    }

    fn holds(&self, host: &Host) -> bool {
        match self {
            Self::Cluster => true,
            Self::Workers => !host.is_control_plane(),
            Self::Node(name) => host.id() == *name || host.address.name == *name,
        }
    }
}

pub fn rollback(request: &RollbackRequest, session: &Session<'_>) -> Result<()> {
    roll_back(request, false, session)
}

/// Rolls back; without a question if the operator has already agreed.
pub(crate) fn roll_back(
    request: &RollbackRequest,
    is_agreed: bool,
    session: &Session<'_>,
) -> Result<()> {
    let name = &request.cluster;
    check_home(name, session)?;
    let dry_run = request.preview || request.options.dry_run;
    let options = RunOptions { dry_run, ..request.options.clone() };
    let work = Work::begin_asking_hosts(Operation::Rollback, name, &options, session)?;
    let upgrades = UpgradeStore::of(work.state.files());
    let scope = request.scope.as_ref().unwrap_or(&Scope::Cluster);
    let is_done = match upgrades.open()? {
        Some(back) if back.direction == Direction::Back => {
            check_same_way(&back, &upgrades, request, scope)?;
            let pause_after = request.choices.choices.pause_after;
            resume_in(&work, &back, &Continuing { pause_after, ..Continuing::default() })?
        }
        open => {
            let upgrade = upgrade_to_roll_back(request, &work, &upgrades, open.as_ref())?;
            check_later_settings(&upgrade, &upgrades)?;
            let rollback = Rollback { request, scope, work: &work, upgrades, open, upgrade };
            let outcome = rollback.run(is_agreed)?;
            session.front.show(&outcome)?;
            outcome.is_done()
        }
    };
    drop(work);
    if dry_run {
        return Ok(());
    }
    windows::go_on(Ok(is_done), name, &request.options, session).map(|_| ())
}

/// A rollback that is not in progress yet.
struct Rollback<'a> {
    request: &'a RollbackRequest,
    scope: &'a Scope,
    work: &'a Work<'a>,
    upgrades: UpgradeStore,
    /// The open upgrade, if there is one.
    open: Option<Document>,
    /// The upgrade that is rolled back; the open one unless the request names another.
    upgrade: Document,
}

impl Rollback<'_> {
    fn run(&self, is_agreed: bool) -> Result<Outcome> {
        let after = self.cluster_after()?;
        let images = self.images(&after)?;
        // A partial rollback of a closed upgrade does not change the cluster's version.
        let changes_version = self.is_whole() || self.open.is_some();
        let prepared = if changes_version { images.target() } else { &images.from };
        self.work.with_execution(prepared, false, |execution| {
            let cluster = know(&images, self.work, execution)?;
            let Some(mut document) = self.plan(&cluster)? else {
                return self.end_without_changes(&cluster);
            };
            if self.request.from_snapshot.is_some() {
                // The snapshot determines the Pods, so container restarts cannot be predicted.
                document.restarts.clear();
                document.notes.extend(after.told.clone());
            }
            if self.work.options.dry_run {
                return Ok(Outcome::UpgradePlan(document));
            }
            self.confirm_and_run(&document, &cluster, after.told, is_agreed)
        })
    }

    fn is_whole(&self) -> bool {
        *self.scope == Scope::Cluster
    }

    /// Returns the Clusterfiles before and after the rollback of a change of settings.
    fn settings(&self) -> Result<(Clusterfile, Clusterfile)> {
        let mut back = self.upgrade.clone();
        back.direction = Direction::Back;
        settings_of(&back, self.work)
    }

    /// Returns the cluster as it will be recorded.
    fn cluster_after(&self) -> Result<After> {
        match &self.request.from_snapshot {
            Some(_) if self.upgrade.is_reconfiguration() => {
                Err(Error::usage("a change of settings is rolled back without a snapshot")
                    .hint("omit --from-snapshot"))
            }
            None if self.upgrade.is_reconfiguration() => {
                if !self.is_whole() && self.open.is_none() {
                    return Err(Error::usage(
                        "settings are recorded for the whole cluster: they go back on all hosts",
                    )
                    .hint("omit --scope"));
                }
                Ok(After::unchanged(&self.settings()?.1))
            }
            Some(snapshot) => after_snapshot(self.work, &self.upgrade.id, snapshot),
            None => Ok(After::unchanged(self.work.existing()?)),
        }
    }

    fn images(&self, after: &After) -> Result<UpgradeImages> {
        let start = if self.upgrade.is_reconfiguration() {
            Start::Settings(Box::new(self.settings()?.0))
        } else {
            Start::Image(UpgradeImage::of(self.upgrade.target()))
        };
        sides(self.work, &after.cluster, &start, &[UpgradeImage::of(&self.upgrade.from)], &[])
    }

    /// Ends what is open if no host has to change.
    fn end_without_changes(&self, cluster: &ClusterSnapshot<'_>) -> Result<Outcome> {
        if !self.work.options.dry_run {
            release_nodes(cluster)?;
            if let Some(open) = self.open.as_ref().filter(|_| self.is_whole()) {
                start_over(open, cluster)?;
            }
        }
        Ok(Outcome::NothingToRollBack)
    }

    /// Returns by host ID which hosts of the scope the upgrade has touched; with a snapshot, that does not
    /// matter.
    fn touched(&self, cluster: &ClusterSnapshot<'_>) -> Result<BTreeMap<String, bool>> {
        match &self.request.from_snapshot {
            Some(_) => Ok(BTreeMap::new()),
            None if self.upgrade.is_reconfiguration() => {
                touched_by_settings(cluster, self.scope, &self.upgrade)
            }
            None => touched_by_files(cluster, self.scope),
        }
    }

    /// Returns the plan; `None` if no host has to change.
    fn plan(&self, cluster: &ClusterSnapshot<'_>) -> Result<Option<Box<Document>>> {
        let touched = self.touched(cluster)?;
        let hosts = match &self.request.from_snapshot {
            Some(_) => cluster.from.hosts.iter().map(Host::id).collect(),
            None => chosen(cluster, self.scope, &touched, self.upgrade.is_reconfiguration())?,
        };
        if hosts.is_empty() {
            return Ok(None);
        }
        check_reach(&self.upgrade, cluster, &hosts, self.request)?;
        let plan_request = PlanRequest {
            choices: self.choices(),
            direction: Direction::Back,
            id: None,
            only: hosts,
            to_snapshot: self.request.from_snapshot.is_some(),
            settings: self.upgrade.settings.iter().map(reversed).collect(),
        };
        let Planned::Upgrade(mut document) = plan_of(cluster, &plan_request)?.0 else {
            return Ok(None);
        };
        document.id = format!("{}-back-{}", self.upgrade.id, self.upgrades.history()?.len());
        explain_skipped(&mut document, cluster, self.scope, &touched);
        Ok(Some(document))
    }

    fn choices(&self) -> Choices {
        let given = &self.request.choices;
        Choices {
            no_canary: true,
            // What the upgrade has changed in records is changed back.
            keep_containers: match given.choices.keep_containers {
                KeepContainers::None => self.upgrade.choices.keep_containers,
                chosen => chosen,
            },
            kubelet_swap: swap_back(&self.upgrade, given),
            ..given.choices.clone()
        }
    }

    /// `notes`: what the rollback does to applications.
    fn confirm_and_run(
        &self,
        document: &Document,
        cluster: &ClusterSnapshot<'_>,
        notes: Vec<String>,
        is_agreed: bool,
    ) -> Result<Outcome> {
        let (front, upgrades) = (&self.work.session.front, &self.upgrades);
        let snapshot = &self.request.from_snapshot;
        front.announce(&Announcement::Upgrade(document))?;
        check_blockers(document)?;
        if !is_agreed && !front.confirm("Roll back?")? {
            return Err(declined());
        }
        upgrades.keep(document, Some(&self.upgrade.id), snapshot.as_deref())?;
        if !self.is_whole() {
            let reopens = self.open.as_ref().map(|open| open.id.as_str());
            upgrades.keep_part(&document.id, reopens)?;
        }
        let carrying = Carrying {
            snapshot: snapshot.clone(),
            notes,
            ..Carrying::new(document, closing(upgrades, document)?)
        };
        let outcome = carry(cluster, &carrying)?;
        if outcome.is_done() {
            release_nodes(cluster)?;
        }
        Ok(outcome)
    }
}

/// Returns how kubelets go back. The same kubelet keeps its containers, and an upgrade that kept them by
/// their records does not evict them on the way back, unless the operator says so.
fn swap_back(upgrade: &Document, given: &GivenChoices) -> KubeletSwap {
    let is_given = given.options.iter().any(|(_, member)| *member == "kubeletSwap");
    match upgrade.choices.keep_containers {
        _ if upgrade.is_reconfiguration() => KubeletSwap::InPlace,
        KeepContainers::Rehash if !is_given => upgrade.choices.kubelet_swap,
        _ => given.choices.kubelet_swap,
    }
}

/// Checks that the request matches the rollback in progress, which cannot change into another one.
fn check_same_way(
    back: &Document,
    upgrades: &UpgradeStore,
    request: &RollbackRequest,
    scope: &Scope,
) -> Result<()> {
    let other = |what: String| {
        let message = format!("the rollback {} is in progress and {what}", back.id);
        Err(Error::busy(message).hint(
            "run `imgctl upgrade resume` to continue it, or `imgctl upgrade abort` and then this \
             command again",
        ))
    };
    if let Some(wanted) = &request.from_snapshot {
        let wanted = std::path::absolute(wanted).path("use", wanted)?;
        if upgrades.snapshot(&back.id)?.as_ref() != Some(&wanted) {
            return other(format!("does not restore {}", wanted.display()));
        }
    }
    let is_part = upgrades.part(&back.id)?.is_some();
    if request.scope.is_some() && !scope.is_of(back, is_part) {
        return other("has a different --scope".to_owned());
    }
    if let Some(id) = &request.id
        && upgrades.instead(&back.id)?.as_ref() != Some(id)
    {
        return other(format!("rolls back an upgrade other than {id}"));
    }
    match &request.choices.against(&back.choices, 1)?[..] {
        [] => Ok(()),
        differ => other(format!("has a different {}", differ.join(", "))),
    }
}

/// Returns the upgrade to roll back.
fn upgrade_to_roll_back(
    request: &RollbackRequest,
    work: &Work<'_>,
    upgrades: &UpgradeStore,
    open: Option<&Document>,
) -> Result<Document> {
    if let Some(id) = &request.id {
        return upgrades.document(id);
    }
    if let Some(open) = open {
        return Ok(open.clone());
    }
    // A later upgrade may have moved only hosts that were unreachable: the snapshot names its own.
    if let Some(id) = request.from_snapshot.as_deref().and_then(upgrade_of)
        && let Ok(document) = upgrades.document(id)
    {
        return Ok(document);
    }
    let current = rootfs_of(work.existing()?)?;
    let history = upgrades.history()?;
    let last = history.iter().rev().find(|ended| {
        ended.end == UpgradeStatus::Committed
            && ended.direction == Direction::Forward
            && ended.to.image == current
            && upgrades.status(&ended.id).ok().flatten() == Some(UpgradeStatus::Committed)
    });
    match last {
        Some(ended) => upgrades.document(&ended.id),
        None => Err(Error::not_found(format!(
            "cluster {} has no upgrade to roll back",
            work.state.name()
        ))
        .hint("run `imgctl upgrade status` to list past upgrades")),
    }
}

/// Returns the ID of the upgrade that made a snapshot, from its path `…/backup/ID/snapshot.db`.
fn upgrade_of(snapshot: &Path) -> Option<&str> {
    snapshot.parent()?.file_name()?.to_str()
}

/// Returns by host ID whether a host's files differ from those of the former version. Queries only
/// the relevant hosts: those of the scope, and all workers before a control plane is rolled back.
fn touched_by_files(
    cluster: &ClusterSnapshot<'_>,
    scope: &Scope,
) -> Result<BTreeMap<String, bool>> {
    let execution = cluster.execution;
    let all = &cluster.from.hosts;
    let has_control_plane = all.iter().any(|host| host.is_control_plane() && scope.holds(host));
    let asked: Vec<Host> = all
        .iter()
        .filter(|host| scope.holds(host) || (has_control_plane && !host.is_control_plane()))
        .cloned()
        .collect();
    let mut touched = BTreeMap::new();
    for context in &cluster.hops {
        let files = execution.files.plan(context, &asked, &execution.pool, Then::Keep)?;
        for host in &asked {
            let former = files.trees.get(&host.id()).and_then(|trees| trees.get(ROOTFS));
            let question = InventoryQuestion {
                root: context.paths.root(),
                trees: vec![ROOTFS.to_owned()],
                ..InventoryQuestion::default()
            };
            let inventory =
                execution.pool.agent(host).and_then(|agent| agent.inventory(&question)).map_err(
                    |error| {
                        if scope.holds(host) {
                            return error;
                        }
                        error.hint(
                        "no worker may be newer than a control plane that is rolled back, so all \
                         workers are queried",
                    )
                    },
                )?;
            let is_touched = inventory.trees.get(ROOTFS) != former;
            touched.insert(host.id(), is_touched);
        }
    }
    Ok(touched)
}

/// Explains why hosts of the scope are skipped: they already have the former files.
fn explain_skipped(
    document: &mut Document,
    cluster: &ClusterSnapshot<'_>,
    scope: &Scope,
    touched: &BTreeMap<String, bool>,
) {
    let version = document.target().version.clone();
    for host in cluster.from.hosts.iter().filter(|host| scope.holds(host)) {
        let is_back = touched.get(&host.id()) == Some(&false);
        if let Some(before) = document.hosts.get_mut(&host.id())
            && before.skipped.is_some()
            && is_back
        {
            before.skipped = Some(if document.settings.is_empty() {
                format!("it is already back at {version}")
            } else {
                "it has its former settings".to_owned()
            });
        }
    }
}

fn reversed(setting: &Setting) -> Setting {
    Setting { old: setting.new.clone(), new: setting.old.clone(), ..setting.clone() }
}

/// Fails if settings were changed after what is to be rolled back: its backups have files from
/// before.
fn check_later_settings(upgrade: &Document, upgrades: &UpgradeStore) -> Result<()> {
    let history = upgrades.history()?;
    let at = history.iter().rposition(|ended| ended.id == upgrade.id);
    let Some(at) = at else { return Ok(()) };
    for later in &history[at + 1..] {
        let is_done = upgrades.status(&later.id)? == Some(UpgradeStatus::Committed)
            && later.direction == Direction::Forward
            && later.end == UpgradeStatus::Committed;
        if is_done && upgrades.settings(&later.id)?.is_some() {
            let what = format!("{} was changed after {}", later.id, upgrade.id);
            return Err(Error::check_failed(format!(
                "{what}: its settings would be lost on hosts and still be recorded"
            ))
            .hint(format!("roll {} back first: imgctl rollback --id {}", later.id, later.id)));
        }
    }
    Ok(())
}

/// Returns by host ID whether a change of settings has touched a host and was not taken back upgrade.
fn touched_by_settings(
    cluster: &ClusterSnapshot<'_>,
    scope: &Scope,
    upgrade: &Document,
) -> Result<BTreeMap<String, bool>> {
    let mark = format!("{}/backup/{}/touched", cluster.from.paths.root(), upgrade.id);
    let asked = cluster.from.hosts.iter().filter(|host| {
        let before = upgrade.hosts.get(&host.id());
        scope.holds(host) && before.is_some_and(|before| before.skipped.is_none())
    });
    asked
        .map(|host| {
            let agent = cluster.execution.pool.agent(host)?;
            Ok((host.id(), agent.read_file(&mark, 1 << 10)?.is_some()))
        })
        .collect()
}

fn chosen(
    cluster: &ClusterSnapshot<'_>,
    scope: &Scope,
    touched: &BTreeMap<String, bool>,
    is_reconfiguration: bool,
) -> Result<Vec<String>> {
    let hosts = &cluster.from.hosts;
    if let Scope::Node(name) = scope
        && !hosts.iter().any(|host| scope.holds(host))
    {
        return Err(Error::usage(format!(
            "`{name}` is not a host of cluster {}",
            cluster.from.name
        )));
    }
    let chosen: Vec<&Host> = hosts
        .iter()
        .filter(|host| scope.holds(host) && touched.get(&host.id()) == Some(&true))
        .collect();
    let newer: Vec<String> = hosts
        .iter()
        .filter(|host| !host.is_control_plane() && !chosen.contains(host))
        .map(Host::id)
        .filter(|id| touched.get(id) == Some(&true) && !is_reconfiguration)
        .collect();
    if chosen.iter().any(|host| host.is_control_plane()) && !newer.is_empty() {
        return Err(Error::check_failed(format!(
            "{} would be newer than a control plane: workers must be rolled back first",
            newer.join(", ")
        ))
        .hint("run `imgctl rollback --scope workers` first, or pass --scope cluster"));
    }
    Ok(chosen.into_iter().map(Host::id).collect())
}

/// Fails if control planes went through several minor versions: only a snapshot can roll them back.
fn check_reach(
    upgrade: &Document,
    cluster: &ClusterSnapshot<'_>,
    only: &[String],
    request: &RollbackRequest,
) -> Result<()> {
    let is_control_plane = |id: &String| cluster.from.control_planes().any(|host| host.id() == *id);
    if upgrade.hops.len() > 1
        && upgrade.runtime != "script"
        && request.from_snapshot.is_none()
        && only.iter().any(is_control_plane)
    {
        return Err(Error::check_failed(format!(
            "{} spans {} versions: control planes cannot be rolled back that far without a \
                 snapshot",
            upgrade.id,
            upgrade.hops.len()
        ))
        .hint(
            "pass --from-snapshot to restore the cluster's backup; everything written since is \
             lost",
        ));
    }
    Ok(())
}

/// Closes the open change of settings if no host has them; returns whether it did.
pub(crate) fn close_untouched(
    cluster: &str,
    options: &RunOptions,
    session: &Session<'_>,
) -> Result<bool> {
    let options = options.of_another_run();
    let work = Work::begin_asking_hosts(Operation::Rollback, cluster, &options, session)?;
    let upgrades = UpgradeStore::of(work.state.files());
    let Some(open) = upgrades.open()?.filter(Document::is_reconfiguration) else {
        return Ok(false);
    };
    let (old, new) = settings_of(&open, &work)?;
    let to = [UpgradeImage::of(&open.from)];
    let sides = sides(&work, &old, &Start::Settings(Box::new(new)), &to, &[])?;
    work.with_execution(sides.target(), false, |execution| {
        let cluster = know(&sides, &work, execution)?;
        if touched_by_settings(&cluster, &Scope::Cluster, &open)?.values().any(|touched| *touched) {
            return Ok(false);
        }
        release_nodes(&cluster)?;
        start_over(&open, &cluster)?;
        // The record says that it was in process.
        execution.state_store.mark(&PhaseUpdate::Success)?;
        Ok(true)
    })
}

/// Closes an open upgrade that has touched no host: the same upgrade starts over, with its checks
/// and a backup of its own.
fn start_over(open: &Document, cluster: &ClusterSnapshot<'_>) -> Result<()> {
    let state = cluster.from.state.directory();
    if let Some(past) = cluster.upgrades.journal(state, open)? {
        cluster.upgrades.close_journal(state, &past)?;
    }
    abandon(open, cluster).map(|_| ())
}
