//! Writes documents in the format of one kubeadm version.

use serde_json::{Map, Value};

use crate::kubeadm::documents::{Documents, at, set};
use crate::kubeadm::version::Version;
use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

const KUBELET: &str = "kubelet.config.k8s.io/v1beta1";
const PROXY: &str = "kubeproxy.config.k8s.io/v1alpha1";

/// Fields introduced in v1beta4 that cannot be dropped silently for older versions.
const ONLY_LATER: [(&str, &[&str]); 9] = [
    ("dns", &["disabled"]),
    ("proxy", &["disabled"]),
    ("apiServer", &["extraEnvs"]),
    ("controllerManager", &["extraEnvs"]),
    ("scheduler", &["extraEnvs"]),
    ("etcd", &["local", "extraEnvs"]),
    ("nodeRegistration", &["imagePullSerial"]),
    ("dryRun", &[]),
    ("timeouts", &["kubeletHealthCheck"]),
];

pub(super) fn init(documents: &Documents, version: &Version) -> Result<String> {
    let (init, cluster) = split_timeouts(documents, version)?;
    Ok([
        document(version.api(), "InitConfiguration", fit(&init, version)?)?,
        document(version.api(), "ClusterConfiguration", fit(&cluster, version)?)?,
        document(KUBELET, "KubeletConfiguration", documents.kubelet.clone())?,
        document(PROXY, "KubeProxyConfiguration", documents.proxy.clone())?,
    ]
    .join("---\n"))
}

pub(super) fn cluster(documents: &Documents, version: &Version) -> Result<String> {
    let (_, cluster) = split_timeouts(documents, version)?;
    document(version.api(), "ClusterConfiguration", fit(&cluster, version)?)
}

pub(super) fn join(join: &Value, version: &Version) -> Result<String> {
    let mut join = join.clone();
    if !version.has_lists()
        && let Some(timeout) = take(&mut join, &["timeouts", "discovery"])
    {
        set(&mut join, &["discovery", "timeout"], timeout)?;
    }
    document(version.api(), "JoinConfiguration", fit(&join, version)?)
}

/// Moves the timeout for the control plane to where this version expects it: ClusterConfiguration
/// before v1beta4, InitConfiguration since.
fn split_timeouts(documents: &Documents, version: &Version) -> Result<(Value, Value)> {
    let (mut init, mut cluster) = (documents.init.clone(), documents.cluster.clone());
    let old = ["apiServer", "timeoutForControlPlane"];
    let new = ["timeouts", "controlPlaneComponentHealthCheck"];
    if version.has_lists() {
        if let Some(timeout) = take(&mut cluster, &old)
            && at(&init, &new).is_null()
        {
            set(&mut init, &new, timeout)?;
        }
    } else if let Some(timeout) = take(&mut init, &new) {
        set(&mut cluster, &old, timeout)?;
    }
    Ok((init, cluster))
}

/// Converts a document from the internal form to this version's format.
fn fit(document: &Value, version: &Version) -> Result<Value> {
    let mut document = document.clone();
    if version.has_lists() {
        return Ok(document);
    }
    for (field, path) in ONLY_LATER {
        let path: Vec<&str> = std::iter::once(field).chain(path.iter().copied()).collect();
        if !at(&document, &path).is_null() {
            return Err(Error::usage(format!(
                "kubeadm {} does not know `{}`",
                version.text,
                path.join(".")
            ))
            .hint("that field was added in Kubernetes 1.31"));
        }
    }
    for holder in [
        &["apiServer", "extraArgs"][..],
        &["controllerManager", "extraArgs"],
        &["scheduler", "extraArgs"],
        &["etcd", "local", "extraArgs"],
        &["nodeRegistration", "kubeletExtraArgs"],
    ] {
        if let Some(Value::Array(list)) = take(&mut document, holder) {
            set(&mut document, holder, Value::Object(as_map(&list)))?;
        }
    }
    if let Some(fields) = document.as_object_mut() {
        // imgctl creates the certificates itself, so these fields take effect without kubeadm.
        for field in [
            "encryptionAlgorithm",
            "certificateValidityPeriod",
            "caCertificateValidityPeriod",
            "timeouts",
        ] {
            fields.shift_remove(field);
        }
    }
    Ok(document)
}

/// Converts a list of flags to a map; the last value of a repeated flag wins.
fn as_map(list: &[Value]) -> Map<String, Value> {
    list.iter()
        .filter_map(|entry| Some((entry["name"].as_str()?.to_owned(), entry["value"].clone())))
        .collect()
}

fn take(document: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, holders) = path.split_last()?;
    let mut place = document;
    for name in holders {
        place = place.get_mut(*name)?;
    }
    place.as_object_mut()?.shift_remove(*last)
}

/// Writes a document with sorted keys at every level, so that equal configurations produce equal
/// text.
fn document(api: &str, kind: &str, body: Value) -> Result<String> {
    let mut fields = Map::new();
    fields.insert("apiVersion".to_owned(), api.into());
    fields.insert("kind".to_owned(), kind.into());
    if let Value::Object(body) = sorted(body) {
        fields.extend(body);
    }
    let mut text = yaml::write(&Value::Object(fields))?;
    text.push('\n');
    Ok(text)
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> =
                fields.into_iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            let fields = fields.into_iter().map(|(name, value)| (name, sorted(value)));
            Value::Object(fields.collect())
        }
        Value::Array(list) => list.into_iter().map(sorted).collect(),
        other => other,
    }
}
