//! What kubeadm would write anew of a static Pod: its manifest compared with kubeadm-config. Must not know
//! what follows from a difference.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::observation::{HostSeen, ManifestSeen};

/// A static Pod managed by kubeadm.
pub(crate) struct Component {
    pub name: &'static str,
    /// JSON pointer to its part of the ClusterConfiguration.
    part: &'static str,
    /// Flags that kubeadm itself writes in some release.
    own: &'static [&'static str],
    /// Flags among these that have the same value in every release.
    constant: &'static [(&'static str, &'static str)],
    /// Flags among these whose value comes from the ClusterConfiguration.
    configured: &'static [(&'static str, &'static str)],
}

pub(crate) const COMPONENTS: [Component; 4] = [
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
pub(crate) struct Edit {
    /// The name that a patch must contain to preserve it.
    pub key: String,
    pub text: String,
    /// Whether it is in the manifest and would be lost.
    pub is_lost: bool,
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

/// Returns the differences of a manifest from what kubeadm would write.
pub(crate) fn edits(
    component: &Component,
    manifest: &ManifestSeen,
    configuration: &Value,
) -> Vec<Edit> {
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
pub(crate) fn extra_arguments(part: Option<&Value>) -> BTreeMap<String, Vec<String>> {
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
