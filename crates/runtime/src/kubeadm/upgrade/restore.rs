//! Rollback: restores a host from its backup.

use std::time::Duration;

use crate::kubeadm::upgrade::etcd_manifest::{MANIFESTS, Manifest, minor_was_raised};
use crate::kubeadm::upgrade::kubelet::{RESTART_RUNTIME, STARTED};
use crate::kubeadm::upgrade::{cluster_objects, gate};
use crate::kubeadm::{place, upgrade::target::Target};
use crate::{
    action,
    action::{Action, Line, Site},
};
use crate::{upgrade::Place, wait::waiting};
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
        let line = Line::repeatable(line(&target, keep_etcd));
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

/// Returns the shell line of the restore. It stops nothing if everything is in place. Certificates
/// and kubeconfigs stay: renewed ones are valid and from the same authority.
fn line(target: &Target, keep_etcd: bool) -> String {
    format!(
        "{functions}backup={backup} started={started} keep_etcd={keep_etcd}\n\
         if [ ! -s \"$backup/host.sha256\" ]; then\n\
         # A host that was unreachable during the upgrade: its backup comes before any change.\n\
         kubelet=$(where kubelet)\n\
         if cmp -s \"$kubelet\" {tree}/bin/kubelet || [ \"$(\"$kubelet\" --version)\" = 'Kubernetes {version}' ]; then echo 'the upgrade has not touched this host'; exit 0; fi\n\
         echo \"there is no backup in $backup, and the kubelet of this host is not {version}: the backup is gone\" >&2; exit 1\n\
         fi\n\
         cd \"$backup\"; sha256sum --quiet -c host.sha256\n\
         wanted() {{\n\
         case $1 in\n\
         {MANIFESTS}/etcd.yaml) [ \"$keep_etcd\" = false ] ;;\n\
         {MANIFESTS}/kube-apiserver.yaml | {MANIFESTS}/kube-controller-manager.yaml | {MANIFESTS}/kube-scheduler.yaml) true ;;\n\
         /etc/kubernetes/* | /etc/containerd/* | /etc/crictl.yaml | /etc/docker/* | /etc/crio/*) false ;;\n\
         *) true ;;\n\
         esac\n\
         }}\n\
         differ=() runtime=no\n\
         while IFS= read -r -d '' file; do\n\
         there=${{file#files}}\n\
         wanted \"$there\" || continue\n\
         if ! cmp -s \"$file\" \"$there\"; then\n\
         differ+=(\"$there\")\n\
         case $(basename \"$there\") in containerd | containerd-shim* | runc) runtime=yes ;; esac\n\
         fi\n\
         done < <(find files -type f -print0)\n\
         pid=$(systemctl show -p MainPID --value kubelet)\n\
         if [ \"${{#differ[@]}}\" = 0 ] && systemctl is-active --quiet kubelet && cmp -s \"/proc/${{pid:-0}}/exe\" \"$(where kubelet)\"; then\n\
         rm -f touched kubeadm-v*; echo 'everything is in place already'; exit 0\n\
         fi\n\
         systemctl stop kubelet\n\
         for there in \"${{differ[@]}}\"; do put \"files$there\" \"$there\"; done\n\
         if [ \"$runtime\" = yes ]; then\n{RESTART_RUNTIME}fi\n\
         rm -f kubeadm-v*\n\
         # Last: until then the backup is not made anew.\n\
         finished() {{ [ \"$?\" != 0 ] || rm -f \"$backup/touched\"; }}\n\
         trap finished EXIT\n\
         {STARTED}",
        functions = action::PUT,
        backup = target.backup,
        started = target.restarted(),
        version = target.version.text,
        tree = target.tree,
    )
}
