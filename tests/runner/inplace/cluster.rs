//! A small cluster: two Nodes, workloads in the namespace `shop`, and `imgctl inplace` at it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Ran, TestEnv};
use crate::inplace::actors::Actors;
use crate::inplace::kube::api::{Api, PatchKind};
use crate::inplace::kube::client::connect_kubeconfig;
use crate::inplace::kube::testing::real_server::Real;
use crate::inplace::kube::testing::stand_in::StandIn;
use crate::inplace::kube::testing::stand_in::serve::{Served, serve};

const PODS: &str = "/api/v1/namespaces/shop/pods";
const APPS: &str = "/apis/apps/v1/namespaces/shop";
/// Nothing takes longer on the slowest machine.
const LIMIT: Duration = Duration::from_secs(90);
/// A registry that refuses connections: names lead nowhere.
pub(crate) const NOWHERE: &str = "127.0.0.1:9";

enum Server {
    StandIn(StandIn, Served),
    Real(Box<Real>),
}

pub(crate) struct Cluster {
    pub(crate) env: TestEnv,
    pub(crate) api: Arc<dyn Api>,
    pub(crate) actors: Actors,
    server: Server,
}

impl Cluster {
    /// With nothing but Nodes and the namespace.
    pub(crate) fn start() -> Self {
        let (server, api): (Server, Arc<dyn Api>) = match std::env::var_os("KUBEBUILDER_ASSETS") {
            Some(assets) => {
                let real = Real::start_in(&PathBuf::from(assets));
                let api = connect_kubeconfig(&real.path("token.kubeconfig")).unwrap();
                (Server::Real(Box::new(real)), api)
            }
            None => {
                let api = StandIn::new();
                let served = serve(&api);
                (Server::StandIn(api.clone(), served), Arc::new(api))
            }
        };
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        api.create("/api/v1/namespaces", &namespace).unwrap();
        for name in ["n1", "n2"] {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
            api.create("/api/v1/nodes", &node).unwrap();
            let status = json!({"status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "nodeInfo": {"architecture": "amd64", "kubeletVersion": "v1.34.0", "bootID": "", "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": ""},
            }});
            let path = format!("/api/v1/nodes/{name}/status");
            api.patch(&path, PatchKind::Merge, &status).unwrap();
        }
        Self { env: TestEnv::new(), actors: Actors::start(Arc::clone(&api)), api, server }
    }

    /// The API server in memory; `None`: this one is real.
    pub(crate) fn stand_in(&self) -> Option<&StandIn> {
        match &self.server {
            Server::StandIn(api, _) => Some(api),
            Server::Real(_) => None,
        }
    }

    fn kubeconfig(&self) -> PathBuf {
        match &self.server {
            Server::StandIn(_, served) => served.path("token.kubeconfig"),
            Server::Real(real) => real.path("token.kubeconfig"),
        }
    }

    /// A workload `web` of this kind with containers `app` and `side`, when all its Pods are ready.
    pub(crate) fn workload(&self, kind: &str, replicas: usize) {
        let plural = plural(kind);
        let mut spec = json!({
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container("app"), container("side")]},
            },
        });
        match kind {
            "StatefulSet" => {
                spec["serviceName"] = json!("web");
                spec["updateStrategy"] =
                    json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
            }
            "DaemonSet" => {
                spec.as_object_mut().unwrap().shift_remove("replicas");
                spec["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
            }
            _ => {}
        }
        let object = json!({
            "apiVersion": "apps/v1", "kind": kind,
            "metadata": {"name": "web", "namespace": "shop"}, "spec": spec,
        });
        self.api.create(&format!("{APPS}/{plural}"), &object).unwrap();
        self.until("its Pods are ready", || self.ready() == replicas);
        self.until("its controller has seen them", || {
            let status = &self.web(kind)["status"];
            let count = match kind {
                "DaemonSet" => &status["updatedNumberScheduled"],
                _ => &status["updatedReplicas"],
            };
            *count == replicas
        });
    }

    /// Changes the workload `web`.
    pub(crate) fn change_web(&self, kind: &str, patch: &Value) {
        let path = format!("{APPS}/{}/web", plural(kind));
        self.api.patch(&path, PatchKind::Merge, patch).unwrap();
    }

    /// A Pod that nobody manages.
    pub(crate) fn bare_pod(&self, name: &str, spec: &Value) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": "bare"}},
            "spec": {"nodeName": "n1", "containers": [container("app")]},
        });
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        self.api.create(PODS, &pod).unwrap();
        self.until("the Pod is ready", || {
            let pods = self.pods();
            pods.get(name).is_some_and(|pod| pod.ready)
        });
    }

    pub(crate) fn web(&self, kind: &str) -> Value {
        let path = format!("{APPS}/{}/web", plural(kind));
        self.api.get(&path).unwrap()
    }

    /// The image of `app` in the template of `web`.
    pub(crate) fn template(&self, kind: &str) -> String {
        let web = self.web(kind);
        let containers = &web["spec"]["template"]["spec"]["containers"];
        containers[0]["image"].as_str().unwrap().to_owned()
    }

    /// Pods by name, without those on their way out.
    pub(crate) fn pods(&self) -> BTreeMap<String, Seen> {
        let all = self.api.list(PODS).unwrap();
        let alive = all.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        alive.map(seen).collect()
    }

    pub(crate) fn ready(&self) -> usize {
        self.pods().values().filter(|pod| pod.ready).count()
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.api.get(&format!("{PODS}/{name}")).unwrap()
    }

    /// Sets the image of the container `app`, as somebody else would.
    pub(crate) fn set_image(&self, pod: &str, image: &str) {
        let patch = json!({"spec": {"containers": [{"name": "app", "image": image}]}});
        self.api.patch(&format!("{PODS}/{pod}"), PatchKind::Strategic, &patch).unwrap();
    }

    pub(crate) fn delete(&self, pod: &str) {
        self.api.delete(&format!("{PODS}/{pod}"), &Value::Null).unwrap();
    }

    /// Panics unless `done` becomes true in time.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, done: impl Fn() -> bool) {
        let until = Instant::now() + LIMIT;
        while !done() {
            assert!(Instant::now() < until, "not in time: {what}: {:#?}", self.pods());
            std::thread::sleep(Duration::from_millis(40));
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.env.command(["inplace"]);
        command.args(words).arg("--kubeconfig").arg(self.kubeconfig());
        command
    }

    /// Runs `imgctl inplace VERB … --kubeconfig FILE`.
    pub(crate) fn inplace(&self, words: &[&str]) -> Ran {
        Ran::new(self.command(words))
    }

    /// The same on another controller.
    pub(crate) fn elsewhere(&self, words: &[&str]) -> Ran {
        let mut command = self.command(words);
        command.args(["--bake", "0s", "--yes"]).env("HOME", self.env.path("elsewhere"));
        Ran::new(command)
    }

    /// `apply` with short times, and more words.
    pub(crate) fn apply(&self, words: &[&str]) -> Ran {
        let all: Vec<&str> = ["apply", "--json", "--yes"]
            .into_iter()
            .chain(QUICK)
            .chain(words.iter().copied())
            .collect();
        self.inplace(&all)
    }

    /// The same, still running.
    pub(crate) fn begin(&self, words: &[&str]) -> Running {
        let mut command = self.command(&["apply", "--json", "--yes"]);
        let mut child = command
            .args(QUICK)
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines }
    }
}

/// Times that suit actors that are quick.
const QUICK: [&str; 4] = ["--bake", "0s", "--ready-timeout", "20s"];
/// What most tests change.
pub(crate) const WEB: [&str; 2] = ["--workload", "deployment/shop/web"];

/// A Pod as far as tests look at it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) uid: String,
    /// The image of `app` that it is to have.
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) restarts: u64,
    pub(crate) ready: bool,
}

fn seen(pod: &Value) -> (String, Seen) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let find = |list: &Value| -> Value {
        let mut all = list.as_array().into_iter().flatten();
        let app = all.find(|one| one["name"] == "app");
        app.cloned().unwrap_or_default()
    };
    let status = find(&pod["status"]["containerStatuses"]);
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let seen = Seen {
        uid: text(&pod["metadata"]["uid"]),
        image: text(&find(&pod["spec"]["containers"])["image"]),
        image_id: text(&status["imageID"]),
        restarts: status["restartCount"].as_u64().unwrap_or_default(),
        ready: conditions.any(|one| one["type"] == "Ready" && one["status"] == "True"),
    };
    (text(&pod["metadata"]["name"]), seen)
}

pub(crate) fn uids(pods: &BTreeMap<String, Seen>) -> Vec<&str> {
    pods.values().map(|pod| pod.uid.as_str()).collect()
}

/// An image of version `tag` whose registry nobody can ask.
pub(crate) fn image(tag: &str) -> String {
    format!("{NOWHERE}/app:{tag}")
}

pub(crate) fn set(tag: &str) -> String {
    format!("app={}", image(tag))
}

pub(crate) fn container(name: &str) -> Value {
    json!({"name": name, "image": image("1").replace("/app", &format!("/{name}"))})
}

fn plural(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}

/// A run that goes on.
pub(crate) struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Reads on until an event that is `wanted`; panics when the run ends before.
    pub(crate) fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        for line in self.lines.by_ref() {
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if wanted(&event) {
                return event;
            }
        }
        panic!("the run ended before");
    }

    /// Until the `count`th Pod is in this phase.
    pub(crate) fn until_phase(&mut self, phase: &str, count: usize) {
        for _ in 0..count {
            self.until(|event| event["event"] == "pod" && event["phase"] == phase);
        }
    }

    /// With SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Reads to the end; the exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        for line in self.lines.by_ref() {
            line.unwrap();
        }
        self.child.wait().unwrap().code()
    }
}

/// All events that a run wrote.
pub(crate) fn events(ran: &Ran) -> Vec<Value> {
    let text = ran.stdout();
    let lines = text.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}
