//! `imgctl rollback`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::commands::upgrade::check_blockers;
use crate::cli::commands::upgrade::open::{Going, release_nodes, resume_in};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::upgrade_choices::{BackPauseArg, MovingArgs};
use crate::cli::upgrade_close::{abandon, closing, end};
use crate::cli::upgrade_images::{Start, UpgradeImage, rootfs_of, sides_to};
use crate::cli::upgrade_on_failure::Reaching;
use crate::cli::upgrade_snapshot::{self, After};
use crate::cli::upgrade_work::{
    Carrying, ClusterSnapshot, PlanRequest, RunOutcome, carry, know, plan_of,
};
use crate::cli::{upgrade_copy, upgrade_view};
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_cluster::cluster::host::{Host, MASTER};
use imgctl_cluster::pipeline::execution_context::ExecutionContext;
use imgctl_cluster::sync::tree::ROOTFS;
use imgctl_cluster::upgrade::document::{Choices, Direction, Document};
use imgctl_cluster::upgrade::plan::Planned;
use imgctl_cluster::upgrade::upgrade_store::{UpgradeStatus, UpgradeStore};
use imgctl_host::agent::protocol::InventoryQuestion;

/// Roll back a cluster to its state before the last upgrade
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Restores the former files, programs and settings of hosts that an upgrade has touched: workers
first, then control planes. What cannot be restored that way (data that a newer version has
written) comes from the snapshot that the upgrade made; everything written since then is lost.

Examples:
  imgctl rollback --plan
  imgctl rollback
  imgctl rollback --scope node=10.0.0.21
  imgctl rollback --scope workers
  imgctl rollback --from-snapshot ~/.sealos/default/backup/v1.34.9-1a2b3c4d/snapshot.db --i-understand-data-loss"
)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Hosts to roll back: node=HOST, workers, cluster [default: cluster]
    #[arg(long, value_name = "SCOPE")]
    scope: Option<String>,

    /// Upgrade to roll back [default: the open one, otherwise the last]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,

    /// Show what would happen, without changing anything
    #[arg(long)]
    plan: bool,

    /// Snapshot of the cluster's data to restore, a file on this machine
    #[arg(long, value_name = "FILE", requires = "i_understand_data_loss")]
    from_snapshot: Option<PathBuf>,

    /// Accept the loss of everything written since the snapshot
    #[arg(long)]
    i_understand_data_loss: bool,

    /// Stop after this part; `imgctl upgrade resume` continues
    #[arg(long, value_enum)]
    pause_after: Option<BackPauseArg>,

    #[command(flatten)]
    moving: MovingArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

impl RollbackArgs {
    /// Returns the arguments for rolling back one host on which an upgrade failed.
    pub(crate) fn of_host(host: &str, choices: &Choices, reaching: &Reaching<'_>) -> Self {
        Self {
            cluster: ClusterArg { cluster: reaching.cluster.to_owned() },
            scope: Some(format!("node={host}")),
            id: None,
            plan: false,
            from_snapshot: None,
            i_understand_data_loss: false,
            pause_after: None,
            moving: MovingArgs::of_failed(choices),
            ssh: reaching.ssh.clone(),
            work: reaching.work.of_another_run(),
            registry: reaching.registry.clone(),
        }
    }
}

/// Hosts to roll back.
#[derive(Clone, Debug, PartialEq)]
enum Scope {
    Node(String),
    Workers,
    Cluster,
}

impl Scope {
    fn parse(text: &str) -> Result<Self> {
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

/// Rolls back.
pub(crate) fn run(args: &RollbackArgs, context: &Context) -> Result<()> {
    go_back(args, false, context)
}

/// Rolls back without a prompt, for an operator who has already agreed.
pub(crate) fn run_agreed(args: &RollbackArgs, context: &Context) -> Result<()> {
    go_back(args, true, context)
}

fn go_back(args: &RollbackArgs, is_agreed: bool, context: &Context) -> Result<()> {
    let name = &args.cluster.cluster;
    upgrade_copy::check_home(name, context)?;
    let scope = Scope::parse(args.scope.as_deref().unwrap_or("cluster"))?;
    let looks_only = args.plan || args.work.dry_run;
    let mut flags = args.work.clone();
    flags.dry_run = looks_only;
    let work = Work::begin("rollback", name, &flags, context)?.over(&args.ssh);
    let book = UpgradeStore::of(work.state.directory());
    let open = book.open()?;
    if let Some(back) = open.as_ref().filter(|open| open.direction == Direction::Back) {
        check_same_way(back, &book, args, &scope)?;
        let going = Going {
            cluster: name,
            pause_after: args.pause_after.map(Into::into),
            ssh: &args.ssh,
            work: &flags,
            registry: &args.registry,
        };
        return resume_in(&work, back, &going).map(|_| ());
    }
    let there = there(args, &work, &book, open.as_ref())?;
    let is_whole = scope == Scope::Cluster;
    let from = UpgradeImage::of(there.target());
    let after = match &args.from_snapshot {
        Some(snapshot) => upgrade_snapshot::after(&work, &there.id, snapshot)?,
        None => After::unchanged(work.existing()?),
    };
    let sides = sides_to(
        &work,
        &after.cluster,
        &Start::Image(from),
        &[UpgradeImage::of(&there.from)],
        &[],
        &args.registry,
    )?;
    // A partial rollback of a closed upgrade does not change the cluster's version.
    let is_open = open.is_some();
    let prepared = match is_whole || is_open {
        true => sides.target(),
        false => &sides.from,
    };
    work.with_means(prepared, &args.ssh, false, |means| {
        let known = know(&sides, means);
        let touched = match &args.from_snapshot {
            Some(_) => BTreeMap::new(),
            None => touched(&known, &scope, means)?,
        };
        let only = match &args.from_snapshot {
            Some(_) => known.from.hosts.iter().map(Host::id).collect(),
            None => chosen(&known, &scope, &touched)?,
        };
        if only.is_empty() {
            let closes = open.as_ref().filter(|_| is_whole);
            return nothing(looks_only, &book, closes, &known, means, context);
        }
        check_reach(&there, &known, &only, args)?;
        let choices = Choices {
            no_canary: true,
            pause_after: args.pause_after.map(Into::into),
            ..args.moving.choices()?
        };
        let wish = PlanRequest {
            choices,
            direction: Direction::Back,
            id: None,
            only,
            to_snapshot: args.from_snapshot.is_some(),
            containers: true,
        };
        let (planned, _) = plan_of(&work, &known, &wish, means)?;
        let Planned::Upgrade(mut document) = planned else {
            let closes = open.as_ref().filter(|_| is_whole);
            return nothing(looks_only, &book, closes, &known, means, context);
        };
        document.id = format!("{}-back-{}", there.id, book.history()?.len());
        tell_who_is_back(&mut document, &known, &scope, &touched);
        if args.from_snapshot.is_some() {
            // The snapshot determines the Pods, so container restarts cannot be predicted.
            document.restarts.clear();
            document.notes.extend(after.told.clone());
        }
        if looks_only || !context.ui.is_json() {
            upgrade_view::show(&document, context)?;
        }
        if looks_only {
            return check_blockers(&document);
        }
        check_blockers(&document)?;
        if !is_agreed && !context.ui.confirm("Roll back?")? {
            return Err(Error::new(Kind::Denied, "declined; nothing was changed"));
        }
        book.keep(&document, Some(&there.id), args.from_snapshot.as_deref())?;
        if !is_whole {
            let reopens = open.as_ref().map(|open| open.id.as_str());
            book.keep_part(&document.id, reopens)?;
        }
        let carrying = Carrying {
            document: &document,
            pause_after: document.choices.pause_after,
            commit: closing(&book, &document)?,
            again: Vec::new(),
            snapshot: args.from_snapshot.clone(),
        };
        let went = carry(&work, &known, &[], &carrying, means)?;
        if matches!(went, RunOutcome::Done(..)) {
            release_nodes(&known, context)?;
        }
        end(&went, &document, context)?;
        after.tell(&went, context);
        Ok(())
    })
}

/// Checks that the request matches the rollback in progress, which cannot change into another one.
fn check_same_way(
    back: &Document,
    book: &UpgradeStore,
    args: &RollbackArgs,
    scope: &Scope,
) -> Result<()> {
    let other = |what: String| {
        let message = format!("the rollback {} is in progress and {what}", back.id);
        Err(Error::new(Kind::Busy, message).hint(
            "run `imgctl upgrade resume` to continue it, or `imgctl upgrade abort` and then this \
             command again",
        ))
    };
    if let Some(wanted) = &args.from_snapshot {
        let wanted = std::path::absolute(wanted).path("use", wanted)?;
        if book.snapshot(&back.id)?.as_ref() != Some(&wanted) {
            return other(format!("does not restore {}", wanted.display()));
        }
    }
    let is_part = book.part(&back.id)?.is_some();
    if args.scope.is_some() && !scope.is_of(back, is_part) {
        return other("has a different --scope".to_owned());
    }
    if let Some(id) = &args.id
        && book.instead(&back.id)?.as_ref() != Some(id)
    {
        return other(format!("rolls back an upgrade other than {id}"));
    }
    match &args.moving.against(&back.choices)?[..] {
        [] => Ok(()),
        differ => other(format!("has a different {}", differ.join(", "))),
    }
}

/// Returns the upgrade to roll back.
fn there(
    args: &RollbackArgs,
    work: &Work<'_>,
    book: &UpgradeStore,
    open: Option<&Document>,
) -> Result<Document> {
    if let Some(id) = &args.id {
        return book.document(id);
    }
    if let Some(open) = open {
        return Ok(open.clone());
    }
    // A later upgrade may have moved only hosts that were unreachable: the snapshot names its own.
    if let Some(id) = args.from_snapshot.as_deref().and_then(upgrade_of)
        && let Ok(document) = book.document(id)
    {
        return Ok(document);
    }
    let current = rootfs_of(work.existing()?)?;
    let history = book.history()?;
    let last = history.iter().rev().find(|ended| {
        ended.end == UpgradeStatus::Committed
            && ended.direction == Direction::Forward
            && ended.to.image == current
            && book.stand(&ended.id).ok().flatten() == Some(UpgradeStatus::Committed)
    });
    match last {
        Some(ended) => book.document(&ended.id),
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
fn touched(
    known: &ClusterSnapshot,
    scope: &Scope,
    means: &ExecutionContext<'_>,
) -> Result<BTreeMap<String, bool>> {
    let all = &known.from.hosts;
    let has_control_plane = all.iter().any(|host| host.is_control_plane() && scope.holds(host));
    let asked: Vec<Host> = all
        .iter()
        .filter(|host| scope.holds(host) || (has_control_plane && !host.is_control_plane()))
        .cloned()
        .collect();
    let mut touched = BTreeMap::new();
    for scene in &known.hops {
        let files = means.files.stage(scene, &asked, &means.crew)?;
        for host in &asked {
            let former = files.trees.get(&host.id()).and_then(|trees| trees.get(ROOTFS));
            let question = InventoryQuestion {
                root: scene.paths.root(),
                trees: vec![ROOTFS.to_owned()],
                ..InventoryQuestion::default()
            };
            let inventory = means
                .crew
                .agent(host)
                .and_then(|agent| agent.inventory(&question))
                .map_err(|error| match scope.holds(host) {
                    true => error,
                    false => error.hint(
                        "no worker may be newer than a control plane that is rolled back, so all \
                         workers are queried",
                    ),
                })?;
            let is_touched = inventory.trees.get(ROOTFS) != former;
            touched.insert(host.id(), is_touched);
        }
    }
    Ok(touched)
}

/// Explains why hosts of the scope are skipped: they already have the former files.
fn tell_who_is_back(
    document: &mut Document,
    known: &ClusterSnapshot,
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
            before.skipped = Some(format!("it is already back at {version}"));
        }
    }
}

fn chosen(
    known: &ClusterSnapshot,
    scope: &Scope,
    touched: &BTreeMap<String, bool>,
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
        .filter(|id| touched.get(id) == Some(&true))
        .collect();
    if chosen.iter().any(|host| host.is_control_plane()) && !newer.is_empty() {
        return Err(Error::new(
            Kind::CheckFailed,
            format!(
                "{} would be newer than a control plane: workers must be rolled back first",
                newer.join(", ")
            ),
        )
        .hint("run `imgctl rollback --scope workers` first, or pass --scope cluster"));
    }
    Ok(chosen.into_iter().map(Host::id).collect())
}

/// Fails if control planes went through several minor versions: only a snapshot can roll them back.
fn check_reach(
    there: &Document,
    known: &ClusterSnapshot,
    only: &[String],
    args: &RollbackArgs,
) -> Result<()> {
    let is_control_plane = |id: &String| known.from.control_planes().any(|host| host.id() == *id);
    if there.hops.len() > 1
        && there.runtime != "script"
        && args.from_snapshot.is_none()
        && only.iter().any(is_control_plane)
    {
        return Err(Error::new(
            Kind::CheckFailed,
            format!(
                "{} spans {} versions: control planes cannot be rolled back that far without a \
                 snapshot",
                there.id,
                there.hops.len()
            ),
        )
        .hint(
            "pass --from-snapshot to restore the cluster's backup; everything written since is \
             lost",
        ));
    }
    Ok(())
}

/// Reports that no host was touched, and closes an open upgrade.
fn nothing(
    looks_only: bool,
    book: &UpgradeStore,
    closes: Option<&Document>,
    known: &ClusterSnapshot,
    means: &ExecutionContext<'_>,
    context: &Context,
) -> Result<()> {
    if !looks_only {
        release_nodes(known, context)?;
        if let Some(open) = closes {
            // The same upgrade starts over, with its checks and a backup of its own.
            let state = &known.from.state_directory;
            if let Some(past) = book.journal(state, open)? {
                book.close_journal(state, &past)?;
            }
            abandon(book, open, &known.from, means, context)?;
        }
    }
    context.ui.say("nothing to do: every host is at the former version");
    Ok(())
}
