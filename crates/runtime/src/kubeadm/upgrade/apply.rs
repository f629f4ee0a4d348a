//! Upgrade of one host: kubeadm by rename, `kubeadm upgrade`, then the kubelet.

use std::{cell::Cell, time::Duration};

use serde_json::Value;

use crate::action::{Line, Site};
use crate::certificates::{inspect, validity::now};
use crate::kubeadm::upgrade::etcd_manifest::{MANIFESTS, Manifest, tag};
use crate::kubeadm::upgrade::{kubelet, target::Target};
use crate::kubeadm::{init::IGNORED, place};
use crate::kubectl::{Kubectl, is_version};
use crate::upgrade::{Move, Place, Renewal};
use crate::{Action, shell::FILES, wait::until_well};
use imgctl_base::error::{Error, Result};

/// kubeadm allows up to five minutes for each static Pod.
const LONG: Duration = Duration::from_secs(40 * 60);
/// Time to wait for an unavailable API server before kubeadm starts.
const PATIENCE: Duration = Duration::from_secs(300);
const HINT: &str = "on the control plane: `crictl ps -a`, `crictl logs` of kube-apiserver and etcd, \
`journalctl -u kubelet`; then `imgctl upgrade resume`, or `imgctl rollback`";
const TEN_YEARS: i64 = 10 * 365 * 86_400;
/// Components that always have the control plane's version.
pub(super) const COMPONENTS: [&str; 3] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

pub(super) fn actions(step: &Move<'_>, target: &Target) -> Result<Vec<Action>> {
    let mut actions = vec![programs(target), upgrade(step, target)];
    actions.extend(kubelet::runtime(step, target));
    actions.push(kubelet::swap(target));
    Ok(actions)
}

/// Replaces all programs except the kubelet, which still runs its old version.
fn programs(target: &Target) -> Action {
    let says = format!(
        "replace kubeadm, kubectl and the other programs of the previous image with those of \
         {}/bin",
        target.tree
    );
    let target = target.clone();
    Action::new("programs", says, move |site| {
        let line = target.script(&[FILES, include_str!("scripts/replace-programs.sh")]);
        let text = site.run_on(site.agent, &line, "")?;
        let is = text.lines().last().unwrap_or_default().trim();
        if is_version(is, &target.version.text) {
            return Ok(());
        }
        Err(Error::failed(format!(
            "{}: kubeadm is {is}, but the image's label says {}",
            site.agent.host(),
            target.version.text
        ))
        .hint("set the image's label `version` to the version in its bin/"))
    })
    .within(Duration::from_secs(300))
}

fn upgrade(step: &Move<'_>, target: &Target) -> Action {
    let command = match target.place {
        Place::First => format!("apply {} --yes", target.version.text),
        Place::ControlPlane | Place::Worker => "node".to_owned(),
    };
    let mut flags = format!(" --ignore-preflight-errors={IGNORED}");
    if target.is_control_plane() {
        flags.push_str(match step.renewal {
            Renewal::Auto => {
                " --certificate-renewal=<false where certificates are valid for ten years or more>"
            }
            Renewal::True => " --certificate-renewal=true",
            Renewal::False => " --certificate-renewal=false",
        });
        if target.external_etcd {
            flags.push_str(" --etcd-upgrade=false");
        }
    }
    let renewal = step.renewal;
    let patches = patches(step);
    let (target, says) = (target.clone(), format!("kubeadm upgrade {command}{flags}"));
    Action::new("kubeadm-upgrade", says, move |site| {
        if is_done(site, &target)? {
            return Ok(());
        }
        let flags = decided(site, &target, renewal)?;
        let script = target.script(&[include_str!("scripts/kubeadm-upgrade.sh")]).with([
            ("IMGCTL_ARGUMENTS", &format!("{command}{flags}")),
            ("IMGCTL_PATCHES", &patches),
            ("IMGCTL_APPLIED", &target.applied()),
            ("IMGCTL_RESTART", "no"),
        ]);
        let line = Line { again: false, ..script };
        // The host stores the outcome, so that a resumed run finds the command still running or its
        // result.
        let went = site.run_on(site.agent, &line, "-upgrade");
        if went.as_ref().is_err_and(|error| is_absence(&error.to_string())) {
            site.say("kubeadm gave up because this host's API server was away; it is run once more");
            until_well(site, PATIENCE, HINT, &|| {
                Kubectl::here(site)?.ready()?;
                Ok(None)
            })?;
            let again = line.with([("IMGCTL_RESTART", "yes")]);
            site.run_on(site.agent, &again, "-upgrade-again")?;
        } else {
            went?;
        }
        if is_done(site, &target)? {
            return Ok(());
        }
        Err(Error::failed(format!(
            "{}: kubeadm succeeded, but static Pods are not at {}",
            site.agent.host(),
            target.version.text
        ))
        .hint(format!("see {MANIFESTS} there, and `kubectl get configmap -n kube-system kubeadm-config -o yaml`")))
    })
    .within(LONG)
}

/// Returns the directory of patches that the cluster's configuration names.
pub(super) fn patches(step: &Move<'_>) -> String {
    let documents = step.to.documents.iter();
    let folder = documents
        .filter(|document| document["kind"] == "InitConfiguration")
        .find_map(|document| document["patches"]["directory"].as_str());
    folder.unwrap_or_default().to_owned()
}

/// Reports whether kubeadm has succeeded for this version and its manifests are still there.
fn is_done(site: &Site<'_>, target: &Target) -> Result<bool> {
    if site.agent.read_file(&target.applied(), 1 << 10)?.is_none() {
        return Ok(false);
    }
    if !target.is_control_plane() {
        return Ok(true);
    }
    for component in COMPONENTS {
        let path = format!("{MANIFESTS}/{component}.yaml");
        let Some(text) = place::read(site.agent, &path)? else {
            return Ok(false);
        };
        let manifest = Manifest::parse(&text, &path)?;
        if !is_version(tag(manifest.image()?), &target.version.text) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reports whether kubeadm ended because the API server or etcd of its host did not answer: both are
/// away while kubeadm itself restarts etcd, on a busy machine for longer than kubeadm waits.
fn is_absence(output: &str) -> bool {
    let ends = ["error execution phase ", "[upgrade/apply] FATAL: ", "error: "];
    let causes = [
        "context deadline exceeded",
        "connect: connection refused",
        "net/http: TLS handshake timeout",
        "etcdserver: request timed out",
        "etcdserver: leader changed",
        "the server was unable to return a response in the time allotted",
    ];
    let mut lines = output.lines().map(str::trim_start);
    lines.any(|line| {
        ends.iter().any(|end| line.starts_with(end))
            && causes.iter().any(|cause| line.contains(cause))
    })
}

/// Returns the flags of this attempt and stores them on the host. A resumed run that finds kubeadm
/// running reuses them and does not query an API server that kubeadm may be restarting.
fn decided(site: &Site<'_>, target: &Target, renewal: Renewal) -> Result<String> {
    let path = target.decided();
    if let Some(text) = place::read(site.agent, &path)?
        && let Some((key, flags)) = text.split_once('\n')
        && key == site.key
    {
        return Ok(flags.to_owned());
    }
    let flags = arguments(site, target, renewal)?;
    place::write(site.agent, &path, 0o600, &format!("{}\n{flags}", site.key))?;
    Ok(flags)
}

fn arguments(site: &Site<'_>, target: &Target, renewal: Renewal) -> Result<String> {
    let mut ignored = IGNORED.to_owned();
    let mut flags = String::new();
    if target.place == Place::First {
        let answer = Cell::new(false);
        until_well(site, PATIENCE, HINT, &|| {
            answer.set(nobody_takes_pods(site)?);
            Ok(None)
        })?;
        if answer.get() {
            // kubeadm would start a Pod, wait 15 s for it, and fail.
            site.say("no Node accepts Pods at present: kubeadm's check CreateJob is skipped");
            ignored.push_str(",CreateJob");
        }
        if target.keeps_corefile {
            ignored.push_str(",CoreDNSUnsupportedPlugins,CoreDNSMigration");
        }
        let version = target.version.text.as_str();
        if version.contains("-rc.") {
            flags.push_str(" --allow-release-candidate-upgrades");
        } else if version.contains("-alpha.") || version.contains("-beta.") {
            flags.push_str(" --allow-experimental-upgrades");
        }
    }
    if target.is_control_plane() {
        flags.push_str(&format!(
            " --certificate-renewal={}",
            match renewal {
                Renewal::True => true,
                Renewal::False => false,
                Renewal::Auto => renews(site)?,
            }
        ));
        if target.external_etcd {
            flags.push_str(" --etcd-upgrade=false");
        }
    }
    Ok(format!(" --ignore-preflight-errors={ignored}{flags}"))
}

/// Reports whether kubeadm should renew certificates. A validity of more than ten years was chosen
/// on purpose; kubeadm would reduce it to one year.
fn renews(site: &Site<'_>) -> Result<bool> {
    let path = "/etc/kubernetes/pki/apiserver.crt";
    let Some(text) = place::read(site.agent, path)? else {
        return Ok(true);
    };
    let now = i64::try_from(now()).unwrap_or(i64::MAX);
    let renews = inspect::read(&text)?.not_after - now <= TEN_YEARS;
    if !renews {
        site.say("certificates are valid for more than ten years: they are kept");
    }
    Ok(renews)
}

fn nobody_takes_pods(site: &Site<'_>) -> Result<bool> {
    let kubectl = Kubectl::here(site)?;
    // In a large cluster, the Nodes as JSON exceed the limit for stored output.
    let text = kubectl.run(&[
        "get",
        "nodes",
        "-o",
        "jsonpath={range .items[*]}{.spec.unschedulable}|{range .spec.taints[*]}{.key}:{.effect},{end}|{.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}",
    ])?;
    Ok(!text.lines().any(takes_pods))
}

/// Parses one line of the output above.
fn takes_pods(line: &str) -> bool {
    let mut fields = line.split('|');
    let (cordoned, taints, ready) = (fields.next(), fields.next(), fields.next());
    let tolerated = |taint: &str| {
        taint.ends_with(":PreferNoSchedule")
            || taint == "node-role.kubernetes.io/control-plane:NoSchedule"
    };
    cordoned != Some("true")
        && ready == Some("True")
        && taints.unwrap_or_default().split(',').filter(|taint| !taint.is_empty()).all(tolerated)
}

/// Returns the image that each component's manifest names, for the gate.
pub(super) fn images(site: &Site<'_>) -> Result<Vec<(String, String)>> {
    let mut images = Vec::new();
    for component in COMPONENTS.iter().chain(&["etcd"]) {
        let path = format!("{MANIFESTS}/{component}.yaml");
        match place::read(site.agent, &path)? {
            Some(text) => {
                let manifest = Manifest::parse(&text, &path)?;
                images.push(((*component).to_owned(), manifest.image()?.to_owned()));
            }
            None if *component == "etcd" => {}
            None => return Err(Error::not_found(format!("{path} does not exist"))),
        }
    }
    Ok(images)
}

/// Returns a field's text for messages.
pub(super) fn text<'a>(value: &'a Value, otherwise: &'a str) -> &'a str {
    value.as_str().unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_server_that_is_away_is_told_from_other_failures() {
        let said = "10.0.0.12: `kubeadm` failed: exit code 1\n    W1126 dial tcp: connect: connection refused\n    ";
        let away = "error execution phase control-plane: couldn't complete the static pod upgrade: fatal error \
            creating etcd client: could not retrieve the list of etcd endpoints: Get \
            \"https://apiserver.cluster.local:6443/api/v1/namespaces/kube-system/pods\": context deadline exceeded";
        assert!(is_absence(&format!("{said}{away}\n    To see the stack trace")));
        let other = "error execution phase control-plane: static Pod hash for component etcd did not change";
        assert!(!is_absence(&format!("{said}{other}")));
    }

    #[test]
    fn nodes_that_take_the_job_of_kubeadm() {
        for (line, expected) in [
            ("||True", true),
            ("|node-role.kubernetes.io/control-plane:NoSchedule,|True", true),
            ("true|node.kubernetes.io/unschedulable:NoSchedule,|True", false),
            ("|gpu:NoSchedule,|True", false),
            ("|spot:PreferNoSchedule,|True", true),
            ("||Unknown", false),
        ] {
            assert_eq!(takes_pods(line), expected, "{line}");
        }
    }
}
