//! Steps of k3s hosts that an upgrade and a change of settings have in common: backup, start.

use std::time::Duration;

use crate::k3s::host::{HOST, SERVICE};
use crate::upgrade::{Move, Place};
use crate::{Action, action::Line, load_balancer, shell::FILES};

pub(super) const LIMIT: Duration = Duration::from_secs(440);
pub(super) const SNAPSHOT: Duration = Duration::from_secs(15 * 60);

/// Returns the line of a program that gets the host's place in an upgrade: see the variables.
pub(super) fn script(step: &Move<'_>, script: &str) -> Line {
    let server = if step.place == Place::Worker { "no" } else { "yes" };
    Line::script(&[FILES, HOST, SERVICE, script]).with([
        ("IMGCTL_BACKUP", &step.backup()),
        ("IMGCTL_CLUSTER_ROOT", &step.to.paths.root()),
        ("IMGCTL_TREE", &step.tree),
        ("IMGCTL_STARTED", &format!("{}/kubelet-started", step.backup())),
        ("IMGCTL_SERVER", server),
    ])
}

/// Creates an action; `says` is what a plan shows.
pub(super) fn action(name: &str, says: String, line: Line, limit: Duration) -> Action {
    Action::command(name, line).within(limit).saying(says)
}

/// Redirects workers to other servers before `action` restarts this one.
pub(super) fn out_of_service(step: &Move<'_>, action: Action) -> Action {
    match step.place {
        Place::Worker => action,
        _ if step.to.is_adopted() => action,
        _ => load_balancer::taken_out_before(step.to, action),
    }
}

/// Backs up the host's k3s files before the host is changed.
pub(super) fn keep(step: &Move<'_>) -> Action {
    let says = format!(
        "back up to {}/files: k3s, its unit, configuration and tokens; with checksums",
        step.backup()
    );
    let line = script(step, include_str!("scripts/keep-files.sh"));
    action("backup", says, line, LIMIT)
}

/// Writes `snapshot.db` to the backup: a bbolt file with more than its first pages, or nothing.
pub(super) fn take_snapshot(step: &Move<'_>) -> Action {
    let says = format!("k3s etcd-snapshot save, as {}/snapshot.db", step.backup());
    let line = script(step, include_str!("scripts/take-snapshot.sh"));
    action("backup-etcd", says, line, SNAPSHOT)
}
