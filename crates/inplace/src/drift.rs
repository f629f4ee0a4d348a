//! Finds Pods whose images differ from their templates, and unfinished runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::world::{Known, Owner, World, asked};
use crate::{marks, request::WorkloadKind};
use crate::{
    object,
    object::{Node, Pod},
};
use imgctl_base::{error::Result, image::Reference};
use imgctl_kube::api::Api;

/// The complete report; docs/inplace.md describes the JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    pub workloads: Vec<WorkloadReport>,
    /// Pods without an owner that were changed in place.
    pub pods: Vec<PodReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadReport {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Containers with the image of the template, and the images of the Pods with their counts.
    pub containers: Vec<ContainerReport>,
    /// The run that intentionally left the template behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// A run that changed the template and did not finish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<String>,
}

impl fmt::Display for WorkloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}:", self.kind, self.namespace, self.name)?;
        for one in &self.containers {
            let pods: Vec<String> =
                one.pods.iter().map(|(image, count)| format!("{count}× {image}")).collect();
            let (name, template) = (&one.name, &one.template);
            write!(f, " `{name}` runs {}, its template says {template};", pods.join(", "))?;
        }
        match (&self.unfinished, &self.kept) {
            (Some(id), _) => write!(f, " run {id} is not finished"),
            (None, Some(id)) => write!(f, " left so by run {id}"),
            (None, None) => write!(f, " see `imgctl inplace status`"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContainerReport {
    pub name: String,
    pub template: String,
    pub pods: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PodReport {
    pub namespace: String,
    pub name: String,
    pub id: String,
    /// Former and current image, by container.
    pub images: BTreeMap<String, (String, String)>,
}

impl Report {
    /// Returns whether nothing drifts and nothing is unfinished.
    pub fn is_well(&self) -> bool {
        self.workloads.is_empty()
    }
}

/// Reports on one namespace, or on all.
pub fn report(api: &dyn Api, namespace: Option<&str>) -> Result<Report> {
    let world = look(api, namespace)?;
    let mut report = Report::default();
    for known in world.workloads.values() {
        let owned = known.object.metadata.controller().is_some();
        if owned || known.kind == WorkloadKind::Job {
            continue;
        }
        if let Some(found) = workload(&world, known) {
            report.workloads.push(found);
        }
    }
    report
        .workloads
        .sort_by(|a, b| (&a.namespace, &a.kind, &a.name).cmp(&(&b.namespace, &b.kind, &b.name)));
    for pod in &world.pods {
        if let (Owner::Nobody, Some(state)) = (world.owner(pod), marks::state(&pod.metadata)) {
            let image = |(name, before): (&String, &marks::Before)| {
                let now = pod.spec.container(name)?.spec.image.clone();
                Some((name.clone(), (before.image.clone(), now)))
            };
            report.pods.push(PodReport {
                namespace: pod.metadata.namespace.clone(),
                name: pod.metadata.name.clone(),
                images: state.containers.iter().filter_map(image).collect(),
                id: state.id,
            });
        }
    }
    Ok(report)
}

fn workload(world: &World, known: &Known) -> Option<WorkloadReport> {
    let meta = &known.object.metadata;
    let pods: Vec<&Pod> = world.members(&meta.uid).collect();
    let template = &known.object.spec.template.spec;
    let mut containers = Vec::new();
    let all = template.containers.iter().chain(&template.init_containers);
    for container in all {
        let mut images: BTreeMap<String, usize> = BTreeMap::new();
        for pod in &pods {
            if let Some(place) = pod.spec.container(&container.name) {
                *images.entry(place.spec.image.clone()).or_default() += 1;
            }
        }
        let differs = images.keys().any(|image| *image != container.image);
        // During a rollout, Pods of two templates exist as well; only images that were patched into
        // Pods are drift.
        if differs && patched(world, known, &pods, &container.name) {
            containers.push(ContainerReport {
                name: container.name.clone(),
                template: container.image.clone(),
                pods: images,
            });
        }
    }
    let unfinished = match marks::restore(meta) {
        Some(Ok(restore)) => Some(restore.id),
        Some(Err(why)) => Some(why),
        None => None,
    };
    let kept = marks::drift(meta).map(|drift| drift.id);
    if containers.is_empty() && unfinished.is_none() {
        return None;
    }
    Some(WorkloadReport {
        kind: known.kind.as_str().to_owned(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        containers,
        kept,
        unfinished,
    })
}

/// Returns whether a Pod has a different image than its own ReplicaSet or workload would give it.
fn patched(world: &World, known: &Known, pods: &[&Pod], container: &str) -> bool {
    pods.iter().any(|pod| {
        let direct = pod.metadata.controller();
        let direct = direct.and_then(|owner| world.workloads.get(&owner.uid));
        let spec = &direct.unwrap_or(known).object.spec.template.spec;
        let theirs = spec.container(container).map(|place| &place.spec.image);
        let own = pod.spec.container(container).map(|place| &place.spec.image);
        let marked = pod.metadata.annotations.contains_key(marks::STATE);
        if let (Some(theirs), Some(own)) = (theirs, own)
            && is_admitted(pod, container, theirs, own)
        {
            return false;
        }
        let ours = known.kind == WorkloadKind::Deployment || marked || !rolls(known);
        theirs != own && ours
    })
}

/// Returns whether admission derived `own` from the template's name. For a change by imgctl, the
/// annotation on the Pod records the requested name. Otherwise, the last component of the name is
/// preserved, with its tag or an additional digest.
fn is_admitted(pod: &Pod, container: &str, theirs: &str, own: &str) -> bool {
    if let Some(state) = marks::state(&pod.metadata)
        && let Some(before) = state.containers.get(container)
        && before.image != own
    {
        return before.to == theirs;
    }
    let parts = |name: &str| {
        let reference = Reference::parse(name).ok()?;
        let last = reference.repository().rsplit('/').next()?.to_owned();
        let tag = reference.tag().map(str::to_owned);
        Some((last, tag, reference.digest().cloned()))
    };
    match (parts(theirs), parts(own)) {
        (Some((a, tag, None)), Some((b, other, digest))) => {
            a == b && (tag == other || (digest.is_some() && other.is_none()))
        }
        (Some((a, _, Some(digest))), Some((b, _, other))) => a == b && other == Some(digest),
        _ => false,
    }
}

fn rolls(known: &Known) -> bool {
    let status = &known.object.status;
    match known.kind {
        WorkloadKind::StatefulSet => status.current_revision != status.update_revision,
        WorkloadKind::DaemonSet => {
            status.updated_number_scheduled < status.desired_number_scheduled
        }
        _ => false,
    }
}

fn look(api: &dyn Api, namespace: Option<&str>) -> Result<World> {
    let scope = namespace.map_or_else(String::new, |name| format!("/namespaces/{name}"));
    let read = |path: String| asked(api.list(&path), &path);
    let pods: Result<Vec<Pod>> =
        read(format!("/api/v1{scope}/pods"))?.iter().map(|pod| object::read(pod, "Pod")).collect();
    let mut world = World {
        pods: pods?,
        selected: BTreeSet::new(),
        nodes: BTreeMap::<String, Node>::new(),
        ..World::default()
    };
    for (kind, plural) in [
        (WorkloadKind::Deployment, "deployments"),
        (WorkloadKind::ReplicaSet, "replicasets"),
        (WorkloadKind::StatefulSet, "statefulsets"),
        (WorkloadKind::DaemonSet, "daemonsets"),
    ] {
        for value in read(format!("/apis/apps/v1{scope}/{plural}"))? {
            let object: object::Workload = object::read(&value, kind.as_str())?;
            let uid = object.metadata.uid.clone();
            world.workloads.insert(uid, Known { kind, object });
        }
    }
    Ok(world)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_admission_makes_of_a_name_is_known_by_its_end() {
        let same = |theirs: &str, own: &str| is_admitted(&Pod::default(), "app", theirs, own);
        let digest = format!("sha256:{}", "a".repeat(64));
        assert!(same("r.io/team/app:1", "mirror:5000/r.io/team/app:1"));
        assert!(same("app:1", &format!("app:1@{digest}")));
        assert!(same("app:1", &format!("app@{digest}")));
        assert!(same(&format!("app@{digest}"), &format!("mirror/app:1@{digest}")));
        assert!(!same("app:1", "app:2"));
        assert!(!same("app:1", &format!("app:2@{digest}")));
        assert!(!same("app:1", "other:1"));
        assert!(!same(&format!("app@{digest}"), "app:1"));
    }
}
