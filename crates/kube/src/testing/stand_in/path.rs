//! API paths and what they refer to.

use serde_json::{Value, json};

use crate::testing::stand_in::Key;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub plural: String,
    pub name: String,
    pub subresource: String,
    pub query: Vec<(String, String)>,
}

impl Path {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let mut words = path.strip_prefix('/')?.split('/');
        let (group, version) = match words.next()? {
            "api" => ("", words.next()?),
            "apis" => (words.next()?, words.next()?),
            _ => return None,
        };
        let mut rest: Vec<&str> = words.collect();
        let mut namespace = "";
        // `namespaces/NAME` is the namespace itself unless a resource inside it follows.
        if let ["namespaces", name, inner, ..] = rest[..]
            && !matches!(inner, "status" | "finalize")
        {
            namespace = name;
            rest.drain(..2);
        }
        let at = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            plural: Some(at(0)).filter(|plural| !plural.is_empty())?,
            name: at(1),
            subresource: at(2),
            query: query
                .split('&')
                .filter_map(|part| part.split_once('='))
                .map(|(name, value)| (name.to_owned(), decoded(value)))
                .collect(),
        })
    }

    pub(super) fn resource(&self) -> String {
        format!("{}/{}", self.group, self.plural)
    }

    pub(super) fn key(&self) -> Key {
        (self.resource(), self.namespace.clone(), self.name.clone())
    }

    pub(super) fn query(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(one, _)| one == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn is_dry_run(&self) -> bool {
        self.query("dryRun") == Some("All")
    }

    /// Returns the name of the kind as messages show it: `pods`, `deployments.apps`.
    pub(super) fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

/// Returns the key of an object; fills in a missing namespace.
pub(super) fn key_of(object: &mut Value) -> Key {
    let version = object["apiVersion"].as_str().unwrap_or("v1");
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let kind = object["kind"].as_str().expect("an object has a kind");
    let resource = format!("{group}/{}", plural(kind));
    let is_global = is_global(kind);
    let meta = &mut object["metadata"];
    let name = meta["name"].as_str().expect("an object has a name");
    let name = name.to_owned();
    if is_global {
        return (resource, String::new(), name);
    }
    if meta["namespace"].is_null() {
        meta["namespace"] = json!("default");
    }
    let namespace = meta["namespace"].as_str().unwrap_or_default().to_owned();
    (resource, namespace, name)
}

fn is_global(kind: &str) -> bool {
    [
        "Node",
        "Namespace",
        "PersistentVolume",
        "ClusterRole",
        "ClusterRoleBinding",
        "StorageClass",
        "APIService",
        "CustomResourceDefinition",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "PriorityClass",
        "CertificateSigningRequest",
    ]
    .contains(&kind)
}

fn plural(kind: &str) -> String {
    let kind = kind.to_ascii_lowercase();
    match kind.as_str() {
        "endpoints" => kind,
        _ if kind.ends_with("class") => format!("{kind}es"),
        _ if kind.ends_with('y') => format!("{}ies", kind.trim_end_matches('y')),
        _ => format!("{kind}s"),
    }
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
