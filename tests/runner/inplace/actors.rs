//! Stand-in for kubelets and the controllers of workloads: neither runs where the tests run. It
//! does to the API, be that the real one or the one in memory, what those of Kubernetes 1.34 were
//! seen to do, as far as images, templates and revisions go.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::inplace::kube::api::{Api, PatchKind};

const PODS: &str = "/api/v1/namespaces/shop/pods";
const APPS: &str = "/apis/apps/v1/namespaces/shop";
const REVISION: &str = "controller-revision-hash";
/// From the end of the former container to the start of the next.
const RESTART: Duration = Duration::from_millis(250);

/// Plays until it is dropped.
pub(crate) struct Actors {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    /// Controllers of workloads see nothing for as long.
    asleep: AtomicBool,
    /// How often everybody has acted.
    rounds: AtomicUsize,
    /// What registries have: digests by image; others get one made of their name.
    digests: Mutex<BTreeMap<String, String>>,
}

impl Drop for Actors {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Actors {
    pub(crate) fn start(api: Arc<dyn Api>) -> Self {
        let shared = Arc::new(Shared::default());
        let mut play = Play { api, shared: Arc::clone(&shared), restarts: BTreeMap::new() };
        let thread = std::thread::spawn(move || {
            while !play.shared.ends.load(Ordering::SeqCst) {
                play.once();
                play.shared.rounds.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(40));
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Whether controllers of workloads do nothing.
    pub(crate) fn sleep(&self, asleep: bool) {
        self.shared.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Waits until everybody has acted a few times more on what is there now.
    pub(crate) fn act(&self) {
        let until = self.shared.rounds.load(Ordering::SeqCst) + 4;
        let begun = Instant::now();
        while self.shared.rounds.load(Ordering::SeqCst) < until {
            assert!(begun.elapsed() < Duration::from_secs(120), "nobody acts");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// An image's digest in its registry.
    pub(crate) fn know(&self, image: &str, digest: &str) {
        let mut digests = self.shared.digests.lock().unwrap();
        digests.insert(image.to_owned(), digest.to_owned());
    }
}

struct Play {
    api: Arc<dyn Api>,
    shared: Arc<Shared>,
    /// When a container ended, by Pod's UID and name.
    restarts: BTreeMap<(String, String), Instant>,
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

fn is_going(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn is_owned(object: &Value, by: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|all| all.iter().any(|one| one["uid"] == uid(by)))
}

fn owner(kind: &str, object: &Value) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": name(object), "uid": uid(object), "controller": true}])
}

/// Everything of a template but the label that tells ReplicaSets apart.
fn bare(object: &Value) -> Value {
    let mut template = object["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.shift_remove("pod-template-hash");
    }
    template
}

fn number(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The name of a revision of a template.
fn hash(template: &Value) -> String {
    format!("{:08x}", number(&template.to_string()) & 0xffff_ffff)
}

impl Play {
    fn once(&mut self) {
        let pods = self.list(PODS);
        for pod in &pods {
            self.kubelet(pod);
        }
        if self.shared.asleep.load(Ordering::SeqCst) {
            return;
        }
        let pods = self.list(PODS);
        let sets = self.list(&format!("{APPS}/replicasets"));
        for deployment in self.list(&format!("{APPS}/deployments")) {
            self.deployment(&deployment, &sets, &pods);
        }
        for set in self.list(&format!("{APPS}/replicasets")) {
            self.replica_set(&set, &pods);
        }
        for set in self.list(&format!("{APPS}/statefulsets")) {
            self.with_revisions("StatefulSet", "statefulsets", &set, &pods);
        }
        for set in self.list(&format!("{APPS}/daemonsets")) {
            self.with_revisions("DaemonSet", "daemonsets", &set, &pods);
        }
    }

    fn list(&self, path: &str) -> Vec<Value> {
        self.api.list(path).unwrap_or_default()
    }

    /// Writes a status, unless the object has it or is another by now.
    fn tell(&self, path: &str, object: &Value, status: &Value) {
        let mut wanted = object["status"].clone();
        if !wanted.is_object() {
            wanted = json!({});
        }
        for (key, value) in status.as_object().unwrap() {
            wanted[key] = value.clone();
        }
        if wanted != object["status"] {
            let version = &object["metadata"]["resourceVersion"];
            let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
            let _ = self.api.patch(
                &format!("{path}/{}/status", name(object)),
                PatchKind::Merge,
                &patch,
            );
        }
    }

    fn image_id(&self, image: &str) -> String {
        let digests = self.shared.digests.lock().unwrap();
        let made = || format!("sha256:{:064x}", number(image));
        let digest = digests.get(image).cloned().unwrap_or_else(made);
        format!("{}@{digest}", image.split(':').next().unwrap())
    }

    /// Ends containers of which the specification has changed, and starts others. Images called
    /// `bad` cannot be pulled, nor `absent-on-n2` on the Node `n2`; those called `crash` end.
    fn kubelet(&mut self, pod: &Value) {
        let path = format!("{PODS}/{}", name(pod));
        if is_going(pod) {
            let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid(pod)}});
            let _ = self.api.delete(&path, &options);
            return;
        }
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let had = pod["status"]["containerStatuses"].as_array();
        let had = had.cloned().unwrap_or_default();
        let mut told = Vec::new();
        let mut infeasible = false;
        for spec in pod["spec"]["containers"].as_array().unwrap() {
            let image = spec["image"].as_str().unwrap();
            let before = had.iter().find(|one| one["name"] == spec["name"]);
            let mut status = before.cloned().unwrap_or_else(|| {
                json!({"name": spec["name"], "image": "", "imageID": "", "ready": false, "restartCount": 0})
            });
            let key = (uid(pod).to_owned(), spec["name"].to_string());
            let is_missing =
                image.contains("bad") || (node == "n2" && image.contains("absent-on-n2"));
            if status["image"] != image {
                let ended = *self.restarts.entry(key.clone()).or_insert_with(Instant::now);
                status["ready"] = json!(false);
                if is_missing {
                    status["state"] = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
                } else if before.is_some() && ended.elapsed() < RESTART {
                    status["state"] = json!({"waiting": {"reason": "ContainerCreating"}});
                } else {
                    self.restarts.remove(&key);
                    let count = status["restartCount"].as_u64().unwrap();
                    let count = if before.is_some() { count + 1 } else { 0 };
                    status["restartCount"] = json!(count);
                    status["image"] = json!(image);
                    status["imageID"] = json!(self.image_id(image));
                    let id = number(&format!("{key:?} {count}"));
                    status["containerID"] = json!(format!("containerd://{id:016x}"));
                    let crashes = image.contains("crash");
                    status["ready"] = json!(!crashes);
                    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
                    status["state"] = if crashes {
                        json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}})
                    } else {
                        json!({"running": {"startedAt": now.to_string()}})
                    };
                }
            } else {
                // The former image is wanted again.
                if self.restarts.remove(&key).is_some() {
                    status["image"] = json!("");
                }
            }
            if let Some(resources) = spec["resources"].as_object().filter(|one| !one.is_empty()) {
                if resources.get("requests").is_some_and(|one| one["cpu"] == "999") {
                    infeasible = true;
                } else {
                    status["resources"] = json!(resources);
                }
            }
            told.push(status);
        }
        let ready = told.iter().all(|one| one["ready"] == true);
        let mut conditions: Vec<Value> =
            pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let gates = pod["spec"]["readinessGates"].as_array();
        let open = gates.is_none_or(|gates| {
            gates.iter().all(|gate| {
                let mut all = conditions.iter();
                all.any(|one| one["type"] == gate["conditionType"] && one["status"] == "True")
            })
        });
        let word = |is: bool| if is { "True" } else { "False" };
        conditions.retain(|one| {
            let of = one["type"].as_str();
            !matches!(of, Some("Ready" | "ContainersReady" | "PodResizePending"))
        });
        conditions.push(json!({"type": "ContainersReady", "status": word(ready)}));
        conditions.push(json!({"type": "Ready", "status": word(ready && open)}));
        if infeasible {
            conditions
                .push(json!({"type": "PodResizePending", "status": "True", "reason": "Infeasible",
                "message": "Node didn't have enough capacity: cpu"}));
        }
        conditions.sort_by_key(|one| one["type"].to_string());
        let status = json!({
            "phase": "Running",
            "observedGeneration": pod["metadata"]["generation"],
            "conditions": conditions,
            "containerStatuses": told,
        });
        self.tell(PODS, pod, &status);
    }

    /// The oldest ReplicaSet of the same template is its own. Without one, and not paused, it
    /// begins a rollout: all Pods are made anew.
    fn deployment(&self, deployment: &Value, sets: &[Value], pods: &[Value]) {
        let mut own: Vec<&Value> = sets.iter().filter(|set| is_owned(set, deployment)).collect();
        own.sort_by_key(|set| {
            let meta = &set["metadata"];
            (meta["creationTimestamp"].to_string(), meta["name"].to_string())
        });
        let replicas = &deployment["spec"]["replicas"];
        let current = own.iter().find(|set| bare(set) == bare(deployment));
        let is_active = |set: &&Value| set["spec"]["replicas"] != 0;
        let active = own.iter().copied().find(is_active);
        match (current, active) {
            (None, _) if deployment["spec"]["paused"] != true => {
                self.make_set(deployment);
                return;
            }
            // Another one than that of the template has the Pods: it rolls.
            (Some(current), Some(active))
                if uid(current) != uid(active) && deployment["spec"]["paused"] != true =>
            {
                self.scale(active, &json!(0));
                self.scale(current, replicas);
            }
            (_, Some(active)) => self.scale(active, replicas),
            (Some(current), None) => self.scale(current, replicas),
            (None, None) => {}
        }
        let updated = current.map_or(0, |set| members(pods, set).count());
        let all: usize = own.iter().map(|set| members(pods, set).count()).sum();
        let status = json!({
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": all, "updatedReplicas": updated,
        });
        self.tell(&format!("{APPS}/deployments"), deployment, &status);
    }

    fn scale(&self, set: &Value, replicas: &Value) {
        if set["spec"]["replicas"] != *replicas {
            let patch = json!({"spec": {"replicas": replicas}});
            let path = format!("{APPS}/replicasets/{}", name(set));
            let _ = self.api.patch(&path, PatchKind::Merge, &patch);
        }
    }

    fn make_set(&self, deployment: &Value) {
        let hash = hash(&bare(deployment));
        let mut spec = json!({
            "replicas": 0,
            "selector": deployment["spec"]["selector"],
            "template": deployment["spec"]["template"],
        });
        spec["selector"]["matchLabels"]["pod-template-hash"] = json!(hash);
        spec["template"]["metadata"]["labels"]["pod-template-hash"] = json!(hash);
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": format!("{}-{hash}", name(deployment)), "namespace": "shop",
                "ownerReferences": owner("Deployment", deployment),
                "labels": spec["template"]["metadata"]["labels"],
            },
            "spec": spec,
        });
        let _ = self.api.create(&format!("{APPS}/replicasets"), &set);
    }

    fn replica_set(&self, set: &Value, pods: &[Value]) {
        let wanted = set["spec"]["replicas"].as_u64().unwrap_or(1);
        let own: Vec<&Value> = members(pods, set).collect();
        let count = own.len() as u64;
        for pod in own.iter().skip(wanted as usize) {
            let _ = self.api.delete(&format!("{PODS}/{}", name(pod)), &Value::Null);
        }
        if count < wanted {
            let number = (0..).find(|number| {
                let name = format!("{}-{number}", name(set));
                !pods.iter().any(|pod| pod["metadata"]["name"] == name.as_str())
            });
            self.make_pod("ReplicaSet", set, number.unwrap(), &json!({}));
        }
        let status = json!({
            "observedGeneration": set["metadata"]["generation"], "replicas": count,
        });
        self.tell(&format!("{APPS}/replicasets"), set, &status);
    }

    /// Pods are made with their containers the other way round: nothing may count them.
    fn make_pod(&self, kind: &str, set: &Value, number: usize, labels: &Value) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": set["spec"]["template"]["metadata"],
            "spec": set["spec"]["template"]["spec"],
        });
        pod["metadata"]["name"] = json!(format!("{}-{number}", name(set)));
        pod["metadata"]["namespace"] = json!("shop");
        pod["metadata"]["ownerReferences"] = owner(kind, set);
        for (key, value) in labels.as_object().unwrap() {
            pod["metadata"]["labels"][key] = value.clone();
        }
        pod["spec"]["nodeName"] = json!(format!("n{}", number % 2 + 1));
        pod["spec"]["containers"].as_array_mut().unwrap().reverse();
        let _ = self.api.create(PODS, &pod);
    }

    /// StatefulSets and DaemonSets: a ControllerRevision for each template; Pods without the label of
    /// the newest are made anew, unless partition or strategy holds them back.
    fn with_revisions(&self, kind: &str, plural: &str, set: &Value, pods: &[Value]) {
        let hash = hash(&set["spec"]["template"]);
        let revision = match kind {
            "StatefulSet" => format!("{}-{hash}", name(set)),
            _ => hash.clone(),
        };
        let path = format!("{APPS}/controllerrevisions");
        let own: Vec<Value> = self.list(&path);
        let own = own.iter().filter(|one| is_owned(one, set));
        let newest = own.clone().filter_map(|one| one["revision"].as_u64()).max();
        let object = format!("{}-{hash}", name(set));
        if !own.clone().any(|one| name(one) == object) {
            let made = json!({
                "apiVersion": "apps/v1", "kind": "ControllerRevision",
                "metadata": {"name": object, "namespace": "shop", "labels": {REVISION: revision},
                    "ownerReferences": owner(kind, set)},
                "revision": newest.unwrap_or(0) + 1,
                "data": {"spec": {"template": set["spec"]["template"]}},
            });
            let _ = self.api.create(&path, &made);
        } else if let Some(again) = own.clone().find(|one| name(one) == object)
            && again["revision"].as_u64() < newest
        {
            let patch = json!({"revision": newest.unwrap_or(0) + 1});
            let _ = self.api.patch(&format!("{path}/{object}"), PatchKind::Merge, &patch);
        }
        let members: Vec<&Value> = members(pods, set).collect();
        let is_new = |pod: &&&Value| pod["metadata"]["labels"][REVISION] == revision.as_str();
        let updated = members.iter().filter(is_new).count();
        let strategy = &set["spec"]["updateStrategy"];
        let partition = strategy["rollingUpdate"]["partition"].as_u64().unwrap_or(0);
        let wanted = match kind {
            "StatefulSet" => set["spec"]["replicas"].as_u64().unwrap_or(1),
            _ => 2,
        };
        let held = |pod: &Value| {
            let ordinal = name(pod).rsplit('-').next().unwrap();
            strategy["type"] == "OnDelete" || ordinal.parse::<u64>().unwrap() < partition
        };
        for pod in members.iter().filter(|pod| !is_new(pod) && !held(pod)) {
            let _ = self.api.delete(&format!("{PODS}/{}", name(pod)), &Value::Null);
        }
        for number in 0..wanted as usize {
            let name = format!("{}-{number}", name(set));
            if !pods.iter().any(|pod| pod["metadata"]["name"] == name.as_str()) {
                self.make_pod(kind, set, number, &json!({REVISION: revision}));
            }
        }
        let seen = &set["metadata"]["generation"];
        let status = match kind {
            "StatefulSet" => {
                let former = &set["status"]["currentRevision"];
                let done = updated == members.len() || !former.is_string();
                json!({
                    "observedGeneration": seen, "replicas": members.len(),
                    "updateRevision": revision, "updatedReplicas": updated,
                    "currentRevision": if done { json!(revision) } else { former.clone() },
                })
            }
            _ => json!({
                "observedGeneration": seen, "desiredNumberScheduled": wanted,
                "currentNumberScheduled": members.len(), "numberMisscheduled": 0, "numberReady": members.len(),
                "updatedNumberScheduled": updated,
            }),
        };
        self.tell(&format!("{APPS}/{plural}"), set, &status);
    }
}

fn members<'a>(pods: &'a [Value], set: &'a Value) -> impl Iterator<Item = &'a Value> {
    pods.iter().filter(move |pod| is_owned(pod, set) && !is_going(pod))
}
