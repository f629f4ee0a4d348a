//! Operations on an open upgrade: show its progress, pause, resume and abort it.

use serde_json::json;

use crate::cli::cluster_options::state;
use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::commands::upgrade::AbortArgs;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::upgrade_close::{abandon, closing, end, verb};
use crate::cli::upgrade_images::{Start, UpgradeImage, UpgradeImages, is_recorded, sides_to};
use crate::cli::upgrade_on_failure::{self, Reaching};
use crate::cli::upgrade_replace::{self, Replacing};
use crate::cli::upgrade_snapshot::{self, After};
use crate::cli::upgrade_work::{Carrying, ClusterSnapshot, RunOutcome, carry, know, pipeline_of};
use crate::cli::{plan_view, upgrade_copy, upgrade_status};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_cluster::upgrade::document::{Direction, Document, PauseAfter};
use imgctl_cluster::upgrade::upgrade_store::UpgradeStore;

/// Options for resuming.
pub(crate) struct Going<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) pause_after: Option<PauseAfter>,
    pub(crate) ssh: &'a SshArgs,
    pub(crate) work: &'a WorkArgs,
    pub(crate) registry: &'a RegistryArgs,
}

pub(super) fn go_on(going: &Going<'_>, context: &Context) -> Result<()> {
    upgrade_copy::check_home(going.cluster, context)?;
    let work = Work::begin("upgrade", going.cluster, going.work, context)?.over(going.ssh);
    let open = UpgradeStore::of(work.state.directory()).open()?.ok_or_else(|| {
        Error::not_found(format!("cluster {} has no upgrade to resume", going.cluster))
            .hint("start one with `imgctl upgrade IMAGE`")
    })?;
    go_on_in(work, &open, going)
}

/// Resumes the upgrade, and lets spare hosts take over when the rest is done.
pub(super) fn go_on_in(work: Work<'_>, open: &Document, going: &Going<'_>) -> Result<()> {
    let context = work.context;
    let went = resume_in(&work, open, going);
    drop(work);
    let reaching = Reaching {
        cluster: going.cluster,
        ssh: going.ssh,
        work: going.work,
        registry: going.registry,
    };
    let is_done = upgrade_on_failure::take_back(went, &reaching, context)?;
    let pairs = upgrade_replace::pairs(&open.choices)?;
    if !is_done || pairs.is_empty() {
        return Ok(());
    }
    let replacing = Replacing {
        cluster: going.cluster,
        ssh: going.ssh,
        work: going.work,
        registry: going.registry,
    };
    upgrade_replace::replace(&pairs, &replacing, context)
}

/// Resumes an open document, forward or back; returns `true` when it is done.
pub(crate) fn resume_in(work: &Work<'_>, open: &Document, going: &Going<'_>) -> Result<bool> {
    let context = work.context;
    let book = UpgradeStore::of(work.state.directory());
    let hops: Vec<UpgradeImage> = open.hops.iter().map(UpgradeImage::of).collect();
    let install = book.install(&open.id)?;
    let start = Start::of_open(open, work)?;
    let snapshot = book.snapshot(&open.id)?;
    let after = match (&snapshot, book.instead(&open.id)?) {
        (Some(snapshot), Some(there)) => upgrade_snapshot::after(work, &there, snapshot)?,
        _ => After::unchanged(work.existing()?),
    };
    let sides = sides_to(work, &after.cluster, &start, &hops, &install, going.registry)?;
    // A partial rollback of a closed upgrade does not change the cluster's version.
    let prepared = match book.part(&open.id)? {
        Some(None) => &sides.from,
        _ => sides.target(),
    };
    work.with_means(prepared, going.ssh, false, |means| {
        let known = know(&sides, means);
        let carrying = Carrying {
            document: open,
            pause_after: going.pause_after,
            commit: closing(&book, open)?,
            again: book.again(&open.id)?,
            snapshot,
        };
        if going.work.dry_run {
            let planned = pipeline_of(&known, &install, &carrying, means, context.store()?)?;
            plan_view::show(&planned, context)?;
            return Ok(false);
        }
        let went = carry(work, &known, &install, &carrying, means)?;
        end(&went, open, context)?;
        after.tell(&went, context);
        Ok(matches!(went, RunOutcome::Done(..)))
    })
}

pub(super) fn ask_pause(cluster: &str, context: &Context) -> Result<()> {
    upgrade_copy::check_home(cluster, context)?;
    let state = state(cluster, context)?;
    let book = UpgradeStore::of(state.directory());
    let Some(open) = book.open()? else {
        return Err(Error::not_found(format!("cluster {cluster} has no upgrade to pause")));
    };
    book.ask_pause(&open.id)?;
    context.ui.say(&format!("{} pauses when the running steps are done", open.id));
    Ok(())
}

pub(super) fn status(cluster: &str, context: &Context) -> Result<()> {
    let state = state(cluster, context)?;
    let copy = match state.clusterfile().exists() {
        true => None,
        false => upgrade_copy::here(cluster, context)?,
    };
    let directory = match &copy {
        Some(copy) => &copy.directory,
        None => {
            state.require()?;
            state.directory()
        }
    };
    let book = UpgradeStore::of(directory);
    let open = book.open()?;
    let past = match &open {
        None => None,
        Some(open) => book.journal(directory, open)?,
    };
    let stand = match &open {
        None => None,
        Some(open) => book.stand(&open.id)?,
    };
    let history = book.history()?;
    if context.ui.is_json() {
        let steps: Vec<_> = past.iter().flat_map(|past| &past.order).collect();
        return context.ui.json(&json!({
            "cluster": cluster,
            "open": open.as_ref().map(|open| json!({
                "id": open.id,
                "direction": open.direction,
                "from": open.from,
                "to": open.target(),
                "state": stand,
                "journal": past.as_ref().map(|past| &past.id),
                "steps": steps.iter().map(|step| json!({
                    "step": step,
                    "outcome": past.as_ref()
                        .and_then(|past| past.steps.get(*step))
                        .and_then(|step| step.outcome),
                })).collect::<Vec<_>>(),
            })),
            "history": history,
            "copy": copy.as_ref().map(|copy| json!({
                "time": copy.says.time,
                "controller": copy.says.controller,
                "directory": copy.directory,
            })),
        }));
    }
    if let Some(copy) = &copy {
        context.ui.note(&format!(
            "this is a copy as of {}; {} runs the upgrade",
            copy.says.time, copy.says.controller
        ));
    }
    upgrade_status::show(cluster, open.as_ref(), stand, past.as_ref(), &history, context)
}

pub(super) fn give_up(args: &AbortArgs, context: &Context) -> Result<()> {
    let name = &args.cluster.cluster;
    upgrade_copy::check_home(name, context)?;
    let flags = WorkArgs::default();
    let work = Work::begin("upgrade", name, &flags, context)?;
    let book = UpgradeStore::of(work.state.directory());
    let open = book
        .open()?
        .ok_or_else(|| Error::not_found(format!("cluster {name} has no upgrade to abort")))?;
    let past = book.journal(work.state.directory(), &open)?;
    let current = work.existing()?.clone();
    let forward = open.direction == Direction::Forward;
    if forward && is_recorded(&open, &work)? {
        return Err(Error::new(
            Kind::CheckFailed,
            format!(
                "cannot abort the upgrade {}: all hosts are at {}, and that is recorded",
                open.id,
                open.target().version
            ),
        )
        .hint(
            "run `imgctl upgrade resume` to close it; after that, `imgctl rollback` to roll \
               back",
        ));
    }
    let mut touched: Vec<String> = past
        .iter()
        .flat_map(|past| &past.order)
        .filter(|step| step.ends_with("/switch"))
        .filter_map(|step| step.split('/').nth(1).map(str::to_owned))
        .collect();
    touched.dedup();
    if !touched.is_empty() && !args.force {
        let (ways, leaves) = match forward {
            true => (
                "run `imgctl rollback` to roll them back, or `imgctl upgrade resume` to continue",
                "leaves them as they are, with the cluster at two versions",
            ),
            false => {
                ("run `imgctl upgrade resume` to continue the rollback", "leaves them as they are")
            }
        };
        return Err(Error::new(
            Kind::CheckFailed,
            format!(
                "cannot abort the {} {}: it has touched {}",
                verb(&open),
                open.id,
                touched.join(", ")
            ),
        )
        .hint(format!("{ways}; --force {leaves}")));
    }
    let prepared = work.recorded(current)?;
    let reopened = work.with_means(&prepared, &args.ssh, false, |means| {
        let sides = UpgradeImages {
            from: work.recorded(work.existing()?.clone())?,
            hops: Vec::new(),
            install: Vec::new(),
        };
        let known = know(&sides, means);
        release_nodes(&known, context)?;
        if let Some(past) = past.as_ref().filter(|_| touched.is_empty()) {
            book.close_journal(work.state.directory(), past)?;
        }
        abandon(&book, &open, &known.from, means, context)
    })?;
    context.ui.say(&format!(
        "{} is aborted; its files stay on the hosts and are reused if it starts again",
        open.id
    ));
    if let Some(id) = reopened {
        context.ui.say(&format!(
            "the upgrade {id}, which it was to roll back, is open again: run `imgctl upgrade \
             resume` to continue it"
        ));
    }
    Ok(())
}

/// Uncordons the Nodes that an imgctl upgrade has cordoned.
pub(crate) fn release_nodes(known: &ClusterSnapshot, context: &Context) -> Result<()> {
    let Some(Ok(api)) = &known.api else {
        return Ok(());
    };
    let nodes = api.list("/api/v1/nodes").map_err(Error::from)?;
    for node in &nodes {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let mark = &node["metadata"]["annotations"][imgctl_kube::drain::MARK];
        if mark.is_string() && imgctl_kube::drain::uncordon(&**api, name)? {
            context.ui.say(&format!("Node {name} is schedulable again"));
        }
    }
    Ok(())
}
