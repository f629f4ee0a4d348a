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
    After, ClusterSnapshot, Start, UpgradeImage, after_snapshot, know, rootfs_of, settings_of,
    sides,
};
use crate::upgrade::resume::{Continuing, check_home, release_nodes, resume_in};
use crate::upgrade::windows;
use crate::work::{RunOptions, Work, declined};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_cluster::cluster::context::{Host, MASTER};
use imgctl_cluster::pipeline::execution_context::{PhaseUpdate, Then};
use imgctl_cluster::runtime::setting::Setting;
use imgctl_cluster::sync::tree::ROOTFS;
use imgctl_cluster::upgrade::document::{
    Choices, Direction, Document, KeepContainers, KubeletSwap,
};
use imgctl_cluster::upgrade::plan::Planned;
use imgctl_cluster::upgrade::upgrade_store::{UpgradeStatus, UpgradeStore};
use imgctl_host::agent::protocol::InventoryQuestion;

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
    go_back(request, false, session)
}

/// Rolls back; without a question if the operator has already agreed.
pub(crate) fn go_back(
    request: &RollbackRequest,
    is_agreed: bool,
    session: &Session<'_>,
) -> Result<()> {
    let name = &request.cluster;
    check_home(name, session)?;
    let scope = request.scope.as_ref().unwrap_or(&Scope::Cluster);
    let looks_only = request.preview || request.options.dry_run;
    let options = RunOptions { dry_run: looks_only, ..request.options.clone() };
    let work = Work::begin_asking_hosts(Operation::Rollback, name, &options, session)?;
    let front = &session.front;
    let upgrades = UpgradeStore::of(work.state.files());
    let open = upgrades.open()?;
    let choices = &request.choices.choices;
    if let Some(back) = open.as_ref().filter(|open| open.direction == Direction::Back) {
        check_same_way(back, &upgrades, request, scope)?;
        let pause_after = choices.pause_after;
        let went = resume_in(&work, back, &Continuing { pause_after, ..Continuing::default() });
        drop(work);
        return windows::go_on(went, name, &request.options, session).map(|_| ());
    }
    let there = there(request, &work, &upgrades, open.as_ref())?;
    let is_whole = *scope == Scope::Cluster;
    check_later_settings(&there, &upgrades)?;
    let from = UpgradeImage::of(there.target());
    let mut reverted = there.clone();
    reverted.direction = Direction::Back;
    let after = match &request.from_snapshot {
        Some(_) if there.is_reconfiguration() => {
            return Err(Error::usage("a change of settings is rolled back without a snapshot")
                .hint("omit --from-snapshot"));
        }
        None if there.is_reconfiguration() => {
            if !is_whole && open.is_none() {
                return Err(Error::usage(
                    "settings are recorded for the whole cluster: they go back on all hosts",
                )
                .hint("omit --scope"));
            }
            After::unchanged(&settings_of(&reverted, &work)?.1)
        }
        Some(snapshot) => after_snapshot(&work, &there.id, snapshot)?,
        None => After::unchanged(work.existing()?),
    };
    let to = [UpgradeImage::of(&there.from)];
    let start = match there.is_reconfiguration() {
        true => Start::Settings(Box::new(settings_of(&reverted, &work)?.0)),
        false => Start::Image(from),
    };
    let sides = sides(&work, &after.cluster, &start, &to, &[])?;
    // A partial rollback of a closed upgrade does not change the cluster's version.
    let prepared = if is_whole || open.is_some() { sides.target() } else { &sides.from };
    let outcome = work.with_execution(prepared, false, |execution| {
        let known = know(&sides, &work, execution)?;
        let nothing = || {
            if !looks_only {
                release_nodes(&known)?;
                if let Some(open) = open.as_ref().filter(|_| is_whole) {
                    start_over(open, &known)?;
                }
            }
            Ok(Outcome::NothingToRollBack)
        };
        let touched = match &request.from_snapshot {
            Some(_) => BTreeMap::new(),
            None if there.is_reconfiguration() => touched_by_settings(&known, scope, &there)?,
            None => touched(&known, scope)?,
        };
        let only = match &request.from_snapshot {
            Some(_) => known.from.hosts.iter().map(Host::id).collect(),
            None => chosen(&known, scope, &touched, there.is_reconfiguration())?,
        };
        if only.is_empty() {
            return nothing();
        }
        check_reach(&there, &known, &only, request)?;
        let plan_request = PlanRequest {
            choices: Choices {
                no_canary: true,
                // What the upgrade has changed in records is changed back.
                keep_containers: match choices.keep_containers {
                    KeepContainers::None => there.choices.keep_containers,
                    chosen => chosen,
                },
                kubelet_swap: swap_back(&there, &request.choices),
                ..choices.clone()
            },
            direction: Direction::Back,
            id: None,
            only,
            to_snapshot: request.from_snapshot.is_some(),
            settings: there.settings.iter().map(reversed).collect(),
        };
        let (planned, _) = plan_of(&known, &plan_request)?;
        let Planned::Upgrade(mut document) = planned else {
            return nothing();
        };
        document.id = format!("{}-back-{}", there.id, upgrades.history()?.len());
        tell_who_is_back(&mut document, &known, scope, &touched);
        if request.from_snapshot.is_some() {
            // The snapshot determines the Pods, so container restarts cannot be predicted.
            document.restarts.clear();
            document.notes.extend(after.told.clone());
        }
        if looks_only {
            return Ok(Outcome::UpgradePlan(document));
        }
        front.announce(&Announcement::Upgrade(&document))?;
        check_blockers(&document)?;
        if !is_agreed && !front.confirm("Roll back?")? {
            return Err(declined());
        }
        upgrades.keep(&document, Some(&there.id), request.from_snapshot.as_deref())?;
        if !is_whole {
            let reopens = open.as_ref().map(|open| open.id.as_str());
            upgrades.keep_part(&document.id, reopens)?;
        }
        let carrying = Carrying {
            snapshot: request.from_snapshot.clone(),
            notes: after.told,
            ..Carrying::new(&document, closing(&upgrades, &document)?)
        };
        let outcome = carry(&known, &carrying)?;
        if outcome.is_done() {
            release_nodes(&known)?;
        }
        Ok(outcome)
    })?;
    front.show(&outcome)?;
    drop(work);
    if !looks_only {
        windows::go_on(Ok(outcome.is_done()), name, &request.options, session)?;
    }
    Ok(())
}

/// Returns how kubelets go back. The same kubelet keeps its containers, and an upgrade that kept them by
/// their records does not evict them on the way back, unless the operator says so.
fn swap_back(there: &Document, given: &GivenChoices) -> KubeletSwap {
    let is_given = given.options.iter().any(|(_, member)| *member == "kubeletSwap");
    match there.choices.keep_containers {
        _ if there.is_reconfiguration() => KubeletSwap::InPlace,
        KeepContainers::Rehash if !is_given => there.choices.kubelet_swap,
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
fn there(
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
fn touched(known: &ClusterSnapshot<'_>, scope: &Scope) -> Result<BTreeMap<String, bool>> {
    let execution = known.execution;
    let all = &known.from.hosts;
    let has_control_plane = all.iter().any(|host| host.is_control_plane() && scope.holds(host));
    let asked: Vec<Host> = all
        .iter()
        .filter(|host| scope.holds(host) || (has_control_plane && !host.is_control_plane()))
        .cloned()
        .collect();
    let mut touched = BTreeMap::new();
    for context in &known.hops {
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
fn tell_who_is_back(
    document: &mut Document,
    known: &ClusterSnapshot<'_>,
    scope: &Scope,
    touched: &BTreeMap<String, bool>,
) {
    let version = document.target().version.clone();
    for host in known.from.hosts.iter().filter(|host| scope.holds(host)) {
        let is_back = touched.get(&host.id()) == Some(&false);
        if let Some(before) = document.hosts.get_mut(&host.id())
            && before.skipped.is_some()
            && is_back
        {
            before.skipped = Some(match document.settings.is_empty() {
                true => format!("it is already back at {version}"),
                false => "it has its former settings".to_owned(),
            });
        }
    }
}

fn reversed(setting: &Setting) -> Setting {
    Setting { old: setting.new.clone(), new: setting.old.clone(), ..setting.clone() }
}

/// Fails if settings were changed after what is to be rolled back: its backups have files from
/// before.
fn check_later_settings(there: &Document, upgrades: &UpgradeStore) -> Result<()> {
    let history = upgrades.history()?;
    let at = history.iter().rposition(|ended| ended.id == there.id);
    let Some(at) = at else { return Ok(()) };
    for later in &history[at + 1..] {
        let is_done = upgrades.status(&later.id)? == Some(UpgradeStatus::Committed)
            && later.direction == Direction::Forward
            && later.end == UpgradeStatus::Committed;
        if is_done && upgrades.settings(&later.id)?.is_some() {
            let what = format!("{} was changed after {}", later.id, there.id);
            return Err(Error::check_failed(format!(
                "{what}: its settings would be lost on hosts and still be recorded"
            ))
            .hint(format!("roll {} back first: imgctl rollback --id {}", later.id, later.id)));
        }
    }
    Ok(())
}

/// Returns by host ID whether a change of settings has touched a host and was not taken back there.
fn touched_by_settings(
    known: &ClusterSnapshot<'_>,
    scope: &Scope,
    there: &Document,
) -> Result<BTreeMap<String, bool>> {
    let mark = format!("{}/backup/{}/touched", known.from.paths.root(), there.id);
    let asked = known.from.hosts.iter().filter(|host| {
        let before = there.hosts.get(&host.id());
        scope.holds(host) && before.is_some_and(|before| before.skipped.is_none())
    });
    asked
        .map(|host| {
            let agent = known.execution.pool.agent(host)?;
            Ok((host.id(), agent.read_file(&mark, 1 << 10)?.is_some()))
        })
        .collect()
}

fn chosen(
    known: &ClusterSnapshot<'_>,
    scope: &Scope,
    touched: &BTreeMap<String, bool>,
    is_reconfiguration: bool,
) -> Result<Vec<String>> {
    let hosts = &known.from.hosts;
    if let Scope::Node(name) = scope
        && !hosts.iter().any(|host| scope.holds(host))
    {
        return Err(Error::usage(format!("`{name}` is not a host of cluster {}", known.from.name)));
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
    there: &Document,
    known: &ClusterSnapshot<'_>,
    only: &[String],
    request: &RollbackRequest,
) -> Result<()> {
    let is_control_plane = |id: &String| known.from.control_planes().any(|host| host.id() == *id);
    if there.hops.len() > 1
        && there.runtime != "script"
        && request.from_snapshot.is_none()
        && only.iter().any(is_control_plane)
    {
        return Err(Error::check_failed(format!(
            "{} spans {} versions: control planes cannot be rolled back that far without a \
                 snapshot",
            there.id,
            there.hops.len()
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
        let known = know(&sides, &work, execution)?;
        if touched_by_settings(&known, &Scope::Cluster, &open)?.values().any(|touched| *touched) {
            return Ok(false);
        }
        release_nodes(&known)?;
        start_over(&open, &known)?;
        // The record says that it was in process.
        execution.state_store.mark(&PhaseUpdate::Success)?;
        Ok(true)
    })
}

/// Closes an open upgrade that has touched no host: the same upgrade starts over, with its checks
/// and a backup of its own.
fn start_over(open: &Document, known: &ClusterSnapshot<'_>) -> Result<()> {
    let state = known.from.state.directory();
    if let Some(past) = known.upgrades.journal(state, open)? {
        known.upgrades.close_journal(state, &past)?;
    }
    abandon(open, known).map(|_| ())
}
