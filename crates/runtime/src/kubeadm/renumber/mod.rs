//! Another address for a host of a running cluster: what changes on the host itself, in the API, and
//! on the other hosts. Everything but the authorities follows the address.
//!
//! Which text changes how is defined in readdress/; order among hosts belongs to pipeline/.

mod etcd;
mod objects;
#[cfg(test)]
mod stand_in_tests;

use std::time::Duration;

use crate::action::{Action, Line, Site};
use crate::certificates::{inspect, pki::Pki};
use crate::kubeadm::config::{Config, has_balancers};
use crate::kubeadm::readdress::{Addresses, also_called};
use crate::kubeadm::settings::{Settings, etc};
use crate::kubeadm::{init, place, renew};
use crate::{kubectl::Kubectl, load_balancer, wait::waiting};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};

const PATIENCE: Duration = Duration::from_secs(300);
const HINT: &str = "on the host: `journalctl -u kubelet`, `crictl ps -a`, `crictl logs` of the \
container; then run the same command again";

/// Files of the kubelet that can name the host's address, with their modes.
const KUBELET: [(&str, u32); 5] = [
    ("/var/lib/kubelet/kubeadm-flags.env", 0o644),
    ("/var/lib/kubelet/config.yaml", 0o644),
    ("/var/lib/kubelet/instance-config.yaml", 0o644),
    ("/etc/default/kubelet", 0o644),
    ("/etc/sysconfig/kubelet", 0o644),
];
const MANIFESTS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// Kubeconfigs below /etc/kubernetes, each with the component that reads it only when it starts.
const KUBECONFIGS: [(&str, &str); 5] = [
    ("admin.conf", ""),
    ("super-admin.conf", ""),
    ("controller-manager.conf", "kube-controller-manager"),
    ("scheduler.conf", "kube-scheduler"),
    ("kubelet.conf", "kubelet"),
];
/// Certificates that name the host's address.
const NAMED: [&str; 3] = ["apiserver", "etcd/server", "etcd/peer"];
/// The administrator's kubeconfig, below the state directory.
const KUBECONFIG: &str = "etc/admin.conf";
const LONGEST: u64 = 1 << 20;

/// Returns the actions on the host that moves.
pub(super) fn actions(
    context: &ClusterContext,
    host: &Host,
    settings: &Settings,
    planned: &Config,
    old: &str,
) -> Result<Vec<Action>> {
    let addresses = Addresses::one(old, host.ip())?;
    let mut actions = Vec::new();
    if host.is_control_plane() {
        let has_etcd = planned.has_local_etcd();
        actions.push(certificates(settings, host, old));
        actions.push(init::api_name(host));
        if has_etcd {
            actions.extend(etcd::before(context, host, old));
        }
        let manifests = manifests(&addresses);
        actions.push(if has_balancers(context) {
            // Workers have the old address until they follow.
            load_balancer::taken_out_at(context, manifests, old)
        } else {
            manifests
        });
        actions.push(kubeconfigs(context, &addresses));
        actions.push(kubelet(&addresses));
        actions.push(renew::restart("kube-controller-manager"));
        actions.push(renew::restart("kube-scheduler"));
        if has_etcd {
            actions.push(etcd::after(host, old));
        }
        actions.push(endpoint(host));
        actions.push(objects::config_maps(&addresses, host));
        actions.push(init::kubeconfig());
        if context.first().is_some_and(|first| first.address == host.address) {
            actions.push(own_kubeconfig(&addresses));
        }
    } else {
        actions.push(kubeconfigs(context, &addresses));
        actions.push(kubelet(&addresses));
    }
    actions.push(node_address(host));
    actions.push(pod_addresses());
    actions.push(objects::network_pods(context));
    Ok(actions)
}

/// Returns the actions on the other hosts: a kubeconfig of theirs can name the moved control plane.
pub(super) fn follow(context: &ClusterContext, moved: &Host, old: &str) -> Result<Vec<Action>> {
    if !moved.is_control_plane() {
        return Ok(Vec::new());
    }
    Ok(vec![kubeconfigs(context, &Addresses::one(old, moved.ip())?)])
}

/// Signs the certificates again that name the address. The old one stays in them while the host
/// still has it: etcd's members connect from it, and clients reach the API there.
fn certificates(settings: &Settings, host: &Host, old: &str) -> Action {
    let says = format!(
        "re-sign pki/{{{}}}.crt with {} in place of {old}; the authorities stay",
        NAMED.join(","),
        host.ip()
    );
    let (settings, old) = (settings.clone(), old.to_owned());
    Action::new("certificates", says, move |site| sign(site, &settings, &old))
}

fn sign(site: &Site<'_>, settings: &Settings, old: &str) -> Result<()> {
    let (_, config) = settings.config(site)?;
    let pki = Pki::load(site.state())?;
    let ours = place::read(site.agent, "/etc/kubernetes/pki/ca.crt")?;
    if ours.as_deref().map(str::trim) != Some(pki.ca.certificate.trim()) {
        return Err(Error::check_failed(format!(
            "{}: /etc/kubernetes/pki/ca.crt is not the authority that this controller has",
            site.agent.host()
        ))
        .hint("run the command on the controller whose pki directory is that of the cluster"));
    }
    let first = site.context.first().is_some_and(|first| first.address == site.host.address);
    let mut member = config.member(first, &init::hostname(site)?)?;
    let addresses = Addresses::one(old, site.host.ip())?;
    let mut settings = settings.clone();
    for name in NAMED {
        let path = format!("/etc/kubernetes/pki/{name}.crt");
        let Some(text) = place::read(site.agent, &path)? else {
            continue;
        };
        let now = inspect::read(&text)?;
        // Names without a record stay, and so does the validity.
        let names = addresses.in_names(&now.names);
        match (name, &mut member.etcd) {
            ("apiserver", _) => {
                member.api_names.extend(names);
                let seconds = u64::try_from(now.not_after - now.not_before).unwrap_or(0);
                settings.validity.leaves =
                    settings.validity.leaves.max(Duration::from_secs(seconds));
            }
            ("etcd/server", Some((server, _))) => server.extend(names),
            ("etcd/peer", Some((_, peer))) => peer.extend(names),
            _ => {}
        }
    }
    if site.agent.facts()?.addresses.iter().any(|own| own == old) {
        member = also_called(member, &[old.to_owned()]);
    } else {
        member.api_names.retain(|name| name != old);
    }
    let again = |name: &str| NAMED.contains(&name);
    place::certificates(site.agent, &settings, &config, &pki, &member, &again).map(|_| ())
}

/// Rewrites `path` if it exists and names the address.
fn rewrite(
    site: &Site<'_>,
    path: &str,
    mode: u32,
    change: &dyn Fn(&str) -> String,
) -> Result<bool> {
    let Some(text) = place::read(site.agent, path)? else {
        return Ok(false);
    };
    let new = change(&text);
    if new == text {
        return Ok(false);
    }
    place::write(site.agent, path, mode, &new)?;
    site.say(&format!("{path} is changed"));
    Ok(true)
}

fn manifests(addresses: &Addresses) -> Action {
    let says =
        format!("change the address in /etc/kubernetes/manifests/{{{}}}.yaml", MANIFESTS.join(","));
    let addresses = addresses.clone();
    Action::new("manifests", says, move |site| {
        for name in MANIFESTS {
            let path = format!("/etc/kubernetes/manifests/{name}.yaml");
            rewrite(site, &path, 0o600, &|text| addresses.in_text(text))?;
        }
        Ok(())
    })
}

/// Changes the servers of kubeconfigs, and restarts what reads them only when it starts. A mark
/// outlives an interruption between the two.
fn kubeconfigs(context: &ClusterContext, addresses: &Addresses) -> Action {
    let names: Vec<&str> = KUBECONFIGS.iter().map(|(file, _)| *file).collect();
    let says = format!(
        "change the server in /etc/kubernetes/{{{}}}, where it is the old address, and restart \
         what uses it",
        names.join(",")
    );
    let (addresses, mark) = (addresses.clone(), etc(context, "kubeconfigs-changed"));
    Action::new("kubeconfigs", says, move |site| {
        let mut stale: Vec<String> = place::read(site.agent, &mark)?
            .map(|text| text.lines().map(str::to_owned).collect())
            .unwrap_or_default();
        let change = |text: &str| addresses.in_kubeconfig(text);
        let mut changed = Vec::new();
        for (file, component) in KUBECONFIGS {
            let path = format!("/etc/kubernetes/{file}");
            if let Some(text) = place::read(site.agent, &path)?
                && change(&text) != text
            {
                changed.push(path);
                stale.push(component.to_owned());
            }
        }
        stale.retain(|component| !component.is_empty());
        if !stale.is_empty() {
            place::write(site.agent, &mark, 0o600, &stale.join("\n"))?;
        }
        for path in changed {
            rewrite(site, &path, 0o600, &change)?;
        }
        for component in &stale {
            site.run_on(site.agent, &renew::restart_line(component), &format!("-{component}"))?;
        }
        if stale.is_empty() { Ok(()) } else { site.remove(&mark) }
    })
}

fn kubelet(addresses: &Addresses) -> Action {
    let names: Vec<&str> = KUBELET.iter().map(|(path, _)| *path).collect();
    let says = format!(
        "change --node-ip and other mentions of the address in {}\nsystemctl restart kubelet",
        names.join(", ")
    );
    let addresses = addresses.clone();
    Action::new("kubelet", says, move |site| {
        for (path, mode) in KUBELET {
            rewrite(site, path, mode, &|text| addresses.in_text(text))?;
        }
        site.run(&Line::repeatable("systemctl restart kubelet")).map(|_| ())
    })
}

/// Waits until the API server of this host serves at the new address.
fn endpoint(host: &Host) -> Action {
    let address = host.ip().to_owned();
    let says = format!("wait until {address} is an endpoint of the Service default/kubernetes");
    waiting("api-endpoint", says, PATIENCE, HINT, move |site| {
        let kubectl = Kubectl::here(site)?;
        kubectl.ready()?;
        let known = kubectl.get(&["endpoints", "kubernetes", "-n", "default"])?;
        let subsets = known["subsets"].as_array();
        let listed = subsets.into_iter().flatten().any(|subset| {
            let all = subset["addresses"].as_array();
            all.into_iter().flatten().any(|one| one["ip"] == address.as_str())
        });
        Ok((!listed).then(|| format!("{address} is no endpoint of the API yet")))
    })
}

/// Waits until the kubelet has reported the new address.
fn node_address(host: &Host) -> Action {
    let address = host.ip().to_owned();
    let says = format!("wait until {address} is the address of the Node");
    waiting("node-address", says, PATIENCE, HINT, move |site| {
        let found = Kubectl::anywhere(site)?.node_of(&address)?;
        Ok(found.is_none().then(|| format!("no Node reports the address {address} yet")))
    })
}

/// Restarts the kubelet once more: when it started, its Node still had the old address, and so has
/// the status of each Pod in the host's network, static Pods included, until it starts again.
fn pod_addresses() -> Action {
    let line = Line::repeatable("systemctl restart kubelet");
    let says = "systemctl restart kubelet, which reports its Pods at the address of the Node";
    Action::command("pod-addresses", line).saying(says)
}

/// Changes the server in the kubeconfig that the controller keeps.
fn own_kubeconfig(addresses: &Addresses) -> Action {
    let says = "change the server in etc/admin.conf on the controller, if it is the old address";
    let addresses = addresses.clone();
    Action::new("admin-conf", says, move |site| match site.state().read(KUBECONFIG, LONGEST)? {
        Some(text) => site.state().write(KUBECONFIG, &addresses.in_kubeconfig(&text)),
        None => Ok(()),
    })
}
