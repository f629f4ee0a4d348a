//! A stand-in for kube-apiserver in unit tests, since no real one is available where the tests run.
//!
//! It keeps objects, resource versions and generations, supports patches, selectors, evictions and
//! PodDisruptionBudgets, and rejects requests in the same words as the real server
//! (`tests/kube/recorded/` holds recorded answers; `recorded.rs` compares them). The only
//! controllers and kubelets are those that [`StandIn::react`] simulates.

mod discovery;
mod eviction;
mod patch;
mod path;
mod select;
pub mod serve;
mod status;
mod update;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use path::Path;
use serde_json::{Value, json};

use crate::api::{Answer, Api, ApiError, PatchKind};

/// Key of an object: resource (`apps/deployments`, `/pods`), namespace (may be empty), name.
type Key = (String, String, String);

/// A request as received, and the status of its answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// `get`, `list`, `create`, `replace`, `patch`, `delete`.
    pub verb: &'static str,
    pub path: String,
    /// The request body; null for reads.
    pub body: Value,
    /// HTTP status of the response.
    pub code: u16,
}

impl Request {
    /// Returns whether the request may have changed something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list")
    }
}

/// Changes a Pod before it is stored.
type Admission = Arc<dyn Fn(&mut Value) + Send + Sync>;

type Reaction = Arc<dyn Fn(&StandIn, &Request) + Send + Sync>;

/// An in-memory API server. Clones share their state.
#[derive(Clone, Default)]
pub struct StandIn {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Value>,
    revision: u64,
    uids: u64,
    log: Vec<Request>,
    failures: Vec<(&'static str, String, ApiError)>,
    reactions: Vec<Reaction>,
    admission: Option<Admission>,
    /// Whether PodDisruptionBudgets keep the status that tests gave them.
    budgets_are_frozen: bool,
    /// Whether deleted Pods stay in the terminating state until tests remove them.
    no_kubelets: bool,
}

impl StandIn {
    /// Returns an empty API server. The status of PodDisruptionBudgets follows the Pods, as the
    /// disruption controller would update it; a deleted Pod is gone by the next request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores an object as it is, including its status, and replaces any object of the same name.
    /// Fields that the server sets (uid, creationTimestamp, resourceVersion, generation) are added
    /// if missing. `apiVersion`, `kind` and `metadata.name` are required; the namespace of
    /// namespaced kinds defaults to `default`.
    pub fn add(&self, object: Value) -> &Self {
        self.lock().put(object);
        self
    }

    /// Stores all of the objects, as [`StandIn::add`] does.
    pub fn add_all(&self, objects: impl IntoIterator<Item = Value>) -> &Self {
        objects.into_iter().for_each(|object| {
            self.add(object);
        });
        self
    }

    /// Returns the object at `path`, if it exists. The read is not logged.
    pub fn peek(&self, path: &str) -> Option<Value> {
        let path = Path::parse(path)?;
        self.lock().objects.get(&path.key()).cloned()
    }

    /// Changes the object at `path` as a controller or kubelet would, including its status. The
    /// change is not logged. Returns `false` if the object does not exist.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Value)) -> bool {
        let Some(path) = Path::parse(path) else {
            return false;
        };
        let mut state = self.lock();
        let key = path.key();
        let Some(mut object) = state.objects.get(&key).cloned() else {
            return false;
        };
        change(&mut object);
        state.store(&key, object);
        true
    }

    /// Removes the object at `path` immediately.
    pub fn remove(&self, path: &str) -> bool {
        let Some(path) = Path::parse(path) else {
            return false;
        };
        let mut state = self.lock();
        let was_there = state.objects.remove(&path.key()).is_some();
        state.settle();
        was_there
    }

    /// Calls `reaction` after each request, to simulate controllers, kubelets or other users. The
    /// reaction may use [`StandIn::change`], [`StandIn::add`] and [`StandIn::remove`].
    pub fn react(&self, reaction: impl Fn(&Self, &Request) + Send + Sync + 'static) -> &Self {
        self.lock().reactions.push(Arc::new(reaction));
        self
    }

    /// Applies `change` to every Pod before it is stored, as mutating webhooks do.
    pub fn admit(&self, change: impl Fn(&mut Value) + Send + Sync + 'static) -> &Self {
        self.lock().admission = Some(Arc::new(change));
        self
    }

    /// Makes the next request of `verb` whose path contains `part` fail with `error` and without
    /// effect.
    pub fn fail_next(&self, verb: &'static str, part: &str, error: ApiError) -> &Self {
        self.lock().failures.push((verb, part.to_owned(), error));
        self
    }

    /// Makes PodDisruptionBudgets keep the status they were given.
    pub fn freeze_budgets(&self) -> &Self {
        self.lock().budgets_are_frozen = true;
        self
    }

    /// Keeps deleted Pods that have a Node in the terminating state until [`StandIn::remove`]
    /// removes them.
    pub fn without_kubelets(&self) -> &Self {
        self.lock().no_kubelets = true;
        self
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.lock().log.clone()
    }

    /// Returns all requests so far that may have changed something.
    pub fn writes(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(Request::is_write);
        requests
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve<T>(
        &self,
        verb: &'static str,
        path: &str,
        body: &Value,
        work: impl FnOnce(&mut State, &Path) -> Answer<T>,
    ) -> Answer<T> {
        let (answer, request, reactions) = {
            let mut state = self.lock();
            state.settle();
            let failure =
                state.failures.iter().position(|(of, part, _)| *of == verb && path.contains(part));
            let answer = match failure {
                Some(at) => Err(state.failures.remove(at).2),
                None => match Path::parse(path) {
                    Some(parsed) => work(&mut state, &parsed),
                    None => Err(status::no_such_path()),
                },
            };
            let request = Request {
                verb,
                path: path.to_owned(),
                body: body.clone(),
                code: answer.as_ref().map_or_else(|error| error.code, |_| 200),
            };
            state.log.push(request.clone());
            (answer, request, state.reactions.clone())
        };
        for reaction in reactions {
            reaction(self, &request);
        }
        answer
    }
}

impl Api for StandIn {
    fn raw(&self, path: &str) -> Answer<Vec<u8>> {
        if matches!(path.split('?').next(), Some("/readyz" | "/livez" | "/healthz")) {
            let failures = &mut self.lock().failures;
            let fails = |(verb, part, _): &(&str, String, ApiError)| {
                *verb == "get" && path.contains(part.as_str())
            };
            return match failures.iter().position(fails) {
                Some(at) => Err(failures.remove(at).2),
                None => Ok(b"ok".to_vec()),
            };
        }
        self.get(path).map(|object| object.to_string().into_bytes())
    }

    fn get(&self, path: &str) -> Answer<Value> {
        if let Some(document) = discovery::document(path) {
            return document;
        }
        if path == "/version" {
            return Ok(json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0"}));
        }
        self.serve("get", path, &Value::Null, |state, path| state.get(path))
    }

    fn list(&self, path: &str) -> Answer<Vec<Value>> {
        self.serve("list", path, &Value::Null, |state, path| state.list(path))
    }

    fn create(&self, path: &str, object: &Value) -> Answer<Value> {
        self.serve("create", path, object, |state, path| match path.subresource.as_str() {
            "" => state.create(path, object),
            "eviction" => state.evict(path, object),
            _ => Err(status::no_such_path()),
        })
    }

    fn replace(&self, path: &str, object: &Value) -> Answer<Value> {
        self.serve("replace", path, object, |state, path| {
            let old = state.get(path)?;
            state.update(path, &old, object.clone(), false)
        })
    }

    fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> Answer<Value> {
        self.serve("patch", path, patch, |state, path| {
            let old = state.get(path)?;
            let new = patch::apply(kind, &old, patch).map_err(patch::Failure::told)?;
            state.update(path, &old, new, true)
        })
    }

    fn delete(&self, path: &str, options: &Value) -> Answer<Value> {
        self.serve("delete", path, options, |state, path| state.delete(path, options))
    }
}

impl State {
    fn get(&self, path: &Path) -> Answer<Value> {
        let found = self.objects.get(&path.key());
        found.cloned().ok_or_else(|| status::not_found(path))
    }

    fn list(&self, path: &Path) -> Answer<Vec<Value>> {
        let wanted = select::Selection::parse(path)?;
        let all = self.objects.iter().filter(|((resource, namespace, _), _)| {
            *resource == path.resource()
                && (path.namespace.is_empty() || *namespace == path.namespace)
        });
        let found = all.filter(|(_, object)| wanted.has(object));
        Ok(found.map(|(_, object)| object.clone()).collect())
    }

    /// Applies the effects of time and controllers between requests.
    fn settle(&mut self) {
        if !self.no_kubelets {
            self.objects.retain(|(resource, ..), object| {
                let is_gone = resource == "/pods"
                    && !object["metadata"]["deletionTimestamp"].is_null()
                    && !update::has_finalizers(object);
                !is_gone
            });
        }
        self.settle_budgets();
    }

    /// Stores an object for a test.
    fn put(&mut self, mut object: Value) {
        let key = path::key_of(&mut object);
        let uid = self.next_uid();
        let meta = &mut object["metadata"];
        for (name, value) in [
            ("uid", json!(uid)),
            ("creationTimestamp", json!("2026-01-01T00:00:00Z")),
            ("generation", json!(1)),
        ] {
            if meta[name].is_null() {
                meta[name] = value;
            }
        }
        self.store(&key, object);
    }

    /// Stores an object under a new resource version and applies the consequences.
    fn store(&mut self, key: &Key, object: Value) -> Value {
        let kept = self.keep(key, object);
        self.settle_budgets();
        kept
    }

    fn keep(&mut self, key: &Key, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(key.clone(), object.clone());
        object
    }

    fn next_uid(&mut self) -> String {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012}", self.uids)
    }
}

#[cfg(test)]
mod tests;
