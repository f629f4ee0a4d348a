//! The end of upgrades and rollbacks: the final status in the upgrade store, and the messages about
//! it.

use std::sync::Arc;

use crate::cli::cluster_work::controller;
use crate::cli::context::Context;
use crate::cli::upgrade_status;
use crate::cli::upgrade_work::{RunOutcome, now};
use crate::cli::work_report::report;
use imgctl_base::error::Result;
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::pipeline::execution_context::ExecutionContext;
use imgctl_cluster::pipeline::step::Step;
use imgctl_cluster::upgrade::document::{Direction, Document, HostBefore};
use imgctl_cluster::upgrade::mirror::Mirror;
use imgctl_cluster::upgrade::plan::CANNOT_BE_REACHED;
use imgctl_cluster::upgrade::upgrade_store::{UpgradeStatus, UpgradeStore};

/// Returns the step that closes `document` when everything is done, in the way that the upgrade
/// store prescribes.
pub(crate) fn closing(book: &UpgradeStore, document: &Document) -> Result<Step> {
    Ok(match book.part(&document.id)? {
        Some(reopens) => parted(book, document, reopens),
        None => whole(book, document, book.instead(&document.id)?),
    })
}

/// `instead` is the upgrade that was rolled back.
fn whole(book: &UpgradeStore, document: &Document, instead: Option<String>) -> Step {
    let (book, document) = (book.clone(), document.clone());
    let says = format!("close the {} {}", verb(&document), document.id);
    let id = document.id.clone();
    Step::local("close", says, &id, move |_| {
        if let Some(instead) = &instead {
            book.stand_of(instead, UpgradeStatus::RolledBack)?;
        }
        book.end(&document, UpgradeStatus::Committed, &now())
    })
    .always()
}

/// Closes a partial rollback: an upgrade that was open is open again, and repeats these hosts.
fn parted(book: &UpgradeStore, document: &Document, reopens: Option<String>) -> Step {
    let (book, document) = (book.clone(), document.clone());
    let says = "record which hosts were rolled back".to_owned();
    let id = document.id.clone();
    Step::local("close", says, &id, move |_| {
        if let Some(open) = &reopens {
            let hosts = document
                .hosts
                .iter()
                .filter(|(_, host)| host.skipped.is_none())
                .map(|(id, _)| id.clone());
            book.do_again(open, &hosts.collect::<Vec<_>>())?;
        }
        book.end_for(&document, UpgradeStatus::Committed, &now(), reopens.as_deref())
    })
    .always()
}

/// Closes an upgrade that does not continue, and reopens the unfinished upgrade that it was to roll
/// back, if any. Returns the ID of the reopened one.
pub(crate) fn abandon(
    book: &UpgradeStore,
    document: &Document,
    scene: &ClusterContext,
    means: &ExecutionContext<'_>,
    context: &Context,
) -> Result<Option<String>> {
    let reopens = match book.part(&document.id)? {
        Some(reopens) => reopens,
        None => book.instead(&document.id)?.filter(|id| {
            let stand = book.stand(id).ok().flatten();
            matches!(
                stand,
                Some(UpgradeStatus::Running | UpgradeStatus::Paused | UpgradeStatus::Failed)
            )
        }),
    };
    book.end_for(document, UpgradeStatus::Aborted, &now(), reopens.as_deref())?;
    if means.copy_state {
        let mirror = Mirror::begin(scene, &means.crew, &document.id, &controller())?;
        tell_late(&mirror, context);
    }
    Ok(reopens)
}

/// Ends the journal copies on control planes and reports late ones.
pub(crate) fn tell_late(mirror: &Arc<Mirror>, context: &Context) {
    for late in mirror.end() {
        context.ui.note(&late);
    }
}

pub(crate) fn verb(document: &Document) -> &'static str {
    match document.direction {
        Direction::Forward => "upgrade",
        Direction::Back => "rollback",
    }
}

fn is_away(host: &HostBefore) -> bool {
    let why = host.skipped.as_deref().unwrap_or_default();
    why.starts_with(CANNOT_BE_REACHED)
}

/// Reports the outcome.
pub(crate) fn end(went: &RunOutcome, document: &Document, context: &Context) -> Result<()> {
    match went {
        RunOutcome::Paused => {
            context.ui.say(&format!(
                "{} {} is paused: run `imgctl upgrade resume` to continue",
                verb(document),
                document.id
            ));
            Ok(())
        }
        RunOutcome::Done(summary, came) => {
            report(summary, &document.cluster, context)?;
            upgrade_status::came(came, context)?;
            let hosts = document.hosts.iter();
            let (gone, left): (Vec<_>, Vec<_>) =
                hosts.partition(|(_, host)| host.skipped.is_none());
            let version = &document.target().version;
            for (id, host) in &left {
                let why = host.skipped.as_deref().unwrap_or_default();
                context.ui.say(&format!("host {id} was skipped: {why}"));
            }
            if document.direction == Direction::Forward
                && left.iter().any(|(_, host)| is_away(host))
            {
                context.ui.say(&format!(
                    "when skipped hosts are reachable again, run `imgctl upgrade {}` to upgrade \
                     them",
                    document.target().image
                ));
            }
            // A rollback with a scope changes the version of its hosts, not of the cluster.
            if document.direction == Direction::Back && !left.is_empty() {
                for (id, _) in gone {
                    context.ui.say(&format!("host {id} is now {version}"));
                }
                return Ok(());
            }
            context.ui.say(&format!("cluster {} is now {version}", document.cluster));
            Ok(())
        }
    }
}
