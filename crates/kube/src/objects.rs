//! Objects by kind and name, and the API paths that they have: what a manifest says, and what the
//! server's discovery documents know.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{Answer, Api};

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectName {
    pub api_version: String,
    pub kind: String,
    /// Empty for objects without a namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if let Some((group, _)) = self.api_version.split_once('/') {
            write!(f, ".{group}")?;
        }
        match self.namespace.as_str() {
            "" => write!(f, " {}", self.name),
            namespace => write!(f, " {namespace}/{}", self.name),
        }
    }
}

impl ObjectName {
    /// Returns the identity that a manifest gives an object; `namespace` is for one that names none.
    pub fn of(object: &Value, namespace: &str) -> Option<Self> {
        let text =
            |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let meta = &object["metadata"];
        let found = Self {
            api_version: text(&object["apiVersion"])?,
            kind: text(&object["kind"])?,
            namespace: text(&meta["namespace"]).unwrap_or_else(|| namespace.to_owned()),
            name: text(&meta["name"])?,
        };
        found.is_clean().then_some(found)
    }

    /// Returns the group, empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Reports whether the parts can be parts of a path: foreign text must not reach other paths.
    pub fn is_clean(&self) -> bool {
        let is_clean = |text: &str, more: &[char]| {
            !matches!(text, "." | "..")
                && text.len() <= 253
                && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(&c))
        };
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        is_clean(group, &['-', '.'])
            && is_clean(version, &[])
            && is_clean(&self.kind, &[])
            && is_clean(&self.namespace, &['-'])
            // Roles may contain colons.
            && is_clean(&self.name, &['-', '.', ':', '_'])
    }
}

/// A resource of the server.
#[derive(Clone, Debug)]
pub struct Resource {
    pub api_version: String,
    pub kind: String,
    plural: String,
    pub namespaced: bool,
    verbs: Vec<String>,
}

impl Resource {
    /// Returns the path of all objects, or of those in a namespace.
    pub fn path(&self, namespace: &str) -> String {
        let root = root(&self.api_version);
        match namespace {
            "" => format!("{root}/{}", self.plural),
            namespace => format!("{root}/namespaces/{namespace}/{}", self.plural),
        }
    }

    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| one == verb)
    }
}

fn root(api_version: &str) -> String {
    if api_version.contains('/') {
        format!("/apis/{api_version}")
    } else {
        format!("/api/{api_version}")
    }
}

/// The resources of an API server, asked for as they are needed.
pub struct Resources {
    api: Arc<dyn Api>,
    known: Mutex<BTreeMap<String, Arc<Vec<Resource>>>>,
}

impl Resources {
    pub fn new(api: Arc<dyn Api>) -> Self {
        Self { api, known: Mutex::default() }
    }

    /// Returns the resources of a group and version; none if the server does not have it.
    pub fn of(&self, api_version: &str) -> Answer<Arc<Vec<Resource>>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(api_version) {
            return Ok(Arc::clone(found));
        }
        let list = match self.api.get(&root(api_version)) {
            Ok(list) => list,
            // Possibly served later: a CustomResourceDefinition may have just been created.
            Err(error) if error.is_not_found() => return Ok(Arc::default()),
            Err(error) => return Err(error),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resources = list["resources"].as_array().into_iter().flatten().filter_map(|one| {
            let plural = text(&one["name"]);
            (!plural.contains('/') && !plural.is_empty()).then(|| Resource {
                api_version: api_version.to_owned(),
                kind: text(&one["kind"]),
                plural,
                namespaced: one["namespaced"].as_bool().unwrap_or(false),
                verbs: one["verbs"].as_array().into_iter().flatten().map(text).collect(),
            })
        });
        let found = Arc::new(resources.collect::<Vec<_>>());
        known.insert(api_version.to_owned(), Arc::clone(&found));
        Ok(found)
    }

    /// Returns every resource, each in the version that the server prefers.
    pub fn all(&self) -> Answer<Vec<Resource>> {
        let mut versions = vec!["v1".to_owned()];
        let groups = self.api.get("/apis")?;
        let groups = groups["groups"].as_array().into_iter().flatten();
        versions.extend(groups.filter_map(|group| {
            group["preferredVersion"]["groupVersion"].as_str().map(str::to_owned)
        }));
        let mut all = Vec::new();
        for version in versions {
            all.extend(self.of(&version)?.iter().cloned());
        }
        Ok(all)
    }

    /// Returns the object's identity without the namespace that its kind does not have, and its
    /// path; `None` if the server has no such kind.
    pub fn find(&self, object: &ObjectName) -> Answer<Option<(ObjectName, String)>> {
        if !object.is_clean() {
            return Ok(None);
        }
        let resources = self.of(&object.api_version)?;
        let Some(resource) = resources.iter().find(|one| one.kind == object.kind) else {
            return Ok(None);
        };
        let mut object = object.clone();
        if !resource.namespaced {
            object.namespace.clear();
        }
        let path = format!("{}/{}", resource.path(&object.namespace), object.name);
        Ok(Some((object, path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(api_version: &str, kind: &str, name: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
    }

    #[test]
    fn names_come_from_manifests_and_hostile_ones_do_not() {
        let found = ObjectName::of(&object("apps/v1", "Deployment", "a"), "n").unwrap();
        assert_eq!(found.to_string(), "Deployment.apps n/a");
        assert_eq!(found.group(), "apps");
        let role = object("rbac.authorization.k8s.io/v1", "ClusterRole", "system:x");
        assert!(ObjectName::of(&role, "").is_some());
        for (version, kind, name) in [
            ("v1", "Secret", "../../namespaces/kube-system"),
            ("v1", "Secret", "a?b"),
            ("v1", "Secret", ".."),
            ("../v1", "Secret", "a"),
            ("v1", "Se/cret", "a"),
            ("v1", "Secret", ""),
            ("a/b/v1", "Secret", "x"),
        ] {
            assert_eq!(ObjectName::of(&object(version, kind, name), "n"), None, "{name}");
        }
        assert_eq!(ObjectName::of(&object("v1", "Secret", "a"), "n/../m"), None);
        assert_eq!(ObjectName::of(&json!("x"), "n"), None);
    }

    #[test]
    fn the_server_says_where_objects_are() {
        let api = crate::testing::stand_in::StandIn::new();
        let resources = Resources::new(Arc::new(api));
        let path = |version: &str, kind: &str| {
            let name = ObjectName::of(&object(version, kind, "a"), "n").unwrap();
            resources.find(&name).unwrap().map(|(name, path)| (name.namespace, path))
        };
        let at = |namespace: &str, path: &str| Some((namespace.to_owned(), path.to_owned()));
        assert_eq!(path("v1", "ConfigMap"), at("n", "/api/v1/namespaces/n/configmaps/a"));
        assert_eq!(path("v1", "Namespace"), at("", "/api/v1/namespaces/a"));
        let expected = at("n", "/apis/apps/v1/namespaces/n/deployments/a");
        assert_eq!(path("apps/v1", "Deployment"), expected);
        assert_eq!(path("apps/v1", "Unknown"), None);
        assert_eq!(path("example.org/v1", "Thing"), None);
        let all = resources.all().unwrap();
        assert!(all.iter().any(|one| one.kind == "Deployment" && one.can("list")));
    }

    #[test]
    fn no_object_names_another_path() {
        let valid = object("apps/v1", "Deployment", "a").to_string();
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), imgctl_base::testing::damaged(valid.as_bytes(), input)] {
                let Ok(value) = serde_json::from_slice::<Value>(&text) else { continue };
                if let Some(name) = ObjectName::of(&value, "default") {
                    let odd = ['/', '?', '#', '%', '\0'];
                    for part in [&name.kind, &name.namespace, &name.name] {
                        assert!(!part.contains(odd) && !part.contains(".."), "{part}");
                    }
                }
            }
        });
    }
}
