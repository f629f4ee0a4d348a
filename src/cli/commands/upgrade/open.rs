//! What can be done about an upgrade that has begun: to tell how far it is, to pause it, to go on,
//! to give it up.

use serde_json::json;

use crate::cli::cluster_options::state;
use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::commands::upgrade::{AbortArgs, commit, end, verb};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::upgrade_replace::{self, Replacing};
use crate::cli::upgrade_work::{
    Carrying, Known, Side, Sides, Went, carry, know, now, pipeline_of, rootfs_of, sides,
};
use crate::cli::{plan_view, upgrade_status};
use crate::error::{Error, Kind, Result};
use crate::upgrade::book::{Book, Stand};
use crate::upgrade::document::{Direction, Document, PauseAfter};

/// How to go on.
pub(crate) struct Going<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) pause_after: Option<PauseAfter>,
    pub(crate) ssh: &'a SshArgs,
    pub(crate) work: &'a WorkArgs,
    pub(crate) registry: &'a RegistryArgs,
}

pub(super) fn go_on(going: &Going<'_>, context: &Context) -> Result<()> {
    let work = Work::begin("upgrade", going.cluster, going.work, context)?;
    let open = Book::of(work.state.directory()).open()?.ok_or_else(|| {
        Error::not_found(format!(
            "cluster {} has no upgrade to go on with",
            going.cluster
        ))
        .hint("begin one with `imgctl upgrade IMAGE`")
    })?;
    go_on_in(work, &open, going)
}

/// Goes on, and lets spares take over when the rest is done.
pub(super) fn go_on_in(work: Work<'_>, open: &Document, going: &Going<'_>) -> Result<()> {
    let context = work.context;
    let is_done = resume_in(&work, open, going)?;
    drop(work);
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

/// Goes on with an open document, forth or back; `true` when it is done.
pub(crate) fn resume_in(work: &Work<'_>, open: &Document, going: &Going<'_>) -> Result<bool> {
    let context = work.context;
    let book = Book::of(work.state.directory());
    let hops: Vec<Side> = open.hops.iter().map(Side::of).collect();
    let install = book.install(&open.id)?;
    // Killed behind its last host, it has recorded the new image already; what was done came from
    // the former one all the same, and is not to be done again.
    let is_recorded = rootfs_of(work.existing()?)? != open.from.image;
    let from = match open.direction {
        Direction::Forward if !is_recorded => None,
        _ => Some(Side::of(&open.from)),
    };
    let sides = sides(work, from.as_ref(), &hops, &install, going.registry)?;
    work.with_means(sides.target(), going.ssh, false, |means| {
        let known = know(&sides, means);
        let carrying = Carrying {
            document: open,
            pause_after: going.pause_after,
            commit: commit(&book, open, book.instead(&open.id)?.as_deref()),
            again: book.again(&open.id)?,
            snapshot: book.snapshot(&open.id)?,
        };
        if going.work.dry_run {
            let planned = pipeline_of(&known, &install, &carrying, means)?;
            plan_view::show(&planned, context)?;
            return Ok(false);
        }
        let went = carry(work, &known, &install, &carrying, means)?;
        end(&went, open, context)?;
        Ok(matches!(went, Went::Done(..)))
    })
}

pub(super) fn ask_pause(cluster: &str, context: &Context) -> Result<()> {
    let state = state(cluster, context)?;
    let book = Book::of(state.directory());
    let Some(open) = book.open()? else {
        return Err(Error::not_found(format!(
            "cluster {cluster} has no upgrade that could pause"
        )));
    };
    book.ask_pause(&open.id)?;
    context.ui.say(&format!(
        "{} stops when the steps that run now are done",
        open.id
    ));
    Ok(())
}

pub(super) fn status(cluster: &str, context: &Context) -> Result<()> {
    let state = state(cluster, context)?;
    state.require()?;
    let book = Book::of(state.directory());
    let open = book.open()?;
    let past = match &open {
        None => None,
        Some(open) => book.journal(state.directory(), open)?,
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
        }));
    }
    upgrade_status::show(
        cluster,
        open.as_ref(),
        stand,
        past.as_ref(),
        &history,
        context,
    )
}

pub(super) fn give_up(args: &AbortArgs, context: &Context) -> Result<()> {
    let name = &args.cluster.cluster;
    let flags = WorkArgs::default();
    let work = Work::begin("upgrade", name, &flags, context)?;
    let book = Book::of(work.state.directory());
    let open = book
        .open()?
        .ok_or_else(|| Error::not_found(format!("cluster {name} has no upgrade to give up")))?;
    let past = book.journal(work.state.directory(), &open)?;
    let touched: Vec<String> = past
        .iter()
        .flat_map(|past| &past.order)
        .filter(|step| step.ends_with("/switch"))
        .filter_map(|step| step.split('/').nth(1).map(str::to_owned))
        .collect();
    if !touched.is_empty() && !args.force {
        return Err(Error::new(
            Kind::CheckFailed,
            format!(
                "the {} {} has touched {}: it cannot simply be given up",
                verb(&open),
                open.id,
                touched.join(", ")
            ),
        )
        .hint("`imgctl rollback` takes them back, `imgctl upgrade resume` goes on; --force leaves them as they are"));
    }
    let current = work.existing()?.clone();
    let prepared = work.recorded(current)?;
    work.with_means(&prepared, &args.ssh, false, |means| {
        let sides = Sides {
            from: work.recorded(work.existing()?.clone())?,
            hops: Vec::new(),
            install: Vec::new(),
        };
        release_nodes(&know(&sides, means), context)
    })?;
    book.end(&open, Stand::Aborted, &now())?;
    context.ui.say(&format!(
        "{} is given up; the files that it brought stay on the hosts and are used when it begins again",
        open.id
    ));
    Ok(())
}

/// Nodes that an upgrade of ours has cordoned take Pods again.
pub(crate) fn release_nodes(known: &Known, context: &Context) -> Result<()> {
    let Some(Ok(api)) = &known.api else {
        return Ok(());
    };
    let nodes = api.list("/api/v1/nodes").map_err(Error::from)?;
    for node in &nodes {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let mark = &node["metadata"]["annotations"][crate::kube::drain::MARK];
        if mark.is_string() && crate::kube::drain::uncordon(&**api, name)? {
            context.ui.say(&format!("Node {name} takes Pods again"));
        }
    }
    Ok(())
}
