//! Checks for settings that an upgrade would lose or refuse: compares static Pods with their
//! kubeadm-config, because `kubeadm upgrade` rewrites them without manual changes, and kubelets' flags
//! and configuration with what the new ones accept.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::upgrade::document::{Finding, few};
use crate::upgrade::finding::{error, note, warning};
use crate::upgrade::hazards::{KUBEADM_REMOVES, REMOVALS};
use crate::upgrade::observation::{HostSeen, ManifestSeen};
use crate::upgrade::preflight::look::Look;

const CHECK: &str = "static-manifests";
const HINT: &str = "add them to the ConfigMap kube-system/kubeadm-config (extraArgs, extraVolumes, \
                    extraEnvs) or to patches, which `kubeadm upgrade` applies; or pass \
                    --skip-check static-manifests to drop them or to rely on patches/ of the new \
                    image, which is not on the hosts yet";

/// A static Pod managed by kubeadm.
struct Component {
    name: &'static str,
    /// JSON pointer to its part of the ClusterConfiguration.
    part: &'static str,
    /// Flags that kubeadm itself writes in some release.
    own: &'static [&'static str],
    /// Flags among these that have the same value in every release.
    constant: &'static [(&'static str, &'static str)],
    /// Flags among these whose value comes from the ClusterConfiguration.
    configured: &'static [(&'static str, &'static str)],
}

const COMPONENTS: [Component; 4] = [
    Component {
        name: "kube-apiserver",
        part: "/apiServer",
        own: &[
            "advertise-address",
            "client-ca-file",
            "etcd-cafile",
            "etcd-certfile",
            "etcd-keyfile",
            "etcd-servers",
            "feature-gates",
            "insecure-port",
            "kubelet-client-certificate",
            "kubelet-client-key",
            "kubelet-preferred-address-types",
            "proxy-client-cert-file",
            "proxy-client-key-file",
            "requestheader-allowed-names",
            "requestheader-client-ca-file",
            "requestheader-extra-headers-prefix",
            "requestheader-group-headers",
            "requestheader-username-headers",
            "secure-port",
            "service-account-issuer",
            "service-account-key-file",
            "service-account-signing-key-file",
            "tls-cert-file",
            "tls-private-key-file",
        ],
        constant: &[
            ("allow-privileged", "true"),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction"),
            ("enable-bootstrap-token-auth", "true"),
        ],
        configured: &[("service-cluster-ip-range", "/networking/serviceSubnet")],
    },
    Component {
        name: "kube-controller-manager",
        part: "/controllerManager",
        own: &[
            "allocate-node-cidrs",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
            "bind-address",
            "client-ca-file",
            "cluster-name",
            "cluster-signing-cert-file",
            "cluster-signing-key-file",
            "feature-gates",
            "kubeconfig",
            "node-cidr-mask-size",
            "node-cidr-mask-size-ipv4",
            "node-cidr-mask-size-ipv6",
            "port",
            "requestheader-client-ca-file",
            "root-ca-file",
            "service-account-private-key-file",
        ],
        constant: &[
            ("controllers", "*,bootstrapsigner,tokencleaner"),
            ("leader-elect", "true"),
            ("use-service-account-credentials", "true"),
        ],
        configured: &[
            ("cluster-cidr", "/networking/podSubnet"),
            ("service-cluster-ip-range", "/networking/serviceSubnet"),
        ],
    },
    Component {
        name: "kube-scheduler",
        part: "/scheduler",
        own: &[
            "authentication-kubeconfig",
            "authorization-kubeconfig",
            "bind-address",
            "feature-gates",
            "kubeconfig",
            "port",
        ],
        constant: &[("leader-elect", "true")],
        configured: &[],
    },
    Component {
        name: "etcd",
        part: "/etcd/local",
        own: &[
            "advertise-client-urls",
            "cert-file",
            "experimental-initial-corrupt-check",
            "experimental-watch-progress-notify-interval",
            "feature-gates",
            "initial-advertise-peer-urls",
            "initial-cluster",
            "initial-cluster-state",
            "key-file",
            "listen-client-urls",
            "listen-metrics-urls",
            "listen-peer-urls",
            "name",
            "peer-cert-file",
            "peer-key-file",
            "peer-trusted-ca-file",
            "snapshot-count",
            "trusted-ca-file",
            "watch-progress-notify-interval",
        ],
        constant: &[("client-cert-auth", "true"), ("peer-client-cert-auth", "true")],
        configured: &[("data-dir", "/etcd/local/dataDir")],
    },
];

/// Volumes that kubeadm itself mounts.
const VOLUMES: [&str; 11] = [
    "ca-certs",
    "etc-ca-certificates",
    "etc-pki",
    "etc-pki-ca-trust",
    "etc-pki-tls-certs",
    "etcd-certs",
    "etcd-data",
    "flexvolume-dir",
    "k8s-certs",
    "kubeconfig",
    "usr-share-ca-certificates",
];
const PROXIES: [&str; 4] = ["http_proxy", "https_proxy", "no_proxy", "all_proxy"];

/// One difference.
struct Edit {
    /// The name that a patch must contain to preserve it.
    key: String,
    text: String,
    /// Whether it is in the manifest and would be lost.
    is_lost: bool,
}

pub(super) fn edited(look: &Look<'_>) -> Vec<Finding> {
    let configuration = look.api().and_then(|api| api.cluster_configuration.as_ref());
    let (Some(configuration), true) = (configuration, look.is_kubeadm() && look.is_forward())
    else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for host in look.hosts().filter(|host| host.is_control_plane()) {
        for component in &COMPONENTS {
            if let Some(manifest) = host.manifests.get(component.name) {
                findings(host, component, manifest, configuration, &mut found);
            }
        }
    }
    found
}

/// Describes the changes that kubeadm would make to a static Pod's manifest and that no patch
/// prevents.
pub(crate) fn rewritten(host: &HostSeen, name: &str, configuration: &Value) -> Option<String> {
    let component = COMPONENTS.iter().find(|component| component.name == name)?;
    let manifest = host.manifests.get(name)?;
    let patches = host.patches.get(name);
    let edits = edits(component, manifest, configuration);
    let texts: Vec<String> = edits
        .into_iter()
        .filter(|edit| patches.is_none_or(|text| !text.contains(&edit.key)))
        .map(|edit| edit.text)
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn findings(
    host: &HostSeen,
    component: &Component,
    manifest: &ManifestSeen,
    configuration: &Value,
    found: &mut Vec<Finding>,
) {
    let file = format!("{}.yaml", component.name);
    let patched =
        |edit: &Edit| host.patches.get(component.name).is_some_and(|text| text.contains(&edit.key));
    let (kept, edits): (Vec<Edit>, Vec<Edit>) =
        edits(component, manifest, configuration).into_iter().partition(patched);
    let (lost, missing): (Vec<Edit>, Vec<Edit>) = edits.into_iter().partition(|edit| edit.is_lost);
    let texts = |edits: &[Edit]| {
        let texts: Vec<&str> = edits.iter().map(|edit| edit.text.as_str()).collect();
        texts.join("; ")
    };
    if !lost.is_empty() {
        let what = format!(
            "{file} was edited manually, and kubeadm rewrites it without these edits: {}",
            texts(&lost)
        );
        found.push(error(CHECK, what).on(host).hint(HINT));
    }
    if !missing.is_empty() {
        let what = format!(
            "{file} does not match kubeadm-config yet, and will after the upgrade: {}",
            texts(&missing)
        );
        found.push(warning(CHECK, what).on(host));
    }
    if !kept.is_empty() {
        let keys: Vec<&str> = kept.iter().map(|edit| edit.key.as_str()).collect();
        let what = format!("{file}: patches keep {}", few(&keys));
        found.push(note(CHECK, what).on(host));
    }
}

fn edits(component: &Component, manifest: &ManifestSeen, configuration: &Value) -> Vec<Edit> {
    let part = configuration.pointer(component.part);
    let mut edits = flags(component, manifest, configuration, part);
    let mut lost = |key: &str, text: String| {
        edits.push(Edit { key: key.to_owned(), text, is_lost: true });
    };
    let named = |list: &str, name: &str| {
        let all = part.and_then(|part| part.get(list)?.as_array());
        all.is_some_and(|all| all.iter().any(|one| one["name"] == name))
    };
    for volume in &manifest.volumes {
        let own = VOLUMES.contains(&volume.as_str()) || volume.starts_with("usr-local-share-ca-");
        if !own && !named("extraVolumes", volume) {
            lost(volume, format!("volume {volume}"));
        }
    }
    for name in &manifest.environment {
        let proxy = PROXIES.contains(&name.to_ascii_lowercase().as_str());
        if !proxy && !named("extraEnvs", name) {
            lost(name, format!("environment variable {name}"));
        }
    }
    if manifest.has_limits {
        lost("limits", "limits of resources".to_owned());
    }
    for container in manifest.containers.iter().filter(|name| *name != component.name) {
        lost(container, format!("container {container}"));
    }
    edits
}

fn flags(
    component: &Component,
    manifest: &ManifestSeen,
    configuration: &Value,
    part: Option<&Value>,
) -> Vec<Edit> {
    let has = by_name(manifest.arguments.iter().filter_map(|word| {
        let word = word.strip_prefix("--")?;
        Some(word.split_once('=').unwrap_or((word, "true")))
    }));
    let mut wanted = extra_arguments(part);
    for (flag, value) in component.constant {
        wanted.entry((*flag).to_owned()).or_insert_with(|| vec![(*value).to_owned()]);
    }
    for (flag, pointer) in component.configured {
        if let Some(value) = configuration.pointer(pointer).and_then(Value::as_str) {
            wanted.entry((*flag).to_owned()).or_insert_with(|| vec![value.to_owned()]);
        }
    }
    let configured = |flag: &str| component.configured.iter().any(|(name, _)| *name == flag);
    let mut edits = Vec::new();
    for (flag, values) in &has {
        let text = match wanted.get(flag) {
            // kubeadm itself adds the modes that it needs.
            Some(_) if flag == "authorization-mode" && part_names(part, flag) => continue,
            Some(wanted) if wanted == values => continue,
            Some(wanted) => {
                let wanted = wanted.join(" and ");
                format!("--{flag}={} (kubeadm: {wanted})", values.join(" and "))
            }
            None if component.own.contains(&flag.as_str()) || configured(flag) => continue,
            None => format!("--{flag}={}", values.join(" and ")),
        };
        edits.push(Edit { key: flag.clone(), text, is_lost: true });
    }
    for (flag, values) in wanted {
        // Address ranges are only written if the release has the flag.
        if !has.contains_key(&flag) && !configured(&flag) {
            edits.push(Edit {
                text: format!("--{flag}={} is missing", values.join(" and ")),
                key: flag,
                is_lost: false,
            });
        }
    }
    edits
}

fn part_names(part: Option<&Value>, flag: &str) -> bool {
    extra_arguments(part).contains_key(flag)
}

/// `extraArgs`: a map up to v1beta3, then a list of names and values.
pub(super) fn extra_arguments(part: Option<&Value>) -> BTreeMap<String, Vec<String>> {
    let value = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match part.and_then(|part| part.get("extraArgs")) {
        Some(Value::Object(map)) => {
            map.iter().map(|(flag, one)| (flag.clone(), vec![value(one)])).collect()
        }
        Some(Value::Array(list)) => {
            let pairs = list.iter().filter_map(|one| {
                Some((one["name"].as_str()?, one["value"].as_str().unwrap_or_default()))
            });
            by_name(pairs)
        }
        _ => BTreeMap::new(),
    }
}

fn by_name<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (flag, value) in pairs {
        all.entry(flag.to_owned()).or_default().push(value.to_owned());
    }
    all
}

/// Whether a configuration of the kubelet or of kube-proxy sets a feature gate.
pub(super) fn sets(configuration: &Value, gate: &str) -> bool {
    configuration["featureGates"].get(gate).is_some()
}

const CONFIGURATION: &str = "kubelet-configuration";

pub(super) fn kubelet_settings(look: &Look<'_>) -> Vec<Finding> {
    if !look.is_kubeadm() || !look.is_forward() {
        return Vec::new();
    }
    let new = look.new_minors();
    let written = look.written_by_kubeadm();
    let mut found = Vec::new();
    for removal in REMOVALS.iter().filter(|one| new.contains(&one.minor)) {
        let has = |names: &'static [&'static str], has: &BTreeSet<String>| -> Vec<&'static str> {
            let names = names.iter().copied();
            names.filter(|name| has.contains(*name)).collect()
        };
        let of = |what: &str| format!("{what}, which v1.{} removes", removal.minor);
        for gate in removal.gates.iter().filter(|gate| written.is_some_and(|it| sets(it, gate))) {
            let what = of(&format!("the ConfigMap kubelet-config sets the feature gate {gate}"));
            found.push(error(CONFIGURATION, what).hint(
                "the new kubelets would not start: remove it from the KubeletConfiguration of the \
                 Clusterfile (`imgctl apply`) or from the ConfigMap",
            ));
        }
        for host in look.hosts() {
            let kubelet = &host.kubelet;
            for flag in has(removal.flags, &kubelet.flags) {
                if kubelet.kubeadm_flags.contains(flag) && KUBEADM_REMOVES.contains(&flag) {
                    continue;
                }
                let what = of(&format!("its kubelet runs with --{flag}"));
                found.push(error(CONFIGURATION, what).on(host).hint(
                    "the new kubelet would not start: remove the flag from the unit, its drop-ins \
                     or /etc/default/kubelet, and restart the kubelet",
                ));
            }
            for gate in has(removal.gates, &kubelet.gates) {
                let what = of(&format!("its kubelet sets the feature gate {gate}"));
                if kubelet.flag_gates.contains(gate) || written.is_none() {
                    found.push(error(CONFIGURATION, what).on(host).hint(
                        "the new kubelet would not start: remove it from the kubelet's flags and \
                         from /var/lib/kubelet/config.yaml",
                    ));
                } else if !written.is_some_and(|written| sets(written, gate)) {
                    found.push(warning(CONFIGURATION, what).on(host).hint(
                        "it is in /var/lib/kubelet/config.yaml of this host alone: `kubeadm upgrade` \
                         writes that file anew from the ConfigMap kube-system/kubelet-config",
                    ));
                }
            }
            for field in has(removal.fields, &kubelet.fields) {
                let what = of(&format!("its kubelet's configuration sets {field}"));
                found.push(warning(CONFIGURATION, what).on(host).hint(
                    "it has no effect from then on: remove it from the ConfigMap \
                     kube-system/kubelet-config",
                ));
            }
        }
    }
    found
}
