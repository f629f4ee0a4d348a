//! The end of upgrades and rollbacks: the final status in the upgrade store; and what prevents their
//! start.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::session::Session;
use crate::upgrade::images::ClusterSnapshot;
use imgctl_base::error::{Error, Result};
use imgctl_model::state::own_name;
use imgctl_upgrade::preflight::may_be_skipped;
use imgctl_upgrade::upgrade_store::{UpgradeStatus, UpgradeStore};
use imgctl_upgrade::{document::Document, mirror::Mirror};
use imgctl_workflow::pipeline::step::Step;

/// Returns the step that closes `document` when everything is done, in the way that the upgrade
/// store prescribes.
pub(crate) fn closing(upgrades: &UpgradeStore, document: &Document) -> Result<Step> {
    Ok(match upgrades.part(&document.id)? {
        Some(reopens) => parted(upgrades, document, reopens),
        None => whole(upgrades, document, upgrades.instead(&document.id)?),
    })
}

/// `instead` is the upgrade that was rolled back.
fn whole(upgrades: &UpgradeStore, document: &Document, instead: Option<String>) -> Step {
    let (upgrades, document) = (upgrades.clone(), document.clone());
    let says = format!("close the {} {}", document.kind(), document.id);
    let id = document.id.clone();
    Step::local("close", says, &id, move |_| {
        if let Some(instead) = &instead {
            upgrades.set_status(instead, UpgradeStatus::RolledBack)?;
        }
        upgrades.end(&document, UpgradeStatus::Committed, &now())
    })
    .always()
}

/// Closes a partial rollback: an upgrade that was open is open again, and repeats these hosts.
fn parted(upgrades: &UpgradeStore, document: &Document, reopens: Option<String>) -> Step {
    let (upgrades, document) = (upgrades.clone(), document.clone());
    let says = "record which hosts were rolled back".to_owned();
    let id = document.id.clone();
    Step::local("close", says, &id, move |_| {
        if let Some(open) = &reopens {
            let hosts = document
                .hosts
                .iter()
                .filter(|(_, host)| host.skipped.is_none())
                .map(|(id, _)| id.clone());
            upgrades.do_again(open, &hosts.collect::<Vec<_>>())?;
        }
        upgrades.end_for(&document, UpgradeStatus::Committed, &now(), reopens.as_deref())
    })
    .always()
}

/// Closes an upgrade that does not continue, and reopens the unfinished upgrade that it was to roll
/// back, if any. Returns the ID of the reopened one.
pub(crate) fn abandon(document: &Document, known: &ClusterSnapshot<'_>) -> Result<Option<String>> {
    let (upgrades, execution) = (&known.upgrades, known.execution);
    let reopens = match upgrades.part(&document.id)? {
        Some(reopens) => reopens,
        None => upgrades.instead(&document.id)?.filter(|id| {
            let status = upgrades.status(id).ok().flatten();
            matches!(
                status,
                Some(
                    UpgradeStatus::Running
                        | UpgradeStatus::Paused
                        | UpgradeStatus::Waiting
                        | UpgradeStatus::Failed
                )
            )
        }),
    };
    upgrades.end_for(document, UpgradeStatus::Aborted, &now(), reopens.as_deref())?;
    if execution.copy_state {
        let mirror = Mirror::begin(&known.from, &execution.pool, &document.id, &own_name())?;
        tell_late(&mirror, known.work.session);
    }
    Ok(reopens)
}

/// Ends the journal copies on control planes and reports late ones.
pub(crate) fn tell_late(mirror: &Arc<Mirror>, session: &Session<'_>) {
    for late in mirror.end() {
        session.front.note(&late);
    }
}

pub fn check_blockers(document: &Document) -> Result<()> {
    let blockers: Vec<_> = document.blockers().collect();
    if blockers.is_empty() {
        return Ok(());
    }
    let lines = blockers.iter().map(|finding| {
        let host = finding.host.as_ref().map(|host| format!("{host}: ")).unwrap_or_default();
        format!("  {}: {host}{}", finding.check, finding.what)
    });
    let mut error =
        Error::check_failed(format!("the {} cannot start:", document.kind())).lines(lines);
    for hint in blockers.iter().filter_map(|finding| finding.hint.as_ref()) {
        error = error.hint(hint.clone());
    }
    let checks = blockers.iter().map(|finding| finding.check.as_str()).collect();
    match skipping(&checks) {
        Some(flags) => Err(error.hint(format!("to start nevertheless, pass {flags}"))),
        None => Err(error),
    }
}

/// Returns the flags to start in spite of failed checks. Beside one that must hold, skipping the others does not help.
fn skipping(checks: &BTreeSet<&str>) -> Option<String> {
    let flags: Vec<String> = checks.iter().map(|check| format!("--skip-check {check}")).collect();
    checks.iter().all(|check| may_be_skipped(check)).then(|| flags.join(" "))
}

/// Returns the current time in RFC 3339, in seconds.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_checks_that_may_be_skipped_are_offered() {
        let told = |checks: &[&str]| skipping(&checks.iter().copied().collect());
        assert_eq!(
            told(&["etcd-size", "etcd-downgrade"]).unwrap(),
            "--skip-check etcd-downgrade --skip-check etcd-size"
        );
        assert_eq!(told(&["etcd-size", "kubelet-newer"]), None);
        assert_eq!(told(&["no-such-check"]), None);
    }
}
