//! Current state of the cluster: the Pods of a namespace, their owners, budgets and Nodes. Reads it
//! with few requests; makes no decisions.

use std::collections::{BTreeMap, BTreeSet};

use crate::request::{Selection, WorkloadKind};
use crate::{
    object,
    object::{Budget, Node, Pod, Workload},
};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_kube::api::{Answer, Api, encoded};

#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    pub kind: WorkloadKind,
    pub object: Workload,
}

impl Known {
    /// `Deployment shop/web`.
    pub fn full_name(&self) -> String {
        let meta = &self.object.metadata;
        format!("{} {}/{}", self.kind.as_str(), meta.namespace, meta.name)
    }

    pub fn path(&self) -> String {
        let meta = &self.object.metadata;
        format!("{}/{}", self.kind.collection(&meta.namespace), meta.name)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Owner<'a> {
    Nobody,
    Workload(&'a Known),
    /// An owner of unknown behavior, with its kind and name.
    Stranger {
        kind: String,
        name: String,
        uid: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// `v1.34.2`; empty if unknown.
    pub version: String,
    /// Whether the server supports `pods/resize`.
    pub resize: bool,
}

/// Snapshot of a namespace.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub namespace: String,
    pub server: Server,
    /// All Pods of the namespace, sorted by name.
    pub pods: Vec<Pod>,
    /// UIDs of the selected Pods.
    pub selected: BTreeSet<String>,
    /// Workloads by UID.
    pub workloads: BTreeMap<String, Known>,
    pub budgets: Vec<Budget>,
    pub nodes: BTreeMap<String, Node>,
}

/// Reads everything that a plan depends on.
pub fn observe(api: &dyn Api, selection: &Selection) -> Result<World> {
    let namespace = selection.namespace().to_owned();
    let mut world = World {
        server: server(api),
        pods: pods(api, &namespace)?,
        workloads: workloads(api, &namespace)?,
        budgets: budgets(api, &namespace)?,
        nodes: nodes(api)?,
        namespace,
        ..World::default()
    };
    if let Selection::Workload { kind: WorkloadKind::Job, namespace, name } = selection {
        world.add_job(api, &format!("{}/{name}", WorkloadKind::Job.collection(namespace)))?;
    }
    world.selected = world.select(api, selection)?;
    if world.selected.is_empty() {
        return Err(Error::not_found(format!("no Pod in namespace {} matches", world.namespace))
            .hint("`kubectl get pods --show-labels` lists the Pods"));
    }
    Ok(world)
}

impl World {
    /// Returns the owner of `pod`; for a Deployment's Pods, that is the Deployment.
    pub fn owner(&self, pod: &Pod) -> Owner<'_> {
        let Some(reference) = pod.metadata.controller() else {
            return Owner::Nobody;
        };
        let stranger = |kind: &str, name: &str, uid: &str| Owner::Stranger {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        let Some(known) = self.workloads.get(&reference.uid) else {
            return stranger(&reference.kind, &reference.name, &reference.uid);
        };
        match known.object.metadata.controller() {
            None => Owner::Workload(known),
            Some(above) => match self.workloads.get(&above.uid) {
                Some(above) => Owner::Workload(above),
                None => stranger(&above.kind, &above.name, &above.uid),
            },
        }
    }

    /// Returns the UID that Pods of one owner share; a Pod without an owner forms its own group.
    pub fn group(&self, pod: &Pod) -> String {
        match self.owner(pod) {
            Owner::Nobody => pod.metadata.uid.clone(),
            Owner::Workload(known) => known.object.metadata.uid.clone(),
            Owner::Stranger { uid, .. } => uid,
        }
    }

    pub fn pod(&self, uid: &str) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.metadata.uid == uid)
    }

    /// Returns the Pods of a group that are neither finished nor terminating.
    pub fn members(&self, group: &str) -> impl Iterator<Item = &Pod> {
        self.pods
            .iter()
            .filter(move |pod| !pod.is_finished() && !pod.is_going() && self.group(pod) == group)
    }

    pub(crate) fn budgets_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Budget> {
        self.budgets.iter().filter(|budget| {
            let selector = budget.spec.selector.as_ref();
            selector.is_some_and(|selector| selector.matches(&pod.metadata.labels))
        })
    }

    pub(crate) fn replica_sets<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Known> {
        self.workloads.values().filter(move |known| {
            let owner = known.object.metadata.controller();
            known.kind == WorkloadKind::ReplicaSet && owner.is_some_and(|owner| owner.uid == uid)
        })
    }

    /// Reads Pods, budgets and Nodes again.
    pub(crate) fn refresh(&mut self, api: &dyn Api) -> Result<()> {
        self.pods = pods(api, &self.namespace)?;
        self.budgets = budgets(api, &self.namespace)?;
        self.nodes = nodes(api)?;
        Ok(())
    }

    /// Reads workloads as well, because they may be created or removed during a run. Jobs are read
    /// only if one is selected.
    pub(crate) fn refresh_all(&mut self, api: &dyn Api) -> Result<()> {
        let jobs = self.workloads.values().filter(|known| known.kind == WorkloadKind::Job);
        let jobs: Vec<String> = jobs.map(Known::path).collect();
        self.workloads = workloads(api, &self.namespace)?;
        for path in jobs {
            match self.add_job(api, &path) {
                Err(error) if error.kind() == Kind::NotFound => {}
                added => added?,
            }
        }
        self.refresh(api)
    }

    fn add_job(&mut self, api: &dyn Api, path: &str) -> Result<()> {
        let object: Workload = object::read(&asked(api.get(path), path)?, "Job")?;
        let uid = object.metadata.uid.clone();
        self.workloads.insert(uid, Known { kind: WorkloadKind::Job, object });
        Ok(())
    }

    fn select(&self, api: &dyn Api, selection: &Selection) -> Result<BTreeSet<String>> {
        let uids = |pods: &mut dyn Iterator<Item = &Pod>| -> BTreeSet<String> {
            pods.map(|pod| pod.metadata.uid.clone()).collect()
        };
        match selection {
            Selection::Workload { kind, namespace, name } => {
                let mut all = self.workloads.values();
                let known = all.find(|one| one.kind == *kind && one.object.metadata.name == *name);
                let known = known.ok_or_else(|| {
                    Error::not_found(format!("there is no {} {namespace}/{name}", kind.as_str()))
                })?;
                let uid = &known.object.metadata.uid;
                let own = |pod: &&Pod| {
                    let direct = pod.metadata.controller().is_some_and(|one| one.uid == *uid);
                    direct || self.group(pod) == *uid
                };
                Ok(uids(&mut self.pods.iter().filter(own)))
            }
            Selection::Labels { namespace, selector } => {
                let path = format!(
                    "/api/v1/namespaces/{namespace}/pods?labelSelector={}",
                    encoded(selector)
                );
                let found = asked(api.list(&path), &path)?;
                let found: Result<Vec<Pod>> =
                    found.iter().map(|pod| object::read(pod, "Pod")).collect();
                Ok(uids(&mut found?.iter()))
            }
            Selection::Pods { namespace, names } => {
                for name in names {
                    if !self.pods.iter().any(|pod| pod.metadata.name == *name) {
                        return Err(Error::not_found(format!(
                            "there is no Pod {namespace}/{name}"
                        )));
                    }
                }
                let named = |pod: &&Pod| names.contains(&pod.metadata.name);
                Ok(uids(&mut self.pods.iter().filter(named)))
            }
        }
    }
}

/// Adds the requested path to the error of an answer.
pub fn asked<T>(answer: Answer<T>, path: &str) -> Result<T> {
    answer.context(|| format!("cannot read {path}"))
}

fn pods(api: &dyn Api, namespace: &str) -> Result<Vec<Pod>> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let mut pods: Vec<Pod> = listed(api, &path, "Pod")?;
    pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    Ok(pods)
}

fn budgets(api: &dyn Api, namespace: &str) -> Result<Vec<Budget>> {
    let path = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets");
    listed(api, &path, "PodDisruptionBudget")
}

fn nodes(api: &dyn Api) -> Result<BTreeMap<String, Node>> {
    let nodes: Vec<Node> = listed(api, "/api/v1/nodes", "Node")?;
    Ok(nodes.into_iter().map(|node| (node.metadata.name.clone(), node)).collect())
}

/// Reads the workloads of a namespace, by UID.
pub fn workloads(api: &dyn Api, namespace: &str) -> Result<BTreeMap<String, Known>> {
    let mut all = BTreeMap::new();
    for kind in [
        WorkloadKind::Deployment,
        WorkloadKind::ReplicaSet,
        WorkloadKind::StatefulSet,
        WorkloadKind::DaemonSet,
    ] {
        let found: Vec<Workload> = listed(api, &kind.collection(namespace), kind.as_str())?;
        for object in found {
            all.insert(object.metadata.uid.clone(), Known { kind, object });
        }
    }
    Ok(all)
}

fn listed<T: serde::de::DeserializeOwned>(api: &dyn Api, path: &str, what: &str) -> Result<Vec<T>> {
    let items = asked(api.list(path), path)?;
    items.iter().map(|item| object::read(item, what)).collect()
}

/// Best effort: without version information, the server is assumed to have no optional features.
fn server(api: &dyn Api) -> Server {
    let version = api.get("/version").ok();
    let version = version
        .as_ref()
        .and_then(|version| version["gitVersion"].as_str())
        .unwrap_or_default()
        .to_owned();
    let resources = api.get("/api/v1").ok();
    let resources = resources.as_ref().and_then(|list| list["resources"].as_array());
    let resize = resources.is_some_and(|all| all.iter().any(|one| one["name"] == "pods/resize"));
    Server { version, resize }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use imgctl_kube::testing::stand_in::StandIn;

    /// Regression: after the first look for new Pods, the Pods of a Job were attributed to another owner.
    #[test]
    fn a_selected_job_is_known_until_it_is_gone() {
        let job = "/apis/batch/v1/namespaces/shop/jobs/import";
        let api = StandIn::new();
        api.add(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "import", "namespace": "shop", "uid": "j"},
            "spec": {"template": {"spec": {"containers": []}}},
        }))
        .add(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "import-1", "namespace": "shop", "ownerReferences":
                [{"apiVersion": "batch/v1", "kind": "Job", "name": "import", "uid": "j",
                  "controller": true}]},
            "spec": {"containers": [{"name": "c", "image": "x:1"}]},
        }));
        let selection = Selection::Workload {
            kind: WorkloadKind::Job,
            namespace: "shop".to_owned(),
            name: "import".to_owned(),
        };
        let mut world = observe(&api, &selection).unwrap();
        let is_known = |world: &World| matches!(world.owner(&world.pods[0]), Owner::Workload(_));
        assert!(is_known(&world));
        world.refresh_all(&api).unwrap();
        assert!(is_known(&world));
        api.remove(job);
        world.refresh_all(&api).unwrap();
        assert!(!is_known(&world));
    }
}
