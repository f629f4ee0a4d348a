//! Tests only: Pods on the stand-in for the API server, with a kubelet that restarts containers
//! whose image has changed, and controllers as far as templates need them. Their behavior was
//! observed in the real components (Kubernetes 1.34).

use std::collections::{BTreeMap, BTreeSet};
use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use crate::target::{Target, Variant};
use crate::{batches::Share, journal, plan::Plan, pre_pull::Puller, world};
use crate::{
    engine,
    engine::{Engine, Summary},
};
use crate::{planner, planner::Inputs};
use crate::{
    request,
    request::{Desired, Pace, Request, Selection, TemplatePolicy, Verify},
};
use imgctl_base::error::Result;
use imgctl_journal::interrupt::Interrupt;
use imgctl_kube::{api::Api, testing::stand_in::StandIn};

pub(super) const PACE: Pace = Pace {
    poll: Duration::from_millis(1),
    ready_timeout: Duration::from_millis(200),
    bake: Duration::from_millis(3),
    controllers: Duration::from_millis(400),
};

/// Returns a cluster with a Node, a Deployment `web` with `replicas` Pods and its ReplicaSet, a
/// kubelet and controllers.
pub(super) fn cluster(replicas: usize) -> StandIn {
    let api = StandIn::new();
    api.add(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"architecture": "amd64", "kubeletVersion": "v1.34.0"}},
    }));
    api.add(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "uid": "d-uid"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("r.io/app:1")},
        "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas},
    }));
    api.add(replica_set("web-1", "rs-uid", replicas, "r.io/app:1"));
    for number in 0..replicas {
        api.add(pod(&format!("web-{number}"), "ReplicaSet", "rs-uid", "r.io/app:1"));
    }
    api.react(|api, request| {
        if request.is_write() {
            kubelet(api);
            deployments(api);
        }
    });
    api
}

pub(super) fn template(image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": image}, {"name": "side", "image": "r.io/side:1"}]},
    })
}

pub(super) fn replica_set(name: &str, uid: &str, replicas: usize, image: &str) -> Value {
    let mut template = template(image);
    template["metadata"]["labels"]["pod-template-hash"] = json!(uid);
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": "shop", "uid": uid, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d-uid", "controller": true}]},
        "spec": {"replicas": replicas, "template": template},
        "status": {"observedGeneration": 1, "replicas": replicas},
    })
}

/// Returns a ready Pod; its containers are in a different order than in the template.
pub(super) fn pod(name: &str, kind: &str, owner: &str, image: &str) -> Value {
    let owners = match kind {
        "" => json!([]),
        kind => {
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": true}])
        }
    };
    let status = |name: &str, image: &str| {
        json!({
            "name": name, "image": image, "imageID": id_of(image), "ready": true, "restartCount": 0,
            "containerID": format!("containerd://{name}-0"),
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}, "ownerReferences": owners},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "side", "image": "r.io/side:1"}, {"name": "app", "image": image}]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [status("side", "r.io/side:1"), status("app", image)],
        },
    })
}

fn id_of(image: &str) -> String {
    // A second name for the first image.
    let image = image.replace("app:same", "app:1");
    imgctl_base::image::Digest::of(image.as_bytes()).to_string()
}

pub(super) fn target(image: &str) -> Target {
    let digest = id_of(image);
    let variant = Variant { manifest: digest.clone(), config: digest.clone(), size: 10 };
    Target { digest, platforms: BTreeMap::from([(String::new(), variant)]) }
}

fn paths(api: &StandIn, collection: &str) -> Vec<String> {
    let all = Api::list(api, collection).unwrap();
    all.iter()
        .map(|one| {
            let meta = &one["metadata"];
            format!("{collection}/{}", meta["name"].as_str().unwrap())
        })
        .collect()
}

const PODS: &str = "/api/v1/namespaces/shop/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
const SETS: &str = "/apis/apps/v1/namespaces/shop/replicasets";

/// Restarts containers whose image has changed; images called `bad` cannot be pulled.
pub(super) fn kubelet(api: &StandIn) {
    for number in 0..40 {
        for name in [format!("web-{number}"), format!("db-{number}"), format!("bare-{number}")] {
            api.change(&format!("{PODS}/{name}"), |pod| {
                let spec = pod["spec"]["containers"].clone();
                let mut ready = true;
                for status in pod["status"]["containerStatuses"].as_array_mut().unwrap() {
                    let wanted = spec.as_array().unwrap().iter();
                    let wanted = wanted.clone().find(|one| one["name"] == status["name"]).unwrap();
                    if wanted["image"] != status["image"] {
                        let image = wanted["image"].as_str().unwrap();
                        let count = status["restartCount"].as_u64().unwrap() + 1;
                        let is_bad = image.contains("bad");
                        status["image"] = json!(image);
                        status["ready"] = json!(!is_bad);
                        status["state"] = if is_bad { json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}) } else { status["restartCount"] = json!(count);
                                status["imageID"] = json!(id_of(image));
                                status["containerID"] = json!(format!("containerd://app-{count}"));
                                json!({"running": {"startedAt": jiff::Timestamp::now().to_string()}}) };
                    }
                    ready &= status["ready"] == true;
                }
                let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
                conditions[0]["status"] = json!(if ready { "True" } else { "False" });
            });
        }
    }
}

/// Processes Deployments as their controller does: the oldest ReplicaSet with the same template
/// belongs to the Deployment. If there is none and the Deployment is not paused, a new one would be
/// created (`surprise`).
pub(super) fn deployments(api: &StandIn) {
    let look = |name: &str| api.peek(&format!("{DEPLOYMENTS}/{name}"));
    let Some(deployment) = look("web") else {
        return;
    };
    let names = ["old", "web-1"];
    for name in names {
        api.change(&format!("{SETS}/{name}"), |set| {
            set["status"]["observedGeneration"] = set["metadata"]["generation"].clone();
        });
    }
    let own = names.into_iter().find_map(|name| {
        let set = api.peek(&format!("{SETS}/{name}"))?;
        let mut template = set["spec"]["template"].clone();
        template["metadata"]["labels"].as_object_mut().unwrap().shift_remove("pod-template-hash");
        (template == deployment["spec"]["template"]).then_some(set)
    });
    let replicas = own.as_ref().map_or(json!(0), |set| set["spec"]["replicas"].clone());
    let surprise = own.as_ref().is_none_or(|set| set["spec"]["replicas"] == 0);
    api.change(&format!("{DEPLOYMENTS}/web"), |object| {
        object["status"]["observedGeneration"] = object["metadata"]["generation"].clone();
        object["status"]["updatedReplicas"] = replicas;
        if surprise && object["spec"]["paused"] != true {
            object["status"]["surprise"] = json!(true);
        }
    });
}

pub(super) fn web() -> Selection {
    Selection::workload("deployment/shop/web", "default").unwrap()
}

pub(super) fn request(selection: Selection, image: &str) -> Request {
    Request {
        selection,
        set: BTreeMap::from([request::set(&format!("app={image}")).unwrap()]),
        resize: BTreeMap::new(),
        template: TemplatePolicy::Sync,
        batches: vec![Share::Count(1), Share::Percent(50)],
        max_unavailable: Share::Count(1),
        verify: Verify::Image,
        include_sidecars: false,
        include_init: false,
        allow_single_replica: false,
        force_owner: false,
        gate: None,
    }
}

pub(super) fn desired(request: &Request) -> Desired {
    Desired { common: request.set.clone(), by_pod: BTreeMap::new() }
}

pub(super) fn planned(
    api: &dyn Api,
    request: &Request,
    desired: &Desired,
    ids: &[String],
    rollback: bool,
) -> Plan {
    let world = world::observe(api, &request.selection).unwrap();
    let targets =
        desired.images().into_iter().map(|image| (image.clone(), target(image))).collect();
    planner::plan(&Inputs {
        world: &world,
        request,
        desired,
        targets: &targets,
        ids,
        done: &BTreeSet::new(),
        rollback,
        access: &BTreeMap::new(),
        is_there: false,
    })
    .unwrap()
}

/// Plans and executes a run with the id `id`, as `apply` does.
pub(super) fn apply(
    api: &dyn Api,
    request: &Request,
    id: &str,
    directory: &Path,
) -> Result<Summary> {
    let ids = [id.to_owned()];
    let desired = desired(request);
    let plan = planned(api, request, &desired, &ids, false);
    carry_out(api, &plan, &desired, &ids, id, directory, None)
}

pub(super) fn carry_out(
    api: &dyn Api,
    plan: &Plan,
    desired: &Desired,
    ids: &[String],
    id: &str,
    directory: &Path,
    puller: Option<&dyn Puller>,
) -> Result<Summary> {
    let journal = journal::open(directory, id, false)?;
    engine::run(&Engine {
        api,
        plan,
        desired,
        journal: &journal,
        ids,
        puller,
        pace: PACE,
        rollback_all: false,
        controller: "me",
        interrupt: &Interrupt::default(),
        listener: &|_| {},
    })
}

/// Returns the images of the container `app` in all Pods.
pub(super) fn images(api: &StandIn) -> Vec<String> {
    let mut images: Vec<String> = Vec::new();
    for path in paths(api, PODS) {
        let pod = api.peek(&path).unwrap();
        let containers = pod["spec"]["containers"].as_array().unwrap().clone();
        let app = containers.iter().find(|one| one["name"] == "app").unwrap();
        images.push(app["image"].as_str().unwrap().to_owned());
    }
    images
}
