//! Rollback: restores a host from its backup.

use std::time::Duration;

use crate::action::{Action, Site};
use crate::kubeadm::upgrade::etcd_manifest::{MANIFESTS, Manifest, minor_was_raised};
use crate::kubeadm::upgrade::{cluster_objects, gate, kubelet::SERVICES};
use crate::kubeadm::{place, upgrade::target::Target};
use crate::{shell::FILES, upgrade::Place, wait::waiting};
use imgctl_base::error::Result;

const LIMIT: Duration = Duration::from_secs(600);
const API_PATIENCE: Duration = Duration::from_secs(420);
const API_HINT: &str =
    "on the control plane: `crictl ps -a`, `journalctl -u kubelet`; then `imgctl upgrade resume`";

pub(super) fn actions(target: &Target) -> Vec<Action> {
    let mut actions = vec![files(target, false)];
    if target.is_control_plane() {
        actions.push(api_again(target));
    }
    if target.place == Place::First {
        actions.push(cluster_objects::put_back(target));
    }
    actions
}

/// Waits until this host's API server responds with the expected version.
pub(super) fn api_again(target: &Target) -> Action {
    let says =
        format!("wait until the API server of this host is ready at {}", target.version.text);
    let target = target.clone();
    // The previous API server runs for a moment longer, so readiness alone is not enough.
    waiting("api-again", says, API_PATIENCE, API_HINT, move |site| gate::api(site, &target))
}

/// Restores programs, the kubelet's files and manifests. With `older_etcd`, also restores the
/// manifest of an etcd whose data the newer version may have changed, because the data is restored
/// as well.
pub(super) fn files(target: &Target, older_etcd: bool) -> Action {
    let says = format!(
        "systemctl stop kubelet; restore from {}/files: programs, kubelet's configuration and \
         unit, the manifests of the control plane{}; systemctl start kubelet",
        target.backup,
        if older_etcd { "" } else { " (not that of etcd, if its minor was raised)" }
    );
    let target = target.clone();
    Action::new("restore-files", says, move |site| {
        let keep_etcd = !older_etcd && etcd_must_stay(site, &target)?;
        if keep_etcd {
            site.say("etcd stays: its minor was raised, and older ones cannot read its data");
        }
        let script = [FILES, SERVICES, include_str!("scripts/restore-files.sh")];
        let line = target.script(&script).with([("IMGCTL_KEEP_ETCD", &keep_etcd.to_string())]);
        site.run_on(site.agent, &line, "").map(|_| ())
    })
    .within(LIMIT)
}

fn etcd_must_stay(site: &Site<'_>, target: &Target) -> Result<bool> {
    if !target.has_etcd() {
        return Ok(false);
    }
    let now = format!("{MANIFESTS}/etcd.yaml");
    let then = format!("{}/files{now}", target.backup);
    let (Some(now_text), Some(then_text)) =
        (place::read(site.agent, &now)?, place::read(site.agent, &then)?)
    else {
        return Ok(false);
    };
    let now = Manifest::parse(&now_text, &now)?;
    let then = Manifest::parse(&then_text, &then)?;
    Ok(minor_was_raised(then.image()?, now.image()?))
}
