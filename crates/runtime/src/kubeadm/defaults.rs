//! Defaults for values that neither the image nor the Clusterfile sets, as in sealos, and removal
//! of those that a Kubernetes version does not support.

use serde_json::{Map, Value, json};

use crate::kubeadm::{documents::Documents, version::Version};
use crate::load_balancer::Papers;

/// Path of the API server's audit policy.
pub(crate) const AUDIT_POLICY: &str = "/etc/kubernetes/audit-policy.yml";

/// Client certificate files that kubeadm and the kubelet write on workers.
pub(super) const PAPERS: Papers = Papers {
    authority: "/etc/kubernetes/pki/ca.crt",
    certificate: "/var/lib/kubelet/pki/kubelet-client-current.pem",
    key: "/var/lib/kubelet/pki/kubelet-client-current.pem",
};

/// Removed feature gates, with the minor version from which naming them is an error or has no
/// effect.
const GONE: [(&str, u32); 3] =
    [("TTLAfterFinished", 24), ("CSIStorageCapacity", 24), ("EphemeralContainers", 26)];

/// Fields of KubeletConfiguration with the minor version that introduced them.
const KUBELET_SINCE: [(&str, u32); 5] = [
    ("containerRuntimeEndpoint", 27),
    ("imageServiceEndpoint", 27),
    ("imageMaximumGCAge", 29),
    ("failCgroupV1", 31),
    ("mergeDefaultEvictionSettings", 34),
];

/// Minor version of Kubernetes 1 that deprecates kube-proxy's mode `ipvs`.
const IPVS_DEPRECATED: u32 = 35;

/// Returns the default documents. `ipvs`: the image includes LVScare, with which sealos has kube-proxy
/// use that mode, and the kernel has it.
pub(super) fn documents(version: &Version, ipvs: bool) -> Documents {
    let local_time = json!({
        "name": "localtime",
        "hostPath": "/etc/localtime",
        "mountPath": "/etc/localtime",
        "readOnly": true,
        "pathType": "File",
    });
    let gates = "TTLAfterFinished=true,EphemeralContainers=true";
    let directory = |name: &str, path: &str| {
        json!({
            "name": name,
            "hostPath": path,
            "mountPath": path,
            "pathType": "DirectoryOrCreate",
        })
    };
    let mut documents = Documents {
        init: json!({"localAPIEndpoint": {"bindPort": 6443}}),
        cluster: json!({
            "networking": {
                "dnsDomain": "cluster.local",
                "podSubnet": "100.64.0.0/10",
                "serviceSubnet": "10.96.0.0/22",
            },
            "apiServer": {
                "extraArgs": arguments(&[
                    ("audit-log-format", "json"),
                    ("audit-log-maxage", "7"),
                    ("audit-log-maxbackup", "10"),
                    ("audit-log-maxsize", "100"),
                    ("audit-log-path", "/var/log/kubernetes/audit.log"),
                    ("audit-policy-file", AUDIT_POLICY),
                    ("enable-aggregator-routing", "true"),
                    ("feature-gates", gates),
                ]),
                "extraVolumes": [
                    directory("audit", "/etc/kubernetes"),
                    directory("audit-log", "/var/log/kubernetes"),
                    local_time,
                ],
            },
            "controllerManager": {
                "extraArgs": arguments(&[
                    ("bind-address", "0.0.0.0"),
                    ("feature-gates", gates),
                ]),
                "extraVolumes": [local_time],
            },
            "scheduler": {
                "extraArgs": arguments(&[
                    ("bind-address", "0.0.0.0"),
                    ("feature-gates", gates),
                ]),
                "extraVolumes": [local_time],
            },
            "etcd": {
                "local": {
                    "extraArgs": arguments(&[("listen-metrics-urls", "http://0.0.0.0:2381")]),
                },
            },
        }),
        join: json!({
            "caCertPath": "/etc/kubernetes/pki/ca.crt",
            "controlPlane": {"localAPIEndpoint": {"bindPort": 6443}},
            "timeouts": {"discovery": "5m0s"},
        }),
        kubelet: json!({
            "containerLogMaxFiles": 5,
            "containerLogMaxSize": "10Mi",
            "evictionHard": {
                "imagefs.available": "10%",
                "memory.available": "100Mi",
                "nodefs.available": "10%",
                "nodefs.inodesFree": "5%",
            },
            "failSwapOn": true,
            "healthzBindAddress": "0.0.0.0",
            "maxPods": 110,
            "podPidsLimit": -1,
            "rotateCertificates": true,
            "serializeImagePulls": false,
            "staticPodPath": "/etc/kubernetes/manifests",
        }),
        proxy: json!({"metricsBindAddress": "0.0.0.0"}),
    };
    if ipvs && version.minor < IPVS_DEPRECATED {
        documents.proxy["mode"] = "ipvs".into();
    }
    fit(&mut documents, version);
    documents
}

/// Returns kubeadm's own defaults, for a cluster that plain kubeadm made.
pub(super) fn of_kubeadm() -> Documents {
    Documents {
        init: json!({"localAPIEndpoint": {"bindPort": 6443}}),
        cluster: json!({"networking": {"dnsDomain": "cluster.local", "serviceSubnet": "10.96.0.0/12"}}),
        join: json!({
            "caCertPath": "/etc/kubernetes/pki/ca.crt",
            "controlPlane": {"localAPIEndpoint": {"bindPort": 6443}},
            "timeouts": {"discovery": "5m0s"},
        }),
        ..Documents::default()
    }
}

/// Returns a list of objects with `name` and `value`.
pub(super) fn arguments(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
}

/// Removes feature gates and fields that this version does not support, whatever their source.
pub(crate) fn fit(documents: &mut Documents, version: &Version) {
    let gone: Vec<&str> =
        GONE.iter().filter(|(_, minor)| version.minor >= *minor).map(|(gate, _)| *gate).collect();
    for component in ["apiServer", "controllerManager", "scheduler"] {
        let component = documents.cluster.get_mut(component);
        if let Some(list) = component.and_then(|component| component.get_mut("extraArgs")) {
            strip_arguments(list, &gone);
        }
    }
    for registration in [&mut documents.init, &mut documents.join] {
        if let Some(list) = registration
            .get_mut("nodeRegistration")
            .and_then(|node| node.get_mut("kubeletExtraArgs"))
        {
            strip_arguments(list, &gone);
        }
    }
    for component in [&mut documents.kubelet, &mut documents.proxy] {
        let Some(fields) = component.as_object_mut() else {
            continue;
        };
        if let Some(gates) = fields.get_mut("featureGates").and_then(Value::as_object_mut) {
            gates.retain(|name, _| !gone.contains(&name.as_str()));
            if gates.is_empty() {
                fields.shift_remove("featureGates");
            }
        }
    }
    if let Some(fields) = documents.kubelet.as_object_mut() {
        for (name, minor) in KUBELET_SINCE {
            if version.minor < minor {
                fields.shift_remove(name);
            }
        }
        if version.minor < 30 {
            strip_text_logging(fields);
        }
    }
}

fn strip_arguments(list: &mut Value, gone: &[&str]) {
    let Some(entries) = list.as_array_mut() else {
        return;
    };
    for entry in entries.iter_mut() {
        if entry["name"] != "feature-gates" {
            continue;
        }
        let gates = entry["value"].as_str().unwrap_or_default().to_owned();
        let kept: Vec<&str> = gates
            .split(',')
            .map(str::trim)
            .filter(|gate| !gate.is_empty())
            .filter(|gate| !gone.contains(&gate.split('=').next().unwrap_or_default()))
            .collect();
        entry["value"] = kept.join(",").into();
    }
    entries.retain(|entry| entry["name"] != "feature-gates" || entry["value"] != "");
}

/// Removes `logging.options.text`, a field since 1.30.
fn strip_text_logging(kubelet: &mut Map<String, Value>) {
    let options = kubelet
        .get_mut("logging")
        .and_then(|logging| logging.get_mut("options"))
        .and_then(Value::as_object_mut);
    if let Some(options) = options {
        options.shift_remove("text");
    }
}
