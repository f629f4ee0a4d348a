//! Renders what a host will get and tries it there, before anything of the cluster changes.
//!
//! What works, seen with Kubernetes 1.34: `kubeadm config validate` finds unknown fields of all its
//! documents; the kubelet and kube-proxy check their configuration, then fail at a kubeconfig that does
//! not exist; API server, controller manager, scheduler and etcd check their flags before they look for
//! their servers. `containerd config dump` finds syntax errors, wrong types and unknown plugins.

use crate::action::{Action, Line, Site};
use crate::kubeadm::host_state::HostState;
use crate::kubeadm::upgrade::apply::patches;
use crate::kubeadm::upgrade::etcd_manifest::{MANIFESTS, Manifest};
use crate::kubeadm::upgrade::reconfigure::change::Change;
use crate::kubeadm::upgrade::reconfigure::host::{FLAGS, KUBELET, flags, new};
use crate::kubeadm::upgrade::reconfigure::{
    objects,
    objects::{CLUSTER, PROXY, edited},
};
use crate::kubeadm::upgrade::target::Target;
use crate::kubeadm::upgrade::{
    trial,
    trial::{ETCD, KubeletTrial},
};
use crate::kubeadm::{place, settings::etc};
use crate::kubectl::{Kubectl, quoted};
use crate::setting::{Component, Difference};
use crate::setting_files::{IN_IMAGE, ON_HOST, merged};
use crate::upgrade::{Move, Place};
use imgctl_base::error::{Error, Kind, Result};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

pub(super) fn action(step: &Move<'_>, target: &Target, change: &Change) -> Action {
    let patches = patches(step);
    let says = format!(
        "render the new files in {}/new and try them, without effect on what runs: kubeadm config \
         validate{}",
        target.backup,
        match change.restarts() {
            names if names.is_empty() => String::new(),
            names => format!("; {names} with the new settings"),
        }
    );
    let (target, change) = (target.clone(), change.clone());
    Action::new("try", says, move |site| {
        let mut problems = Vec::new();
        let mut note = |result: Result<()>| {
            if let Err(error) = result {
                problems.push(error.chain().join(": "));
            }
        };
        let validated = validate(site, &target, &change);
        let is_valid = validated.is_ok();
        note(validated);
        if change.has(Component::Kubelet) {
            note(kubelet(site, &target, &change));
        }
        // kubeadm cannot render what it does not read.
        if change.has_pods() && is_valid {
            note(pods(site, &target, &change, &patches));
        }
        if change.has(Component::Containerd) {
            note(containerd(site, &target));
        }
        if change.has(Component::KubeProxy) && target.place == Place::First {
            note(proxy(site, &target, &change));
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::check_failed(format!(
            "{}: the new settings are refused; nothing was changed:",
            site.agent.host()
        ))
        .lines(problems)
        .hint("correct them in the Clusterfile, then run `imgctl apply` again"))
    })
    .within(LIMIT)
}

/// Has kubeadm read the cluster's documents with the new settings.
fn validate(site: &Site<'_>, target: &Target, change: &Change) -> Result<()> {
    if !target.is_control_plane() {
        return Ok(());
    }
    let kubectl = Kubectl::anywhere(site)?;
    let mut texts = Vec::new();
    for (place, differences) in
        [(CLUSTER, &change.cluster), (objects::KUBELET, &change.kubelet), (PROXY, &change.proxy)]
    {
        if differences.is_empty() && place.name() != CLUSTER.name() {
            continue;
        }
        match place.changed(&kubectl, differences)? {
            Some(text) => texts.push(text),
            None => site.say(&format!("the cluster has no ConfigMap {}", place.name())),
        }
    }
    let file = etc(site.context, "kubeadm-settings.yaml");
    place::write(site.agent, &file, 0o600, &texts.join("---\n"))?;
    // kubeadm before 1.26 does not have this verb.
    let line = format!(
        "if ! kubeadm config validate --help >/dev/null 2>&1; then echo 'this kubeadm cannot validate'; exit 0; fi\n\
         kubeadm config validate --config {}",
        quoted(&file)
    );
    site.run_on(site.agent, &Line::repeatable(line), "-validate").map(|_| ())
}

/// Writes the kubelet's new files beside the backup, and starts a kubelet with them that ends at a
/// missing kubeconfig.
fn kubelet(site: &Site<'_>, target: &Target, change: &Change) -> Result<()> {
    let mut trial = KubeletTrial::default();
    if !change.kubelet.is_empty() {
        let text = read(site, KUBELET)?;
        let path = new(target, KUBELET);
        place::write(site.agent, &path, 0o600, &edited(&text, &change.kubelet)?)?;
        trial.config = path;
        trial.fields = change.kubelet.iter().map(Difference::name).collect();
    }
    if !change.flags.is_empty() {
        let text = read(site, FLAGS)?;
        let text = flags(&text, &change.flags)?;
        place::write(site.agent, &new(target, FLAGS), 0o600, &text)?;
        for one in &change.flags {
            let name = format!("--{}", one.path.last().map_or("", String::as_str));
            trial.more.extend(
                flag_words(&text)
                    .filter(|word| word.split('=').next() == Some(&name))
                    .map(str::to_owned),
            );
            trial.without.push(name);
        }
    }
    trial::try_kubelet(site, &trial)
}

/// Splits the content of kubeadm's file of flags into words.
fn flag_words(text: &str) -> impl Iterator<Item = &str> {
    text.trim_start_matches("KUBELET_KUBEADM_ARGS=")
        .split([' ', '"', '\n'])
        .filter(|word| !word.is_empty())
}

fn read(site: &Site<'_>, path: &str) -> Result<String> {
    place::read(site.agent, path)?
        .ok_or_else(|| Error::not_found(format!("{}: {path} does not exist", site.agent.host())))
}

/// Writes containerd's new file beside the backup, and has containerd read it.
fn containerd(site: &Site<'_>, target: &Target) -> Result<()> {
    let old = read(site, &format!("{}/{IN_IMAGE}", target.rootfs))?;
    let text =
        merged(&old, &read(site, ON_HOST)?, &read(site, &format!("{}/{IN_IMAGE}", target.tree))?)?;
    let path = new(target, ON_HOST);
    place::write(site.agent, &path, 0o600, &text)?;
    let line = format!("containerd --config {} config dump >/dev/null", quoted(&path));
    site.run_on(site.agent, &Line::query(line), "-containerd").map(|_| ())
}

/// Renders the manifests of static Pods and starts their containers without a network.
fn pods(site: &Site<'_>, target: &Target, change: &Change, patches: &str) -> Result<()> {
    let cluster = CLUSTER.changed(&Kubectl::anywhere(site)?, &change.cluster)?;
    let cluster = cluster.unwrap_or_default();
    let socket = HostState::observe(site)?.cri_socket;
    let path = format!("{MANIFESTS}/etcd.yaml");
    let member = match place::read(site.agent, &path)? {
        Some(text) => Manifest::parse(&text, &path)?.flag("name").map(str::to_owned),
        None => None,
    };
    let member = member.unwrap_or_else(|| "imgctl-try".to_owned());
    let config = trial::configuration(site, &cluster, &socket, &member)?.ok_or_else(|| {
        Error::check_failed(format!(
            "{}: {MANIFESTS}/kube-apiserver.yaml has no advertise-address",
            site.agent.host()
        ))
    })?;
    let mut problems = Vec::new();
    for component in change.pods() {
        let name = component.name();
        let there = format!("{MANIFESTS}/{name}.yaml");
        if name == ETCD && place::read(site.agent, &there)?.is_none() {
            continue;
        }
        let text = trial::rendered(site, &target.tree, &config, name, patches)?;
        place::write(site.agent, &new(target, &there), 0o600, &text)?;
        if let Err(error) = trial::try_pod(site, name, &text) {
            problems.push(error.to_string());
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::several(Kind::CheckFailed, problems)) }
}

/// Starts kube-proxy with its new configuration, without a network: it reads it, and fails at its
/// kubeconfig.
fn proxy(site: &Site<'_>, target: &Target, change: &Change) -> Result<()> {
    let kubectl = Kubectl::anywhere(site)?;
    let Some(text) = PROXY.changed(&kubectl, &change.proxy)? else {
        return Ok(());
    };
    let wants_ipvs =
        change.proxy.iter().any(|one| one.name() == "mode" && one.new == Some("ipvs".into()));
    if wants_ipvs && !HostState::observe(site)?.ipvs {
        return Err(Error::check_failed(format!(
            "{}: the kernel has no IPVS (module ip_vs), which mode: ipvs needs",
            site.agent.host()
        )));
    }
    let object = kubectl.find(&["daemonset", "kube-proxy", "-n", "kube-system"])?;
    let Some(object) = object else {
        return Ok(());
    };
    let file = new(target, "/kube-proxy.yaml");
    place::write(site.agent, &file, 0o600, &text)?;
    let image = object["spec"]["template"]["spec"]["containers"][0]["image"].as_str();
    let manifest = serde_json::json!({"spec": {
        "containers": [{
            "image": image,
            "command": ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"],
            "volumeMounts": [{"name": "config", "mountPath": "/var/lib/kube-proxy/config.conf"}],
        }],
        "volumes": [{"name": "config", "hostPath": {"path": file}}],
    }});
    trial::try_pod(site, Component::KubeProxy.name(), &manifest.to_string())
}
