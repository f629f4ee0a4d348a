//! One target: the settings of a build, how those of several definitions merge, and how they are printed.
//! Must not know expressions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::spec::{Kind, Spec};

/// Settings of one build. Lists and maps that are not set are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Target {
    pub name: String,
    pub description: Option<String>,
    pub context: Option<String>,
    /// Named contexts; `target:NAME` is the result of another target.
    pub contexts: BTreeMap<String, String>,
    pub dockerfile: Option<String>,
    pub dockerfile_inline: Option<String>,
    pub args: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub tags: Option<Vec<String>>,
    pub annotations: Vec<String>,
    pub attest: Vec<Spec>,
    pub cache_from: Vec<Spec>,
    pub cache_to: Option<Vec<Spec>>,
    pub target: Option<String>,
    pub secrets: Vec<Spec>,
    pub ssh: Vec<Spec>,
    pub platforms: Option<Vec<String>>,
    pub outputs: Option<Vec<Spec>>,
    pub pull: Option<bool>,
    pub no_cache: Option<bool>,
    pub no_cache_filter: Option<Vec<String>>,
    pub network: Option<String>,
    pub shm_size: Option<String>,
    pub ulimits: Option<Vec<String>>,
    pub call: Option<String>,
    pub entitlements: Vec<String>,
    pub extra_hosts: BTreeMap<String, String>,
    pub inherits: Vec<String>,
}

impl Target {
    /// Takes over what `over` sets, as a later definition of the same target does (buildx, `Target.Merge`).
    pub(crate) fn merge(&mut self, over: &Self) {
        fn set<T: Clone>(own: &mut Option<T>, other: &Option<T>) {
            if other.is_some() {
                own.clone_from(other);
            }
        }
        fn extend<T: Clone + PartialEq>(own: &mut Vec<T>, other: &[T]) {
            for item in other {
                if !own.contains(item) {
                    own.push(item.clone());
                }
            }
        }
        set(&mut self.description, &over.description);
        set(&mut self.context, &over.context);
        set(&mut self.dockerfile, &over.dockerfile);
        set(&mut self.dockerfile_inline, &over.dockerfile_inline);
        set(&mut self.tags, &over.tags);
        set(&mut self.cache_to, &over.cache_to);
        set(&mut self.target, &over.target);
        set(&mut self.platforms, &over.platforms);
        set(&mut self.outputs, &over.outputs);
        set(&mut self.pull, &over.pull);
        set(&mut self.no_cache, &over.no_cache);
        set(&mut self.no_cache_filter, &over.no_cache_filter);
        set(&mut self.network, &over.network);
        set(&mut self.shm_size, &over.shm_size);
        set(&mut self.ulimits, &over.ulimits);
        set(&mut self.call, &over.call);
        for (own, other) in [
            (&mut self.contexts, &over.contexts),
            (&mut self.args, &over.args),
            (&mut self.labels, &over.labels),
            (&mut self.extra_hosts, &over.extra_hosts),
        ] {
            own.extend(other.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        self.annotations.extend(over.annotations.iter().cloned());
        extend(&mut self.cache_from, &over.cache_from);
        extend(&mut self.entitlements, &over.entitlements);
        by_key(&mut self.attest, &over.attest, "type");
        by_key(&mut self.secrets, &over.secrets, "id");
        by_key(&mut self.ssh, &over.ssh, "id");
        extend(&mut self.inherits, &over.inherits);
    }

    /// Returns the target as `docker buildx bake --print` shows it.
    pub fn to_json(&self) -> Value {
        let mut members = Map::new();
        let mut put = |key: &str, value: Value| {
            let is_empty = match &value {
                Value::Null => true,
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                _ => false,
            };
            if !is_empty {
                members.insert(key.to_owned(), value);
            }
        };
        // The output is a bake file again, so `${` must not begin an interpolation there.
        let text = |text: &String| text.replace("${", "$${").replace("%{", "%%{");
        let map = |map: &BTreeMap<String, String>| {
            json!(
                map.iter()
                    .map(|(key, value)| (key.clone(), text(value)))
                    .collect::<BTreeMap<_, _>>()
            )
        };
        let list = |list: &[String]| json!(list.iter().map(text).collect::<Vec<_>>());
        let specs = |specs: &[Spec]| Value::Array(specs.iter().map(|spec| map(&spec.0)).collect());
        put("description", json!(self.description.as_ref().map(text)));
        put("annotations", list(&self.annotations));
        put("attest", specs(&self.attest));
        put("context", json!(self.context.as_ref().map(text)));
        put("contexts", map(&self.contexts));
        put("dockerfile", json!(self.dockerfile.as_ref().map(text)));
        put("dockerfile-inline", json!(self.dockerfile_inline.as_ref().map(text)));
        put("args", map(&self.args));
        put("labels", map(&self.labels));
        put("tags", list(self.tags.as_deref().unwrap_or_default()));
        put("cache-from", specs(&self.cache_from));
        put("cache-to", specs(self.cache_to.as_deref().unwrap_or_default()));
        put("target", json!(self.target.as_ref().map(text)));
        put("secret", specs(&self.secrets));
        put("ssh", specs(&self.ssh));
        put("platforms", list(self.platforms.as_deref().unwrap_or_default()));
        put("output", specs(self.outputs.as_deref().unwrap_or_default()));
        put("pull", json!(self.pull));
        put("no-cache", json!(self.no_cache));
        put("network", json!(self.network.as_ref().map(text)));
        put("no-cache-filter", list(self.no_cache_filter.as_deref().unwrap_or_default()));
        put("shm-size", json!(self.shm_size.as_ref().map(text)));
        put("ulimits", list(self.ulimits.as_deref().unwrap_or_default()));
        put("call", json!(self.call.as_ref().map(text)));
        put("entitlements", list(&self.entitlements));
        put("extra-hosts", map(&self.extra_hosts));
        Value::Object(members)
    }

    /// Sets the attribute `name` from texts; a pair of a map is `KEY=VALUE`. `None` if there is no such
    /// attribute.
    pub(crate) fn set(&mut self, name: &str, values: Values) -> Option<Result<(), String>> {
        let one = |values: &Values| match values {
            Values::Text(text) => Ok(Some(text.clone())),
            Values::Absent => Ok(None),
            _ => Err(format!("{name} is one text")),
        };
        let list = |values: Values| match values {
            Values::List(list) => Ok(list),
            Values::Absent => Ok(Vec::new()),
            _ => Err(format!("{name} is a list of texts")),
        };
        let map = |values: Values| match values {
            Values::Map(map) => Ok(map),
            Values::Absent => Ok(BTreeMap::new()),
            _ => Err(format!("{name} is a map of texts")),
        };
        let switch = |values: &Values| match values {
            Values::Text(text) => match &**text {
                "true" | "1" => Ok(Some(true)),
                "false" | "0" => Ok(Some(false)),
                _ => Err(format!("{name} is true or false, not `{text}`")),
            },
            Values::Absent => Ok(None),
            _ => Err(format!("{name} is true or false")),
        };
        let specs = |values: Values, kind: Kind| {
            list(values).map(|list| {
                list.iter()
                    .filter(|text| !text.is_empty())
                    .map(|text| Spec::parse(text, kind))
                    .collect()
            })
        };
        macro_rules! put {
            ($field:ident, $value:expr) => {
                $value.map(|value| self.$field = value)
            };
        }
        Some(match name {
            "description" => put!(description, one(&values)),
            "context" => put!(context, one(&values)),
            "dockerfile" => put!(dockerfile, one(&values)),
            "dockerfile-inline" => put!(dockerfile_inline, one(&values)),
            "target" => put!(target, one(&values)),
            "network" => put!(network, one(&values)),
            "shm-size" => put!(shm_size, one(&values)),
            "call" => put!(call, one(&values)),
            "pull" => put!(pull, switch(&values)),
            "no-cache" => put!(no_cache, switch(&values)),
            "contexts" => put!(contexts, map(values)),
            "args" => put!(args, map(values)),
            "labels" => put!(labels, map(values)),
            "extra-hosts" => put!(extra_hosts, map(values)),
            "tags" => put!(tags, list(values).map(Some)),
            "platforms" => put!(platforms, list(values).map(Some)),
            "no-cache-filter" => put!(no_cache_filter, list(values).map(Some)),
            "ulimits" => put!(ulimits, list(values).map(Some)),
            "annotations" => put!(annotations, list(values)),
            "entitlements" => put!(entitlements, list(values)),
            "inherits" => put!(inherits, list(values)),
            "output" => put!(outputs, specs(values, Kind::Output).map(Some)),
            "cache-from" => put!(cache_from, specs(values, Kind::Cache)),
            "cache-to" => put!(cache_to, specs(values, Kind::Cache).map(Some)),
            "secret" => put!(secrets, specs(values, Kind::Other)),
            "ssh" => put!(ssh, specs(values, Kind::Other)),
            "attest" => put!(attest, specs(values, Kind::Other)),
            _ => return None,
        })
    }
}

/// Value of an attribute, without numbers, booleans and nulls: they are texts, or absent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    Absent,
    Text(String),
    List(Vec<String>),
    Map(BTreeMap<String, String>),
}

/// Replaces specs with the same value of `key`, and adds others.
fn by_key(own: &mut Vec<Spec>, other: &[Spec], key: &str) {
    for spec in other {
        match own.iter_mut().find(|known| known.0.get(key) == spec.0.get(key)) {
            Some(known) => known.clone_from(spec),
            None => own.push(spec.clone()),
        }
    }
}

impl Target {
    /// Empties a list that an override replaces.
    pub(crate) fn clear(&mut self, attribute: &str) {
        match attribute {
            "cache-from" => self.cache_from.clear(),
            "entitlements" => self.entitlements.clear(),
            "secret" => self.secrets.clear(),
            "ssh" => self.ssh.clear(),
            _ => {}
        }
    }

    /// Puts the items that `target` has before those of this change, for lists that a merge replaces.
    pub(crate) fn prepend(&mut self, target: &Self, attribute: &str) {
        fn before<T: Clone>(own: &mut Option<Vec<T>>, known: &Option<Vec<T>>) {
            if let (Some(own), Some(known)) = (own, known) {
                own.splice(0..0, known.iter().cloned());
            }
        }
        match attribute {
            "tags" => before(&mut self.tags, &target.tags),
            "platforms" => before(&mut self.platforms, &target.platforms),
            "output" => before(&mut self.outputs, &target.outputs),
            "cache-to" => before(&mut self.cache_to, &target.cache_to),
            "no-cache-filter" => before(&mut self.no_cache_filter, &target.no_cache_filter),
            "ulimits" => before(&mut self.ulimits, &target.ulimits),
            _ => {}
        }
    }
}
