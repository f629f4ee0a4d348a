//! Settings as values: what differs between two documents, and how the same difference is made in a
//! third one, which may have been changed by hand.
//!
//! Must not know which program reads which document: runtimes decide that.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use imgctl_base::error::{Error, Result};

/// A program that reads a setting, and restarts or reloads when the setting changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    Kubelet,
    KubeProxy,
    Containerd,
    K3s,
    /// Nothing that runs: hosts that join later, and later renewals.
    Later,
}

impl Component {
    /// The static Pods of kubeadm's control planes.
    pub const STATIC: [Self; 4] =
        [Self::Etcd, Self::KubeApiserver, Self::KubeControllerManager, Self::KubeScheduler];

    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
            Self::Containerd => "containerd",
            Self::K3s => "k3s",
            Self::Later => "none",
        }
    }

    pub fn is_static(self) -> bool {
        Self::STATIC.contains(&self)
    }

    /// Reports whether the program runs on workers too.
    pub fn is_on_workers(self) -> bool {
        matches!(self, Self::Kubelet | Self::Containerd | Self::K3s)
    }

    /// Reports whether a host cannot start Pods while the program restarts.
    pub fn starts_pods(self) -> bool {
        self.is_on_workers()
    }
}

/// A setting with its old and new value, as a plan shows it. Secrets are masked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    /// Kind of the document, or path of the file in the image.
    pub document: String,
    /// Fields joined by dots; in a list of flags, volumes or variables, the name of the entry.
    pub name: String,
    /// `None` if it was not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// `None` if it is no longer set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
    pub component: Component,
    /// IDs of the hosts whose program changes.
    pub hosts: Vec<String>,
}

/// A field that differs between two documents.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    pub path: Vec<String>,
    pub old: Option<Value>,
    pub new: Option<Value>,
}

impl Difference {
    pub(crate) fn name(&self) -> String {
        self.path.join(".")
    }

    pub(crate) fn starts_with(&self, path: &[&str]) -> bool {
        self.path.len() >= path.len() && self.path.iter().zip(path).all(|(own, other)| own == other)
    }

    /// Returns the setting, with secrets masked.
    pub(crate) fn shown(
        &self,
        document: &str,
        component: Component,
        hosts: Vec<String>,
    ) -> Setting {
        let is_secret = self.path.iter().any(|field| is_secret(field));
        let shown = |value: &Option<Value>| match value {
            Some(_) if is_secret => Some("***".into()),
            value => value.clone(),
        };
        Setting {
            document: document.to_owned(),
            name: self.name(),
            old: shown(&self.old),
            new: shown(&self.new),
            component,
            hosts,
        }
    }
}

/// Reports whether a field's value must not be shown.
fn is_secret(field: &str) -> bool {
    const SECRET: [&str; 6] =
        ["token", "password", "secret", "datastore-endpoint", "certificateKey", "auth"];
    let field = field.to_ascii_lowercase();
    let is_file = field.ends_with("-file") || field.ends_with("file");
    !is_file && SECRET.iter().any(|word| field == word.to_ascii_lowercase() || ends(&field, word))
}

fn ends(field: &str, word: &str) -> bool {
    field.strip_suffix(&word.to_ascii_lowercase()).is_some_and(|rest| rest.ends_with(['-', '_']))
}

/// Returns what changes from `old` to `new`, in the order of the fields.
pub(crate) fn differences(old: &Value, new: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk(&mut Vec::new(), Some(old), Some(new), &mut found);
    found
}

fn walk(
    path: &mut Vec<String>,
    old: Option<&Value>,
    new: Option<&Value>,
    found: &mut Vec<Difference>,
) {
    let (old, new) = (old.filter(|it| !it.is_null()), new.filter(|it| !it.is_null()));
    if old == new {
        return;
    }
    let (before, after) = (members(old), members(new));
    // `{}` is not the same as none to all programs.
    let had = before.as_ref().is_some_and(|all| all.iter().any(|(_, value)| !value.is_null()));
    let is_emptied = had && new.and_then(Value::as_object).is_some_and(Map::is_empty);
    let (Some(before), Some(after), false) = (before, after, is_emptied) else {
        found.push(Difference { path: path.clone(), old: old.cloned(), new: new.cloned() });
        return;
    };
    let names: BTreeSet<&String> = before.iter().chain(&after).map(|(name, _)| name).collect();
    let get = |members: &[(String, Value)], name: &String| {
        members.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
    };
    let is_list = old.or(new).is_some_and(Value::is_array);
    for name in names {
        let (one, other) = (get(&before, name), get(&after, name));
        path.push(name.clone());
        if is_list {
            if one != other {
                found.push(Difference { path: path.clone(), old: one, new: other });
            }
        } else {
            walk(path, one.as_ref(), other.as_ref(), found);
        }
        path.pop();
    }
}

/// Returns the members of a map, or of a list whose entries have names. A repeated flag is one
/// member with a list of values. `None` for everything else.
fn members(value: Option<&Value>) -> Option<Vec<(String, Value)>> {
    match value {
        None => Some(Vec::new()),
        Some(Value::Object(fields)) => {
            Some(fields.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
        }
        Some(Value::Array(list)) => {
            let mut all: Vec<(String, Vec<Value>)> = Vec::new();
            for entry in list {
                let name = entry["name"].as_str()?;
                let fields = entry.as_object()?;
                let value = match fields.get("value") {
                    Some(value) if fields.len() == 2 => value.clone(),
                    _ => entry.clone(),
                };
                match all.iter_mut().find(|(own, _)| own == name) {
                    Some((_, values)) => values.push(value),
                    None => all.push((name.to_owned(), vec![value])),
                }
            }
            let joined = |mut values: Vec<Value>| match values.len() {
                1 => values.remove(0),
                _ => Value::Array(values),
            };
            // An empty list may be one of names or not: it is compared as a whole.
            (!all.is_empty())
                .then(|| all.into_iter().map(|(name, values)| (name, joined(values))).collect())
        }
        Some(_) => None,
    }
}

/// Lists that are made where a document has none.
const LISTS: [&str; 4] = ["extraArgs", "kubeletExtraArgs", "extraVolumes", "extraEnvs"];

/// Makes the difference in `document`; returns `false` if it is there already. What the document
/// has besides stays.
pub(crate) fn put(document: &mut Value, difference: &Difference) -> Result<bool> {
    let before = document.clone();
    put_below(document, &difference.path, "", difference)?;
    Ok(*document != before)
}

fn put_below(place: &mut Value, path: &[String], own: &str, what: &Difference) -> Result<()> {
    let Some((name, rest)) = path.split_first() else {
        *place = what.new.clone().unwrap_or(Value::Null);
        return Ok(());
    };
    if place.is_null() {
        *place =
            if LISTS.contains(&own) { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
    }
    match place {
        Value::Object(fields) => {
            let below = fields.entry(name.clone()).or_insert(Value::Null);
            put_below(below, rest, name, what)?;
            let is_empty = match &*below {
                Value::Null => true,
                Value::Object(below) => below.is_empty() && !rest.is_empty(),
                Value::Array(below) => below.is_empty() && !rest.is_empty(),
                _ => false,
            };
            if is_empty {
                fields.shift_remove(name);
            }
            Ok(())
        }
        Value::Array(list) if rest.is_empty() => {
            let at = list.iter().position(|entry| entry["name"] == name.as_str());
            list.retain(|entry| entry["name"] != name.as_str());
            let at = at.unwrap_or(list.len()).min(list.len());
            for (number, entry) in entries(name, what.new.as_ref()).into_iter().enumerate() {
                list.insert(at + number, entry);
            }
            Ok(())
        }
        _ => Err(Error::check_failed(format!(
            "`{}` cannot be set: its parent `{own}` is neither a map nor a list of names",
            what.name()
        ))),
    }
}

/// Returns the entries of a list that stand for one member; see [`members`].
fn entries(name: &str, value: Option<&Value>) -> Vec<Value> {
    let entry = |value: &Value| match value {
        Value::Object(fields) if fields.get("name").is_some_and(|own| own == name) => value.clone(),
        _ => serde_json::json!({"name": name, "value": value}),
    };
    match value {
        None => Vec::new(),
        Some(Value::Array(values)) => values.iter().map(entry).collect(),
        Some(value) => vec![entry(value)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(old: &Value, new: &Value) -> Vec<String> {
        differences(old, new)
            .iter()
            .map(|one| {
                let shown = |value: &Option<Value>| {
                    value.as_ref().map_or_else(|| "-".to_owned(), Value::to_string)
                };
                format!("{} {} {}", one.name(), shown(&one.old), shown(&one.new))
            })
            .collect()
    }

    #[test]
    fn flags_are_known_by_their_names_and_lists_as_a_whole() {
        let old = json!({
            "apiServer": {"extraArgs": [
                {"name": "a", "value": "1"}, {"name": "b", "value": "1"}, {"name": "i", "value": "x"},
            ]},
            "maxPods": 110, "list": [1, 2], "evictionHard": {"x": "1%"}, "same": {"y": null},
        });
        let new = json!({
            "apiServer": {"extraArgs": [
                {"name": "i", "value": "x"}, {"name": "i", "value": "y"}, {"name": "a", "value": "2"},
            ], "extraVolumes": [{"name": "v", "hostPath": "/v"}]},
            "maxPods": 50, "list": [2, 1], "same": {},
        });
        assert_eq!(
            told(&old, &new),
            [
                r#"apiServer.extraArgs.a "1" "2""#,
                r#"apiServer.extraArgs.b "1" -"#,
                r#"apiServer.extraArgs.i "x" ["x","y"]"#,
                r#"apiServer.extraVolumes.v - {"name":"v","hostPath":"/v"}"#,
                r#"evictionHard.x "1%" -"#,
                "list [1,2] [2,1]",
                "maxPods 110 50",
            ]
        );
        assert!(told(&old, &old).is_empty());
        // An empty map is not the same as none: the kubelet has defaults for `evictionHard`.
        assert_eq!(told(&json!({"e": {"x": 1}}), &json!({"e": {}})), [r#"e {"x":1} {}"#]);
    }

    #[test]
    fn a_difference_is_made_in_a_document_with_more_in_it_and_back() {
        let old = json!({"a": {"extraArgs": [{"name": "x", "value": "1"}]}, "e": {"k": 1}});
        let new = json!({"a": {"extraArgs": [
            {"name": "x", "value": "2"}, {"name": "x", "value": "3"}, {"name": "y", "value": "1"},
        ], "extraEnvs": [{"name": "E", "value": "1"}]}, "m": 1});
        let live = json!({
            "a": {"extraArgs": [{"name": "x", "value": "1"}, {"name": "hand", "value": "1"}]},
            "e": {"k": 1, "hand": 2}, "other": [1],
        });
        let mut document = live.clone();
        for one in differences(&old, &new) {
            assert!(put(&mut document, &one).unwrap(), "{one:?}");
            assert!(!put(&mut document, &one).unwrap(), "{one:?}");
        }
        assert_eq!(
            document,
            json!({
                "a": {"extraArgs": [
                    {"name": "x", "value": "2"}, {"name": "x", "value": "3"},
                    {"name": "hand", "value": "1"}, {"name": "y", "value": "1"},
                ], "extraEnvs": [{"name": "E", "value": "1"}]},
                "e": {"hand": 2}, "other": [1], "m": 1,
            })
        );
        for one in differences(&new, &old) {
            put(&mut document, &one).unwrap();
        }
        assert_eq!(document, live);
        let wrong =
            Difference { path: vec!["other".into(), "x".into(), "y".into()], old: None, new: None };
        assert!(put(&mut document, &wrong).is_err());
    }

    #[test]
    fn secrets_are_not_shown() {
        for (field, masked) in [
            ("token", true),
            ("agent-token", true),
            ("datastore-endpoint", true),
            ("token-file", false),
            ("tokenTTL", false),
            ("authorization-mode", false),
        ] {
            let one = Difference { path: vec![field.to_owned()], old: None, new: Some("x".into()) };
            let shown = one.shown("k3s", Component::K3s, Vec::new());
            assert_eq!(shown.new == Some("***".into()), masked, "{field}");
            assert_eq!(shown.old, None);
        }
    }
}
