//! The options of k3s: which there are, which of them a host has for itself, and how a Node reports
//! those that it was started with (annotations `k3s.io/node-args` and `k3s.io/node-env`, which include
//! the configuration file and its drop-ins). Source: k3s' documentation of `server` and `agent`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Annotation with the arguments of k3s on a Node, as a JSON list; secrets are replaced.
pub const NODE_ARGS: &str = "k3s.io/node-args";
/// Annotation with the variables `K3S_…`, as a JSON object; secrets are replaced.
pub const NODE_ENV: &str = "k3s.io/node-env";

/// Options without a value.
const SWITCHES: [&str; 36] = [
    "alsologtostderr",
    "cluster-init",
    "cluster-reset",
    "debug",
    "disable-agent",
    "disable-apiserver",
    "disable-cloud-controller",
    "disable-controller-manager",
    "disable-default-registry-endpoint",
    "disable-etcd",
    "disable-helm-controller",
    "disable-kube-proxy",
    "disable-network-policy",
    "disable-scheduler",
    "docker",
    "embedded-registry",
    "enable-pprof",
    "etcd-disable-snapshots",
    "etcd-expose-metrics",
    "etcd-s3",
    "etcd-s3-insecure",
    "etcd-s3-skip-ssl-verify",
    "etcd-snapshot-compress",
    "flannel-external-ip",
    "flannel-ipv6-masq",
    "kine-tls",
    "multi-cluster-cidr",
    "nonroot-devices",
    "prefer-bundled-bin",
    "protect-kernel-defaults",
    "rootless",
    "secrets-encryption",
    "selinux",
    "supervisor-metrics",
    "tls-san-security",
    "with-node-id",
];

/// Options that may be given several times.
const LISTS: [&str; 19] = [
    "cluster-cidr",
    "cluster-dns",
    "disable",
    "etcd-arg",
    "kube-apiserver-arg",
    "kube-cloud-controller-manager-arg",
    "kube-controller-arg",
    "kube-controller-manager-arg",
    "kube-proxy-arg",
    "kube-scheduler-arg",
    "kubelet-arg",
    "node-external-dns",
    "node-external-ip",
    "node-internal-dns",
    "node-ip",
    "node-label",
    "node-taint",
    "service-cidr",
    "tls-san",
];

/// Options with one value.
const VALUES: [&str; 72] = [
    "advertise-address",
    "advertise-port",
    "agent-token",
    "agent-token-file",
    "airgap-extra-registry",
    "bind-address",
    "cluster-domain",
    "cluster-reset-restore-path",
    "cluster-secret",
    "config",
    "container-runtime-endpoint",
    "data-dir",
    "datastore-cafile",
    "datastore-certfile",
    "datastore-endpoint",
    "datastore-keyfile",
    "default-local-storage-path",
    "default-runtime",
    "egress-selector-mode",
    "etcd-s3-access-key",
    "etcd-s3-bucket",
    "etcd-s3-bucket-lookup-type",
    "etcd-s3-config-secret",
    "etcd-s3-endpoint",
    "etcd-s3-endpoint-ca",
    "etcd-s3-folder",
    "etcd-s3-proxy",
    "etcd-s3-region",
    "etcd-s3-retention",
    "etcd-s3-secret-key",
    "etcd-s3-session-token",
    "etcd-s3-timeout",
    "etcd-snapshot-dir",
    "etcd-snapshot-name",
    "etcd-snapshot-reconcile-interval",
    "etcd-snapshot-retention",
    "etcd-snapshot-schedule-cron",
    "flannel-backend",
    "flannel-cni-conf",
    "flannel-conf",
    "flannel-iface",
    "helm-job-image",
    "https-listen-port",
    "image-credential-provider-bin-dir",
    "image-credential-provider-config",
    "image-service-endpoint",
    "kube-apiserver-port",
    "kubelet-config",
    "lb-server-port",
    "log",
    "node-name",
    "pause-image",
    "private-registry",
    "resolv-conf",
    "secrets-encryption-provider",
    "server",
    "service-node-port-range",
    "servicelb-namespace",
    "snapshotter",
    "supervisor-port",
    "system-default-registry",
    "tls-min-version",
    "tls-cipher-suites",
    "token",
    "token-file",
    "v",
    "vmodule",
    "vpn-auth",
    "vpn-auth-file",
    "write-kubeconfig",
    "write-kubeconfig-group",
    "write-kubeconfig-mode",
];

/// Short and former names.
const ALIASES: [(&str, &str); 8] = [
    ("c", "config"),
    ("d", "data-dir"),
    ("etcd-snapshot-schedule", "etcd-snapshot-schedule-cron"),
    ("l", "log"),
    ("no-deploy", "disable"),
    ("o", "write-kubeconfig"),
    ("s", "server"),
    ("t", "token"),
];

/// Variables that stand for options.
const VARIABLES: [(&str, &str); 18] = [
    ("K3S_AGENT_TOKEN", "agent-token"),
    ("K3S_AGENT_TOKEN_FILE", "agent-token-file"),
    ("K3S_CLUSTER_INIT", "cluster-init"),
    ("K3S_CONFIG_FILE", "config"),
    ("K3S_DATASTORE_CAFILE", "datastore-cafile"),
    ("K3S_DATASTORE_CERTFILE", "datastore-certfile"),
    ("K3S_DATASTORE_ENDPOINT", "datastore-endpoint"),
    ("K3S_DATASTORE_KEYFILE", "datastore-keyfile"),
    ("K3S_DATA_DIR", "data-dir"),
    ("K3S_KUBECONFIG_MODE", "write-kubeconfig-mode"),
    ("K3S_KUBECONFIG_OUTPUT", "write-kubeconfig"),
    ("K3S_LB_SERVER_PORT", "lb-server-port"),
    ("K3S_NODE_NAME", "node-name"),
    ("K3S_RESOLV_CONF", "resolv-conf"),
    ("K3S_SELINUX", "selinux"),
    ("K3S_TOKEN", "token"),
    ("K3S_TOKEN_FILE", "token-file"),
    ("K3S_URL", "server"),
];

/// Options that each host has for itself, or that imgctl sets.
const OWN: [&str; 22] = [
    "advertise-address",
    "agent-token",
    "agent-token-file",
    "cluster-init",
    "cluster-secret",
    "config",
    "data-dir",
    "etcd-s3-access-key",
    "etcd-s3-secret-key",
    "etcd-s3-session-token",
    "node-external-dns",
    "node-external-ip",
    "node-internal-dns",
    "node-ip",
    "node-label",
    "node-name",
    "node-taint",
    "server",
    "token",
    "token-file",
    "vpn-auth",
    "with-node-id",
];

/// The options that k3s was started with on a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// `server` or `agent`.
    pub role: String,
    values: BTreeMap<String, Vec<String>>,
}

impl Options {
    /// Reads what a Node reports; `None` if it reports nothing that can be read.
    pub fn reported(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let words: Vec<String> = serde_json::from_str(annotations.get(NODE_ARGS)?).ok()?;
        let mut words = words.into_iter().peekable();
        let mut options = Self { role: words.next()?, ..Self::default() };
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                // Not an option, and no value of one.
                continue;
            };
            let (name, own) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |one| one.1);
            let value = own.or_else(|| {
                let fits = |next: &String| {
                    if SWITCHES.contains(&name) {
                        matches!(next.as_str(), "true" | "false")
                    } else {
                        is_known(name) || !next.starts_with('-')
                    }
                };
                words.next_if(fits)
            });
            let value = value.unwrap_or_else(|| "true".to_owned());
            options.values.entry(name.to_owned()).or_default().push(value);
        }
        let environment = annotations.get(NODE_ENV).map_or("{}", String::as_str);
        let environment: BTreeMap<String, String> = serde_json::from_str(environment).ok()?;
        for (variable, name) in VARIABLES {
            if let Some(value) = environment.get(variable).filter(|value| !value.is_empty()) {
                options.values.entry(name.to_owned()).or_insert_with(|| vec![value.clone()]);
            }
        }
        Some(options)
    }

    /// Returns the value of an option; of several, the last one, which k3s takes.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.last().map(String::as_str)
    }

    /// Reports whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "false")
    }

    /// Returns whether an option is set.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Returns the options that this version of imgctl does not know.
    pub fn unknown(&self) -> BTreeSet<&str> {
        self.values.keys().map(String::as_str).filter(|name| !is_known(name)).collect()
    }

    /// Returns the options that all hosts have in common, as a configuration file has them.
    pub fn shared(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for (name, values) in &self.values {
            if OWN.contains(&name.as_str()) {
                continue;
            }
            let value = match (&values[..], values.last()) {
                (_, Some(last)) if SWITCHES.contains(&name.as_str()) => json!(last != "false"),
                ([one], _) if !LISTS.contains(&name.as_str()) => json!(one),
                (all, _) => json!(all),
            };
            map.insert(name.clone(), value);
        }
        map
    }
}

fn is_known(name: &str) -> bool {
    SWITCHES.contains(&name) || LISTS.contains(&name) || VALUES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(arguments: &str, environment: &str) -> Options {
        let annotations = [(NODE_ARGS, arguments), (NODE_ENV, environment)];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Options::reported(&annotations.into()).unwrap()
    }

    /// As `k3s server` records them: options of the file are joined, and split again at `=`.
    #[test]
    fn options_are_read_as_k3s_reports_them() {
        let options = reported(
            r#"["server","--cluster-init","true","--disable","traefik","--disable","servicelb",
               "--token","********","--selinux","--flannel-backend","wireguard-native",
               "--kubelet-arg","-v=2","--secrets-encryption","false","-d","/data","--new-one","x",
               "--another"]"#,
            r#"{"K3S_URL":"https://api.example:6443","K3S_TOKEN":"********","K3S_NODE_NAME":""}"#,
        );
        assert_eq!(options.role, "server");
        assert!(options.is_on("cluster-init") && options.is_on("selinux"));
        assert!(!options.is_on("secrets-encryption") && !options.has("node-name"));
        assert_eq!(options.get("data-dir"), Some("/data"));
        assert_eq!(options.get("server"), Some("https://api.example:6443"));
        assert_eq!(options.unknown(), BTreeSet::from(["another", "new-one"]));
        let shared = Value::Object(options.shared());
        assert_eq!(
            shared,
            json!({
                "another": "true", "disable": ["traefik", "servicelb"],
                "flannel-backend": "wireguard-native", "kubelet-arg": ["-v=2"], "new-one": "x",
                "secrets-encryption": false, "selinux": true,
            })
        );
    }

    #[test]
    fn what_is_no_report_is_none() {
        for text in ["", "{}", "[]", "[1]"] {
            let annotations = BTreeMap::from([(NODE_ARGS.to_owned(), text.to_owned())]);
            assert_eq!(Options::reported(&annotations), None, "{text}");
        }
        assert_eq!(Options::reported(&BTreeMap::new()), None);
    }

    #[test]
    fn every_option_is_in_one_table() {
        let mut all: Vec<&str> = [&SWITCHES[..], &LISTS, &VALUES].concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        for name in OWN.iter().chain(VARIABLES.iter().map(|(_, name)| name)) {
            assert!(is_known(name), "{name}");
        }
    }
}
