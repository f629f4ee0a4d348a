//! A stand-in for kube-apiserver in unit tests: no real one can be had where the tests run.
//!
//! It keeps objects, resource versions and generations, knows patches, selectors, evictions and
//! what PodDisruptionBudgets allow, and words its refusals as the real one does
//! (`tests/kube/recorded/` holds what that answered; `recorded.rs` compares). There are no
//! controllers and no kubelets but what [`StandIn::react`] plays.

mod eviction;
mod patch;
mod path;
mod select;
pub(crate) mod serve;
mod status;
mod update;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::kube::api::{Answer, Api, ApiError, PatchKind};
use path::Path;

/// An object's place: resource (`apps/deployments`, `/pods`), namespace (may be empty), name.
type Key = (String, String, String);

/// A request as it came, and what was answered.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `get`, `list`, `create`, `replace`, `patch`, `delete`.
    pub(crate) verb: &'static str,
    pub(crate) path: String,
    /// The body; null for reads.
    pub(crate) body: Value,
    /// HTTP status of the answer.
    pub(crate) code: u16,
}

impl Request {
    /// Whether it may have changed something.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list")
    }
}

/// Changes a Pod before it is kept.
type Admission = Arc<dyn Fn(&mut Value) + Send + Sync>;

type Reaction = Arc<dyn Fn(&StandIn, &Request) + Send + Sync>;

/// An API server in memory. Clones share their state.
#[derive(Clone, Default)]
pub(crate) struct StandIn {
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
    /// PodDisruptionBudgets keep the status that tests gave them.
    budgets_are_frozen: bool,
    /// Deleted Pods stay, terminating, until tests take them away.
    no_kubelets: bool,
}

impl StandIn {
    /// An empty API server. Budgets' status follows Pods, as the disruption controller would have
    /// it; a Pod that is deleted is gone with the next request.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Puts an object in as it is, with its status; an older one of the same name is replaced.
    /// What the server sets (uid, creationTimestamp, resourceVersion, generation) is added where
    /// it is missing. `apiVersion`, `kind` and `metadata.name` are needed; the namespace of
    /// namespaced kinds is `default` if missing.
    pub(crate) fn add(&self, object: Value) -> &Self {
        self.lock().put(object);
        self
    }

    /// All of them.
    pub(crate) fn add_all(&self, objects: impl IntoIterator<Item = Value>) -> &Self {
        objects.into_iter().for_each(|object| {
            self.add(object);
        });
        self
    }

    /// The object at `path`, if it is there; not logged.
    pub(crate) fn peek(&self, path: &str) -> Option<Value> {
        let path = Path::parse(path)?;
        self.lock().objects.get(&path.key()).cloned()
    }

    /// Changes the object at `path` as a controller or kubelet would, status and all; not logged.
    /// `false` when it is not there.
    pub(crate) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) -> bool {
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

    /// Takes the object at `path` away at once.
    pub(crate) fn remove(&self, path: &str) -> bool {
        let Some(path) = Path::parse(path) else {
            return false;
        };
        let mut state = self.lock();
        let was_there = state.objects.remove(&path.key()).is_some();
        state.settle();
        was_there
    }

    /// Calls `reaction` after each request, to play controllers, kubelets or other people. It may
    /// use [`StandIn::change`], [`StandIn::add`] and [`StandIn::remove`].
    pub(crate) fn react(
        &self,
        reaction: impl Fn(&Self, &Request) + Send + Sync + 'static,
    ) -> &Self {
        self.lock().reactions.push(Arc::new(reaction));
        self
    }

    /// Has `change` change every Pod before it is kept, as mutating webhooks do.
    pub(crate) fn admit(&self, change: impl Fn(&mut Value) + Send + Sync + 'static) -> &Self {
        self.lock().admission = Some(Arc::new(change));
        self
    }

    /// The next request of `verb` whose path contains `part` fails so, without effect.
    pub(crate) fn fail_next(&self, verb: &'static str, part: &str, error: ApiError) -> &Self {
        self.lock().failures.push((verb, part.to_owned(), error));
        self
    }

    /// PodDisruptionBudgets keep the status they were given.
    pub(crate) fn freeze_budgets(&self) -> &Self {
        self.lock().budgets_are_frozen = true;
        self
    }

    /// Deleted Pods that have a Node stay as terminating until [`StandIn::remove`] takes them.
    pub(crate) fn without_kubelets(&self) -> &Self {
        self.lock().no_kubelets = true;
        self
    }

    /// What was asked so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.lock().log.clone()
    }

    /// What was asked so far that may have changed something.
    pub(crate) fn writes(&self) -> Vec<Request> {
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
            let failure = state
                .failures
                .iter()
                .position(|(of, part, _)| *of == verb && path.contains(part));
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
        if matches!(
            path.split('?').next(),
            Some("/readyz" | "/livez" | "/healthz")
        ) {
            return Ok(b"ok".to_vec());
        }
        self.get(path).map(|object| object.to_string().into_bytes())
    }

    fn get(&self, path: &str) -> Answer<Value> {
        if path == "/api/v1" {
            return Ok(json!({"kind": "APIResourceList", "resources": [{"name": "pods/resize"}]}));
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
        self.serve("create", path, object, |state, path| {
            match path.subresource.as_str() {
                "" => state.create(path, object),
                "eviction" => state.evict(path, object),
                _ => Err(status::no_such_path()),
            }
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
        self.serve("delete", path, options, |state, path| {
            state.delete(path, options)
        })
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

    /// What time and controllers do between requests.
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

    /// Puts an object in as tests want it.
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

    /// Keeps an object under a new resource version, and what follows from it.
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
