//! The operator's request: which Pods, which images and resources, and the safety settings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::batches::Share;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub selection: Selection,
    /// Images by container name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Resources by container name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resize: BTreeMap<String, Resize>,
    pub template: TemplatePolicy,
    pub batches: Vec<Share>,
    pub max_unavailable: Share,
    pub verify: Verify,
    #[serde(default)]
    pub include_sidecars: bool,
    #[serde(default)]
    pub include_init: bool,
    #[serde(default)]
    pub allow_single_replica: bool,
    #[serde(default)]
    pub force_owner: bool,
    /// A readiness gate that is closed while a Pod's containers restart.
    #[serde(default)]
    pub gate: Option<String>,
}

/// Requested images of a Pod, by container name.
pub(super) type Wanted = BTreeMap<String, String>;

/// The requested images of Pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// For Pods without an entry in `by_pod`.
    pub common: Wanted,
    /// Images by UID of the Pod.
    pub by_pod: BTreeMap<String, Wanted>,
}

impl Desired {
    pub fn of(&self, uid: &str) -> &Wanted {
        self.by_pod.get(uid).unwrap_or(&self.common)
    }

    pub fn images(&self) -> BTreeSet<&String> {
        self.common.values().chain(self.by_pod.values().flat_map(BTreeMap::values)).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub poll: Duration,
    /// Timeout for a Pod to become ready, or for permission to start with the next one.
    pub ready_timeout: Duration,
    /// Time that a Pod must stay ready.
    pub bake: Duration,
    /// Timeout for controllers to observe a change of a workload.
    pub controllers: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "by")]
pub enum Selection {
    Workload { kind: WorkloadKind, namespace: String, name: String },
    Labels { namespace: String, selector: String },
    Pods { namespace: String, names: Vec<String> },
}

impl Selection {
    pub fn namespace(&self) -> &str {
        match self {
            Self::Workload { namespace, .. }
            | Self::Labels { namespace, .. }
            | Self::Pods { namespace, .. } => namespace,
        }
    }

    /// Parses `kind/namespace/name`, or `kind/name` in `namespace`.
    pub fn workload(text: &str, namespace: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, namespace, name) = match parts[..] {
            [kind, namespace, name] => (kind, namespace, name),
            [kind, name] => (kind, namespace, name),
            _ => {
                return Err(Error::usage(format!("`{text}` is not a workload"))
                    .hint("a workload looks like deployment/default/web"));
            }
        };
        Ok(Self::Workload {
            kind: WorkloadKind::parse(kind)?,
            namespace: checked(namespace, "a namespace")?,
            name: checked(name, "a workload")?,
        })
    }
}

/// Validates a name that becomes part of an API path.
pub fn checked(name: &str, what: &str) -> Result<String> {
    let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    if name.is_empty() || name.len() > 253 || name.starts_with('.') || !name.chars().all(sound) {
        return Err(Error::usage(format!(
            "`{}` is not a valid name of {what}",
            name.escape_debug()
        )));
    }
    Ok(name.to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum WorkloadKind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
}

impl WorkloadKind {
    fn parse(text: &str) -> Result<Self> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "deployment" | "deployments" | "deploy" => Self::Deployment,
            "replicaset" | "replicasets" | "rs" => Self::ReplicaSet,
            "statefulset" | "statefulsets" | "sts" => Self::StatefulSet,
            "daemonset" | "daemonsets" | "ds" => Self::DaemonSet,
            "job" | "jobs" => Self::Job,
            _ => {
                return Err(Error::usage(format!("`{text}` is not a kind of workload"))
                    .hint("deployment, replicaset, statefulset, daemonset or job; single Pods with --pods"));
            }
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
        }
    }

    /// Returns the API path of the collection in `namespace`.
    pub(crate) fn collection(self, namespace: &str) -> String {
        let (group, plural) = match self {
            Self::Deployment => ("apps", "deployments"),
            Self::ReplicaSet => ("apps", "replicasets"),
            Self::StatefulSet => ("apps", "statefulsets"),
            Self::DaemonSet => ("apps", "daemonsets"),
            Self::Job => ("batch", "jobs"),
        };
        format!("/apis/{group}/v1/namespaces/{namespace}/{plural}")
    }

    /// Returns whether its template can be updated after its Pods.
    pub(crate) fn syncs(self) -> bool {
        matches!(self, Self::Deployment | Self::StatefulSet | Self::DaemonSet | Self::ReplicaSet)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TemplatePolicy {
    /// Pods whose workload would return to the old image are not changed.
    #[default]
    Refuse,
    /// The template is left behind, which is recorded on the workload.
    Keep,
    /// The template is updated, without a rollout.
    Sync,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// The name that the kubelet reports, or the digest if it is known.
    #[default]
    Image,
    /// The digest, which must be known in advance.
    Digest,
}

/// New requests and limits; resources that are not named stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
    /// Applies to requests and limits, where a container has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub both: BTreeMap<String, String>,
}

/// Parses `container=image`.
pub fn set(text: &str) -> Result<(String, String)> {
    let (container, image) = text.split_once('=').ok_or_else(|| {
        Error::usage(format!("`{text}` does not set an image"))
            .hint("write --set CONTAINER=IMAGE, with the container's name")
    })?;
    Reference::parse(image)?;
    Ok((checked(container, "a container")?, image.to_owned()))
}

/// Parses `container=cpu=500m,memory=1Gi,limits.cpu=1`.
pub fn resize(text: &str) -> Result<(String, Resize)> {
    let wrong = || {
        Error::usage(format!("`{text}` does not set resources")).hint(
            "write --resize CONTAINER=cpu=500m,memory=1Gi; requests.cpu=, limits.memory= for one of the two",
        )
    };
    let (container, list) = text.split_once('=').ok_or_else(wrong)?;
    let mut resize = Resize::default();
    for entry in list.split(',') {
        let (what, amount) = entry.split_once('=').ok_or_else(wrong)?;
        parse_quantity(amount)?;
        let (to, resource) = match what.split_once('.') {
            Some(("requests", resource)) => (&mut resize.requests, resource),
            Some(("limits", resource)) => (&mut resize.limits, resource),
            Some(_) => return Err(wrong()),
            None => (&mut resize.both, what),
        };
        if !matches!(resource, "cpu" | "memory") {
            return Err(Error::usage(format!(
                "{resource} of a running container cannot be changed"
            ))
            .hint("only cpu and memory can"));
        }
        to.insert(resource.to_owned(), amount.to_owned());
    }
    Ok((checked(container, "a container")?, resize))
}

/// Parses a quantity into thousandths; a finer fraction is rounded up, as in the API.
pub(super) fn parse_quantity(text: &str) -> Result<i128> {
    let wrong = || {
        Error::usage(format!("`{text}` is not a quantity"))
            .hint("a quantity looks like 500m, 2, 512Mi or 1G")
    };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() + fraction.len() > 18 {
        return Err(wrong());
    }
    let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| wrong())?;
    let divisor = 10_i128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
    let thousandths = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_i128.pow(2),
        "G" => 1000 * 1000_i128.pow(3),
        "T" => 1000 * 1000_i128.pow(4),
        "Ki" => 1000 * 1024,
        "Mi" => 1000 * 1024_i128.pow(2),
        "Gi" => 1000 * 1024_i128.pow(3),
        "Ti" => 1000 * 1024_i128.pow(4),
        _ => return Err(wrong()),
    };
    let scaled = digits * thousandths;
    Ok(scaled / divisor + i128::from(scaled % divisor != 0))
}

/// Returns whether two quantities are equal; an invalid one equals only the same text.
pub(crate) fn equal_quantities(a: &str, b: &str) -> bool {
    match (parse_quantity(a), parse_quantity(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_named_by_kind_namespace_and_name() {
        let long = Selection::workload("deploy/shop/web", "default").unwrap();
        let short = Selection::workload("Deployment/web", "shop").unwrap();
        assert_eq!(long, short);
        for wrong in ["web", "pod/a/b", "deploy/a/b/c", "deploy//x", "deploy/../x"] {
            assert!(Selection::workload(wrong, "d").is_err(), "{wrong}");
        }
    }

    #[test]
    fn images_and_resources_are_set_by_name() {
        let (container, image) = set("app=reg.example.com:5000/a/b:v2").unwrap();
        assert_eq!((&*container, &*image), ("app", "reg.example.com:5000/a/b:v2"));
        let (container, resize) = resize("app=cpu=500m,limits.memory=1Gi").unwrap();
        assert_eq!(container, "app");
        assert_eq!(resize.both["cpu"], "500m");
        assert_eq!(resize.limits["memory"], "1Gi");
        assert!(set("app").is_err() && set("app=").is_err() && set("a/b=x").is_err());
        for wrong in ["app", "app=cpu", "app=gpu=1", "app=x.cpu=1", "app=cpu=much"] {
            assert!(super::resize(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quantities_mean_numbers() {
        assert!(
            equal_quantities("0.5", "500m")
                && equal_quantities("1Gi", "1024Mi")
                && equal_quantities("1G", "1000M")
        );
        assert!(!equal_quantities("1G", "1Gi") && !equal_quantities("1", "1m"));
        assert_eq!(parse_quantity("0.0001").unwrap(), 1);
        for wrong in ["", ".", "x", "1x", "1.2.3", "-1", "9999999999999999999"] {
            assert!(parse_quantity(wrong).is_err(), "{wrong}");
        }
    }
}
