//! The end of upgrades and rollbacks: the final status in the upgrade store; and what prevents their
//! start.

use std::sync::Arc;

use jiff::Timestamp;

use crate::session::Session;
use crate::work::controller;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::pipeline::execution_context::ExecutionContext;
use imgctl_cluster::pipeline::step::Step;
use imgctl_cluster::upgrade::document::Document;
use imgctl_cluster::upgrade::mirror::Mirror;
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
    let says = format!("close the {} {}", document.direction.verb(), document.id);
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
    session: &Session<'_>,
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
        tell_late(&mirror, session);
    }
    Ok(reopens)
}

/// Ends the journal copies on control planes and reports late ones.
pub(crate) fn tell_late(mirror: &Arc<Mirror>, session: &Session<'_>) {
    for late in mirror.end() {
        session.front.note(&late);
    }
}

/// Fails if the plan has blockers.
pub fn check_blockers(document: &Document) -> Result<()> {
    let blockers: Vec<_> = document.blockers().collect();
    if blockers.is_empty() {
        return Ok(());
    }
    let mut message = format!("the {} cannot start:", document.direction.verb());
    for finding in &blockers {
        let host = finding.host.as_ref().map(|host| format!("{host}: ")).unwrap_or_default();
        message.push_str(&format!("\n  {}: {host}{}", finding.check, finding.what));
    }
    let mut error = Error::new(Kind::CheckFailed, message);
    for hint in blockers.iter().filter_map(|finding| finding.hint.as_ref()) {
        error = error.hint(hint.clone());
    }
    Err(error.hint("pass --skip-check NAME to ignore one of them"))
}

/// Returns the current time in RFC 3339, in seconds.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
