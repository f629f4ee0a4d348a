//! Creation, update and deletion of objects: the fields that the server sets and the requests it
//! rejects.

use serde_json::{Map, Value, json};

use crate::api::Answer;
use crate::testing::stand_in::path::Path;
use crate::testing::stand_in::{State, status};

pub(super) fn has_finalizers(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| !all.is_empty())
}

impl State {
    /// Returns whether the namespace is being deleted.
    pub(super) fn is_terminating(&self, path: &Path) -> bool {
        let key = ("/namespaces".to_owned(), String::new(), path.namespace.clone());
        let namespace = self.objects.get(&key);
        namespace.is_some_and(|object| object["status"]["phase"] == "Terminating")
    }

    pub(super) fn create(&mut self, path: &Path, object: &Value) -> Answer<Value> {
        let mut object = object.clone();
        if object["metadata"]["name"].is_null()
            && let Some(prefix) = object["metadata"]["generateName"].as_str()
        {
            let name = format!("{prefix}{:05}", self.uids + 1);
            object["metadata"]["name"] = json!(name);
        }
        let Some(name) = object["metadata"]["name"].as_str().map(str::to_owned) else {
            return Err(status::invalid(
                object["kind"].as_str().unwrap_or_default(),
                "",
                "metadata.name",
                "Required value: name or generateName is required",
                "FieldValueRequired",
            ));
        };
        let mut path = path.clone();
        path.name.clone_from(&name);
        if self.is_terminating(&path) {
            return Err(status::terminating(&path));
        }
        let key = path.key();
        if self.objects.contains_key(&key) {
            return Err(status::exists(&path, &name));
        }
        let uid = self.next_uid();
        let meta = &mut object["metadata"];
        if !path.namespace.is_empty() {
            meta["namespace"] = json!(path.namespace);
        }
        meta["uid"] = json!(uid);
        meta["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        meta["generation"] = json!(1);
        if path.plural == "pods" {
            object["status"] = json!({"phase": "Pending"});
        }
        if path.plural == "namespaces" {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"] = json!({"phase": "Active"});
        }
        self.admit(&path, &mut object);
        if path.is_dry_run() { Ok(object) } else { Ok(self.store(&key, object)) }
    }

    fn admit(&self, path: &Path, object: &mut Value) {
        if let Some(admission) = self.admission.as_ref().filter(|_| path.plural == "pods") {
            admission(object);
        }
    }

    /// Replaces `old` with `new`, as far as the path allows.
    pub(super) fn update(
        &mut self,
        path: &Path,
        old: &Value,
        new: Value,
        is_patch: bool,
    ) -> Answer<Value> {
        let asked = &new["metadata"]["resourceVersion"];
        if asked.as_str().is_some_and(|asked| !asked.is_empty())
            && *asked != old["metadata"]["resourceVersion"]
        {
            return Err(status::modified(path));
        }
        let asked = new["metadata"]["uid"].as_str();
        let uid = old["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(asked) = asked.filter(|asked| *asked != uid) {
            return Err(status::other_uid(path, old, asked, is_patch));
        }
        let mut new = confined(path, old, new);
        if path.subresource.is_empty() {
            self.admit(path, &mut new);
        }
        for name in [
            "uid",
            "creationTimestamp",
            "generation",
            "resourceVersion",
            "name",
            "namespace",
            "deletionTimestamp",
        ] {
            copy(&mut new["metadata"], &old["metadata"], name);
        }
        if path.plural == "pods" && matches!(path.subresource.as_str(), "" | "resize") {
            check_pod(path, old, &new)?;
        }
        if new == *old || path.is_dry_run() {
            return Ok(new);
        }
        // Deployments are the only workloads whose annotations affect the generation.
        let is_annotated = path.resource() == "apps/deployments"
            && new["metadata"]["annotations"] != old["metadata"]["annotations"];
        if new["spec"] != old["spec"] || is_annotated {
            let generation = old["metadata"]["generation"].as_u64().unwrap_or(1);
            new["metadata"]["generation"] = json!(generation + 1);
        }
        let key = path.key();
        if !new["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&new) {
            self.objects.remove(&key);
            self.settle();
            return Ok(new);
        }
        Ok(self.store(&key, new))
    }

    pub(super) fn delete(&mut self, path: &Path, options: &Value) -> Answer<Value> {
        let mut object = self.get(path)?;
        let meta = &object["metadata"];
        for (name, what, may) in [
            ("uid", "UID", "deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "modified"),
        ] {
            let asked = options["preconditions"][name].as_str();
            let has = meta[name].as_str().unwrap_or_default();
            if let Some(asked) = asked.filter(|asked| *asked != has) {
                let kind = object["kind"].as_str().unwrap_or_default();
                let why = format!(
                    "the {what} in the precondition ({asked}) does not match the {what} in record \
                     ({has}). The object might have been {may}"
                );
                return Err(status::conflict(kind, &path.name, &why));
            }
        }
        let dry = options["dryRun"].as_array();
        if path.is_dry_run() || dry.is_some_and(|dry| !dry.is_empty()) {
            return Ok(object);
        }
        let key = path.key();
        if path.plural == "namespaces" {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:10:00Z");
            object["status"]["phase"] = json!("Terminating");
            return Ok(self.store(&key, object));
        }
        let grace = options["gracePeriodSeconds"]
            .as_u64()
            .or(object["spec"]["terminationGracePeriodSeconds"].as_u64())
            .unwrap_or(30);
        let is_over = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let has_node = object["spec"]["nodeName"].is_string();
        let waits = path.plural == "pods" && has_node && !is_over && grace > 0;
        if waits || has_finalizers(&object) {
            if object["metadata"]["deletionTimestamp"].is_null() {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:10:00Z");
            }
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            return Ok(self.store(&key, object));
        }
        self.objects.remove(&key);
        self.settle_budgets();
        Ok(object)
    }
}

fn copy(to: &mut Value, from: &Value, name: &str) {
    match from.get(name) {
        Some(value) => to[name] = value.clone(),
        None => {
            if let Value::Object(members) = to {
                members.shift_remove(name);
            }
        }
    }
}

/// Returns the part of `new` that the path may change: `status` changes only the status, the object
/// itself everything else.
fn confined(path: &Path, old: &Value, new: Value) -> Value {
    let mut result = match path.subresource.as_str() {
        "status" => {
            let mut result = old.clone();
            copy(&mut result, &new, "status");
            for name in ["labels", "annotations"] {
                copy(&mut result["metadata"], &new["metadata"], name);
            }
            return result;
        }
        _ => new,
    };
    let with_status = [
        "pods",
        "nodes",
        "namespaces",
        "deployments",
        "replicasets",
        "statefulsets",
        "daemonsets",
        "jobs",
        "poddisruptionbudgets",
    ];
    if with_status.contains(&path.plural.as_str()) {
        copy(&mut result, old, "status");
    }
    result
}

/// Fails if an update changes an immutable part of an existing Pod.
fn check_pod(path: &Path, old: &Value, new: &Value) -> Answer<()> {
    let is_resize = path.subresource == "resize";
    if fixed(old, is_resize) == fixed(new, is_resize) {
        return Ok(());
    }
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    let count = |pod: &Value| pod["spec"]["containers"].as_array().map(Vec::len);
    if count(old) != count(new) {
        let why = "Forbidden: pod updates may not add or remove containers";
        let refusal = status::invalid("Pod", name, "spec.containers", why, "FieldValueForbidden");
        return Err(refusal);
    }
    let why = if is_resize {
        "Forbidden: only cpu and memory resources are mutable"
    } else {
        "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
    };
    Err(status::invalid("Pod", name, "spec", why, "FieldValueForbidden"))
}

/// Returns the immutable part of a Pod's spec.
fn fixed(pod: &Value, is_resize: bool) -> Value {
    let mut spec = pod["spec"].clone();
    let mutable = if is_resize { "resources" } else { "image" };
    for list in ["containers", "initContainers"] {
        let items = spec[list].as_array_mut().into_iter().flatten();
        for item in items.filter_map(Value::as_object_mut) {
            item.shift_remove(mutable);
        }
    }
    if let Some(spec) = spec.as_object_mut().filter(|_| !is_resize) {
        spec.shift_remove("activeDeadlineSeconds");
        spec.shift_remove("tolerations");
        // A missing list of init containers equals an empty one.
        if spec.get("initContainers") == Some(&Value::Null) {
            spec.shift_remove("initContainers");
        }
    }
    match spec {
        Value::Null => Value::Object(Map::new()),
        spec => spec,
    }
}
