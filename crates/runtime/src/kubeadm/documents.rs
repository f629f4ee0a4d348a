//! The documents of a kubeadm cluster in one form, whatever version they were written in.
//!
//! The internal form is kubeadm's v1beta4: extraArgs are lists of name and value, and timeouts have
//! their own section. [`Documents::collect`] reads v1beta1 to v1beta4.

use serde_json::{Map, Value, json};

use imgctl_base::error::{Context, Error, Result};
use imgctl_template::yaml;

const KUBEADM: &str = "kubeadm.k8s.io/";

/// The five document kinds, each an object without `apiVersion` and `kind`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Documents {
    pub init: Value,
    pub cluster: Value,
    pub join: Value,
    pub kubelet: Value,
    pub proxy: Value,
}

impl Default for Documents {
    fn default() -> Self {
        let empty = || Value::Object(Map::new());
        Self { init: empty(), cluster: empty(), join: empty(), kubelet: empty(), proxy: empty() }
    }
}

impl Documents {
    /// Collects the `documents` that belong to kubeadm or its components and skips others. Later
    /// documents of a kind are merged over earlier ones.
    pub(super) fn collect(documents: &[Value]) -> Result<Self> {
        let mut all = Self::default();
        for document in documents {
            all.add(document)?;
        }
        Ok(all)
    }

    pub(super) fn read(text: &str) -> Result<Self> {
        let mut documents = Vec::new();
        for part in split(text) {
            let value = yaml::parse(&part)?;
            if !value.is_null() {
                documents.push(value);
            }
        }
        Self::collect(&documents)
    }

    fn add(&mut self, document: &Value) -> Result<()> {
        let kind = document["kind"].as_str().unwrap_or_default();
        let api = document["apiVersion"].as_str().unwrap_or_default();
        let mut body = document.clone();
        let Some(fields) = body.as_object_mut() else {
            return Ok(());
        };
        fields.shift_remove("apiVersion");
        fields.shift_remove("kind");
        if let Some(version) = api.strip_prefix(KUBEADM) {
            if !matches!(version, "v1beta1" | "v1beta2" | "v1beta3" | "v1beta4") {
                return Err(Error::usage(format!(
                    "{kind}: there is no kubeadm configuration version `{version}`"
                ))
                .hint("supported are v1beta1 to v1beta4"));
            }
            modernise(kind, &mut body).context(|| format!("{kind} of {api}"))?;
        }
        let (target, known) = match kind {
            "InitConfiguration" => (&mut self.init, INIT),
            "ClusterConfiguration" => (&mut self.cluster, CLUSTER),
            "JoinConfiguration" => (&mut self.join, JOIN),
            "KubeletConfiguration" => (&mut self.kubelet, &[][..]),
            "KubeProxyConfiguration" => (&mut self.proxy, &[][..]),
            _ => return Ok(()),
        };
        if let (Some(fields), false) = (body.as_object(), known.is_empty()) {
            for name in fields.keys() {
                if !known.contains(&name.as_str()) {
                    return Err(Error::usage(format!("{kind} has no field `{name}`"))
                        .hint(format!("it has {}", known.join(", "))));
                }
            }
        }
        merge(target, body);
        Ok(())
    }

    pub(crate) fn lay(&mut self, over: Self) {
        merge(&mut self.init, over.init);
        merge(&mut self.cluster, over.cluster);
        merge(&mut self.join, over.join);
        merge(&mut self.kubelet, over.kubelet);
        merge(&mut self.proxy, over.proxy);
    }
}

const INIT: &[&str] = &[
    "bootstrapTokens",
    "dryRun",
    "nodeRegistration",
    "localAPIEndpoint",
    "certificateKey",
    "skipPhases",
    "patches",
    "timeouts",
];
const CLUSTER: &[&str] = &[
    "etcd",
    "networking",
    "kubernetesVersion",
    "controlPlaneEndpoint",
    "apiServer",
    "controllerManager",
    "scheduler",
    "dns",
    "proxy",
    "certificatesDir",
    "imageRepository",
    "featureGates",
    "clusterName",
    "encryptionAlgorithm",
    "certificateValidityPeriod",
    "caCertificateValidityPeriod",
];
const JOIN: &[&str] = &[
    "dryRun",
    "nodeRegistration",
    "caCertPath",
    "discovery",
    "controlPlane",
    "skipPhases",
    "patches",
    "timeouts",
];

/// Splits a stream of YAML documents. A `---` inside a block scalar is indented.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line == "---" || line.starts_with("--- ") {
            parts.push(String::new());
            continue;
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts.retain(|part| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    parts
}

/// Converts any older version to v1beta4.
fn modernise(kind: &str, body: &mut Value) -> Result<()> {
    match kind {
        "ClusterConfiguration" => {
            for component in ["apiServer", "controllerManager", "scheduler"] {
                arguments(&mut body[component], "extraArgs")?;
            }
            if let Some(local) = body["etcd"].get_mut("local") {
                arguments(local, "extraArgs")?;
            }
            // kubeadm itself dropped these fields on the way to v1beta3.
            remove(body, "useHyperKubeImage");
            remove(&mut body["dns"], "type");
            tidy(body, &["apiServer", "controllerManager", "scheduler", "etcd", "dns"]);
        }
        "InitConfiguration" | "JoinConfiguration" => {
            arguments(&mut body["nodeRegistration"], "kubeletExtraArgs")?;
            if let Some(timeout) = remove(&mut body["discovery"], "timeout") {
                set(body, &["timeouts", "discovery"], timeout)?;
            }
            tidy(body, &["nodeRegistration", "discovery", "timeouts"]);
        }
        _ => {}
    }
    Ok(())
}

fn remove(value: &mut Value, name: &str) -> Option<Value> {
    value.as_object_mut()?.shift_remove(name)
}

/// Sets the field at the end of a path of maps; creates missing maps.
pub(super) fn set(value: &mut Value, path: &[&str], new: Value) -> Result<()> {
    let mut place = value;
    for name in path {
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        place = match place {
            Value::Object(fields) => fields.entry(*name).or_insert(Value::Null),
            _ => {
                return Err(Error::usage(format!(
                    "the parent of `{name}` in {} is not a map",
                    path.join(".")
                )));
            }
        };
    }
    *place = new;
    Ok(())
}

/// Returns the field at the end of a path.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, name| &value[*name])
}

/// Removes the nulls that lookups with `[]` leave behind.
fn tidy(body: &mut Value, names: &[&str]) {
    for name in names {
        if body[*name].is_null() {
            remove(body, name);
        }
    }
}

/// Converts `{a: b}` to `[{name: a, value: b}]`. Numbers and booleans become strings, because flags
/// are strings.
fn arguments(holder: &mut Value, field: &str) -> Result<()> {
    let Some(found) = holder.get_mut(field) else {
        return Ok(());
    };
    let wrong = || Error::usage(format!("`{field}` is neither a map nor a list of name and value"));
    let list = match found.take() {
        Value::Null => Vec::new(),
        Value::Object(map) => map
            .into_iter()
            .map(|(name, value)| Some((name, scalar(&value)?)))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(wrong)?,
        Value::Array(list) => list
            .iter()
            .map(|entry| Some((entry["name"].as_str()?.to_owned(), scalar(&entry["value"])?)))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    *found = list.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    Ok(())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null => Some(String::new()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// Lists whose entries have a `name`.
const BY_NAME: [&str; 4] = ["extraArgs", "kubeletExtraArgs", "extraVolumes", "extraEnvs"];
/// Lists that are sets.
const SETS: [&str; 4] = ["certSANs", "serverCertSANs", "peerCertSANs", "excludeCIDRs"];

pub(super) fn merge(base: &mut Value, over: Value) {
    merge_field("", base, over);
}

fn merge_field(name: &str, base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (name, value) in over {
                if value.is_null() {
                    base.shift_remove(&name);
                } else if let Some(below) = base.get_mut(&name) {
                    merge_field(&name, below, value);
                } else {
                    base.insert(name, value);
                }
            }
        }
        (Value::Array(base), Value::Array(over)) if BY_NAME.contains(&name) => {
            // A flag can be repeated on purpose, so all of its previous values are replaced.
            let named = |entry: &Value, list: &[Value]| {
                list.iter().any(|other| other["name"] == entry["name"])
            };
            base.retain(|entry| !named(entry, &over));
            base.extend(over);
        }
        (Value::Array(base), Value::Array(over)) if SETS.contains(&name) => {
            for entry in over {
                if !base.contains(&entry) {
                    base.push(entry);
                }
            }
        }
        (base, over) => *base = over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn by_kind_of_field() {
        let mut base = json!({
            "a": {"b": 1, "c": [1, 2]},
            "extraArgs": [{"name": "x", "value": "1"}, {"name": "y", "value": "1"}],
            "certSANs": ["a", "b"],
            "gone": {"x": 1},
        });
        merge(
            &mut base,
            json!({
                "a": {"c": [3], "d": 4},
                "extraArgs": [{"name": "x", "value": "2"}, {"name": "x", "value": "3"}],
                "certSANs": ["b", "c"],
                "gone": null,
            }),
        );
        assert_eq!(
            base,
            json!({
                "a": {"b": 1, "c": [3], "d": 4},
                "extraArgs": [
                    {"name": "y", "value": "1"},
                    {"name": "x", "value": "2"},
                    {"name": "x", "value": "3"},
                ],
                "certSANs": ["a", "b", "c"],
            })
        );
    }
}
