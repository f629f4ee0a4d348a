//! Queries the Kubernetes API: about a dozen lists, regardless of the size of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use crate::observation::{
    ApiSeen, DeprecatedSeen, NodeAddress, NodeSeen, PodSeen, WebhookSeen, WorkloadSeen,
};
use imgctl_kube::api::{Answer, Api, encoded};
use imgctl_kube::drain::blocked;
use imgctl_runtime::k3s::options::{NODE_ARGS, NODE_ENV};

/// Pods per page, and the maximum number of pages.
const PAGE: usize = 2000;
const MOST_PAGES: usize = 400;
/// Seconds after the deadline before a Pod counts as stuck.
const PATIENCE: i64 = 30;

/// Queries the API; fails if it does not return the Nodes.
pub(super) fn ask(api: &dyn Api, raw: bool) -> Answer<ApiSeen> {
    let nodes = api.list("/api/v1/nodes")?;
    let mut unknown = BTreeMap::new();
    let mut list = |what: &str, paths: &[&str]| first(api, what, paths, &mut unknown);
    let pods = list("Pods", &["/api/v1/pods"]);
    let budgets = list(
        "PodDisruptionBudgets",
        &["/apis/policy/v1/poddisruptionbudgets", "/apis/policy/v1beta1/poddisruptionbudgets"],
    );
    let workloads: Vec<WorkloadSeen> = ["Deployment", "StatefulSet", "DaemonSet"]
        .into_iter()
        .flat_map(|kind| {
            let path = format!("/apis/apps/v1/{}s", kind.to_lowercase());
            let found = list(kind, &[&path]);
            found.into_iter().map(move |one| workload(kind, &one))
        })
        .collect();
    let validating = "validatingwebhookconfigurations";
    let mutating = "mutatingwebhookconfigurations";
    let hooks: Vec<Value> = [("Validating", validating), ("Mutating", mutating)]
        .into_iter()
        .flat_map(|(kind, plural)| {
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
            let mut found = list(plural, &[&path]);
            for one in &mut found {
                one["kind"] = Value::from(format!("{kind}WebhookConfiguration"));
            }
            found
        })
        .collect();
    let slices = if hooks.is_empty() {
        Vec::new()
    } else {
        list("EndpointSlices", &["/apis/discovery.k8s.io/v1/endpointslices"])
    };
    let services = list("APIServices", &["/apis/apiregistration.k8s.io/v1/apiservices"]);
    let mut seen = ApiSeen {
        nodes: nodes.iter().map(node).collect(),
        pods: pods.iter().map(pod).collect(),
        budgets: blocked(&budgets, &pods),
        workloads,
        webhooks: if unknown.contains_key("EndpointSlices") {
            Vec::new()
        } else {
            webhooks(&hooks, &slices)
        },
        unavailable_services: services.iter().filter_map(unavailable).collect(),
        ..ApiSeen::default()
    };
    objects(api, &mut seen, &mut unknown);
    if raw {
        match raw_pods(api) {
            Ok(pages) => seen.raw_pods = pages,
            Err(error) => drop(unknown.insert("raw Pods".to_owned(), error.to_string())),
        }
    }
    seen.unknown = unknown;
    Ok(seen)
}

/// Returns the first of these lists that the server supports.
fn first(
    api: &dyn Api,
    what: &str,
    paths: &[&str],
    unknown: &mut BTreeMap<String, String>,
) -> Vec<Value> {
    for (number, path) in paths.iter().enumerate() {
        match api.list(path) {
            Ok(items) => return items,
            Err(error) if error.is_not_found() && number + 1 < paths.len() => {}
            Err(error) => {
                unknown.insert(what.to_owned(), error.to_string());
                break;
            }
        }
    }
    Vec::new()
}

/// Returns the Pods as the server encoded them: their hashes are computed over bytes.
fn raw_pods(api: &dyn Api) -> Answer<Vec<String>> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        metadata: Next,
    }
    #[derive(Default, Deserialize)]
    struct Next {
        #[serde(default, rename = "continue")]
        token: String,
    }
    let mut pages = Vec::new();
    let mut path = format!("/api/v1/pods?limit={PAGE}");
    loop {
        let text = String::from_utf8_lossy(&api.raw(&path)?).into_owned();
        let page: Option<Page> = serde_json::from_str(&text).ok();
        pages.push(text);
        let token = page.map(|page| page.metadata.token).unwrap_or_default();
        if token.is_empty() || pages.len() >= MOST_PAGES {
            return Ok(pages);
        }
        path = format!("/api/v1/pods?limit={PAGE}&continue={}", encoded(&token));
    }
}

/// Queries single objects.
fn objects(api: &dyn Api, seen: &mut ApiSeen, unknown: &mut BTreeMap<String, String>) {
    let get = |what: &str, path: &str, unknown: &mut BTreeMap<String, String>| match api.get(path) {
        Ok(object) => Some(object),
        Err(error) => {
            if !error.is_not_found() {
                unknown.insert(what.to_owned(), error.to_string());
            }
            None
        }
    };
    seen.kube_system = get("namespace kube-system", "/api/v1/namespaces/kube-system", unknown)
        .map(|namespace| text(&namespace, "/metadata/uid"));
    seen.version = get("version", "/version", unknown).map(|version| text(&version, "/gitVersion"));
    let data = |object: Value, key: &str| {
        let value = object.get("data")?.get(key)?.as_str()?;
        Some(value.to_owned())
    };
    let map = |name: &str| format!("/api/v1/namespaces/kube-system/configmaps/{name}");
    seen.corefile =
        get("CoreDNS", &map("coredns"), unknown).and_then(|object| data(object, "Corefile"));
    let written = |name: &str, key: &str, unknown: &mut BTreeMap<String, String>| {
        let text = get(name, &map(name), unknown).and_then(|object| data(object, key))?;
        match serde_saphyr::from_str::<Value>(&text) {
            Ok(read) => Some(read),
            Err(error) => {
                unknown.insert(name.to_owned(), error.to_string());
                None
            }
        }
    };
    seen.cluster_configuration = written("kubeadm-config", "ClusterConfiguration", unknown);
    seen.kubelet_configuration = written("kubelet-config", "kubelet", unknown);
    seen.proxy_configuration = written("kube-proxy", "config.conf", unknown);
    match api.raw("/metrics") {
        Ok(metrics) => seen.deprecated = deprecated(&String::from_utf8_lossy(&metrics)),
        Err(error) => {
            unknown.insert("metrics".to_owned(), error.to_string());
        }
    }
}

fn text(value: &Value, path: &str) -> String {
    let found = value.pointer(path).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

fn number(value: &Value, path: &str) -> i64 {
    value.pointer(path).and_then(Value::as_i64).unwrap_or(0)
}

fn items<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let list = value.pointer(path).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn words(value: &Value, path: &str) -> BTreeMap<String, String> {
    let map = value.pointer(path).and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn node(object: &Value) -> NodeSeen {
    let condition = |name: &str| {
        items(object, "/status/conditions").find(|one| one["type"].as_str() == Some(name))
    };
    let is_true = |one: &Value| one["status"].as_str() == Some("True");
    let ready = condition("Ready");
    let bad = ["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];
    let mut annotations = words(object, "/metadata/annotations");
    annotations.retain(|key, _| {
        key.starts_with("imgctl.io/") || [NODE_ARGS, NODE_ENV].contains(&key.as_str())
    });
    let info = |key: &str| text(object, &format!("/status/nodeInfo/{key}"));
    NodeSeen {
        name: text(object, "/metadata/name"),
        ready: ready.is_some_and(is_true),
        message: match ready {
            Some(one) => format!("{}: {}", text(one, "/reason"), text(one, "/message")),
            None => "it has not reported yet".to_owned(),
        },
        pressure: bad
            .iter()
            .filter(|name| condition(name).is_some_and(is_true))
            .map(ToString::to_string)
            .collect(),
        unschedulable: object
            .pointer("/spec/unschedulable")
            .and_then(Value::as_bool)
            .unwrap_or(false),
        annotations,
        kubelet: info("kubeletVersion"),
        runtime: info("containerRuntimeVersion"),
        architecture: info("architecture"),
        machine_id: info("machineID"),
        hostname: text(object, "/metadata/labels/kubernetes.io~1hostname"),
        addresses: items(object, "/status/addresses")
            .map(|one| NodeAddress { kind: text(one, "/type"), address: text(one, "/address") })
            .collect(),
        taints: items(object, "/spec/taints")
            .map(|one| {
                format!("{}={}:{}", text(one, "/key"), text(one, "/value"), text(one, "/effect"))
            })
            .collect(),
    }
}

fn pod(object: &Value) -> PodSeen {
    let owner = items(object, "/metadata/ownerReferences")
        .find(|one| one["controller"].as_bool() == Some(true));
    let containers = items(object, "/spec/containers");
    PodSeen {
        namespace: text(object, "/metadata/namespace"),
        name: text(object, "/metadata/name"),
        node: text(object, "/spec/nodeName"),
        owner: owner.map_or_else(String::new, |one| {
            format!("{}/{}", text(one, "/kind"), text(one, "/name"))
        }),
        labels: words(object, "/metadata/labels"),
        mirror: object.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some(),
        finished: matches!(text(object, "/status/phase").as_str(), "Succeeded" | "Failed"),
        unready: items(object, "/status/conditions")
            .any(|one| one["type"] == "Ready" && one["status"] == "False")
            && !matches!(text(object, "/status/phase").as_str(), "Succeeded" | "Failed"),
        stuck: stuck(object, Timestamp::now()),
        local_volumes: volumes(object, "emptyDir"),
        git_volumes: volumes(object, "gitRepo"),
        images: containers.map(|one| (text(one, "/name"), text(one, "/image"))).collect(),
    }
}

/// Names of a Pod's volumes of one type.
fn volumes(pod: &Value, kind: &str) -> Vec<String> {
    items(pod, "/spec/volumes")
        .filter(|volume| volume.get(kind).is_some())
        .map(|volume| text(volume, "/name"))
        .collect()
}

/// Why a Pod still exists after its deadline: `deletionTimestamp` already includes the grace
/// period.
pub(super) fn stuck(pod: &Value, now: Timestamp) -> Option<String> {
    let due: Timestamp = text(pod, "/metadata/deletionTimestamp").parse().ok()?;
    let due = due.checked_add(SignedDuration::from_secs(PATIENCE)).ok()?;
    let holders: Vec<&str> = items(pod, "/metadata/finalizers").filter_map(Value::as_str).collect();
    (due < now).then(|| {
        if holders.is_empty() {
            "its kubelet has not stopped it".to_owned()
        } else {
            format!("finalizers block it: {}", holders.join(", "))
        }
    })
}

fn workload(kind: &str, object: &Value) -> WorkloadSeen {
    let (desired, ready) = match kind {
        "DaemonSet" => ("/status/desiredNumberScheduled", "/status/numberReady"),
        _ => ("/spec/replicas", "/status/readyReplicas"),
    };
    WorkloadSeen {
        kind: kind.to_owned(),
        namespace: text(object, "/metadata/namespace"),
        name: text(object, "/metadata/name"),
        desired: number(object, desired),
        ready: number(object, ready),
    }
}

/// Returns the required webhooks whose Service has no ready endpoint.
fn webhooks(configurations: &[Value], slices: &[Value]) -> Vec<WebhookSeen> {
    let served: BTreeSet<String> = slices
        .iter()
        .filter(|slice| {
            // A missing `ready` means ready.
            items(slice, "/endpoints")
                .any(|one| one.pointer("/conditions/ready") != Some(&Value::Bool(false)))
        })
        .map(|slice| {
            let service = text(slice, "/metadata/labels/kubernetes.io~1service-name");
            format!("{}/{service}", text(slice, "/metadata/namespace"))
        })
        .collect();
    let mut dead = Vec::new();
    for configuration in configurations {
        for hook in items(configuration, "/webhooks") {
            let Some(service) = hook.pointer("/clientConfig/service") else {
                continue;
            };
            let service = format!("{}/{}", text(service, "/namespace"), text(service, "/name"));
            // The default failure policy is `Fail`.
            if text(hook, "/failurePolicy") != "Ignore" && !served.contains(&service) {
                dead.push(WebhookSeen {
                    configuration: format!(
                        "{}/{}",
                        text(configuration, "/kind"),
                        text(configuration, "/metadata/name")
                    ),
                    name: text(hook, "/name"),
                    service,
                });
            }
        }
    }
    dead
}

fn unavailable(service: &Value) -> Option<(String, String)> {
    let condition = items(service, "/status/conditions")
        .find(|one| one["type"].as_str() == Some("Available"))?;
    (condition["status"].as_str() != Some("True")).then(|| {
        let why = format!("{}: {}", text(condition, "/reason"), text(condition, "/message"));
        (text(service, "/metadata/name"), why)
    })
}

/// Parses the lines `apiserver_requested_deprecated_apis{group="x",…} 1` of the metrics.
pub(super) fn deprecated(metrics: &str) -> Vec<DeprecatedSeen> {
    let lines = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("apiserver_requested_deprecated_apis{"))
        .filter_map(|line| line.rsplit_once('}'))
        .filter(|(_, value)| value.trim() != "0");
    lines
        .map(|(labels, _)| {
            let of = |name: &str| {
                let mut all = labels.split(',');
                let value = all.find_map(|one| one.trim().strip_prefix(name)?.strip_prefix('='));
                value.unwrap_or_default().trim_matches('"').to_owned()
            };
            let resource = match of("subresource") {
                sub if sub.is_empty() => of("resource"),
                sub => format!("{}/{sub}", of("resource")),
            };
            DeprecatedSeen {
                group: of("group"),
                version: of("version"),
                resource,
                removed_release: of("removed_release"),
            }
        })
        .filter(|seen| !seen.removed_release.is_empty())
        .collect()
}
