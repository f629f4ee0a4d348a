//! Pulls images on Nodes: with `crictl pull` and the container runtime's own registry configuration on
//! hosts of the cluster, by a short-lived Pod elsewhere.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use imgctl_base::error::{Context as _, Error, IoContext, Kind, Result};
use imgctl_base::image::Digest;
use imgctl_base::quote::quote as quoted;
use imgctl_host::agent::{Agent, protocol::Run};
use imgctl_inplace::{
    object,
    object::{Pod, pod_path},
};
use imgctl_inplace::{plan::PodPlan, pre_pull::Puller};
use imgctl_kube::api::Api;
use imgctl_model::context::Host;
use imgctl_runtime::action::HostPool;

/// Timeout for a pull, in seconds.
const TIMEOUT: u64 = 1800;
/// Maximum number of bytes kept of a command's output.
const LONGEST: usize = 1 << 20;

/// Hosts of a cluster. Each is connected when it has to pull, because Pods may move to other Nodes
/// during the run.
pub(crate) struct HostPuller<'a> {
    pub pool: &'a dyn HostPool,
    /// Hosts by the name of their Node.
    pub hosts: BTreeMap<String, &'a Host>,
    /// Directory on hosts for running commands: `<data>/runs`.
    pub runs: String,
}

impl Puller for HostPuller<'_> {
    fn pull(&self, pod: &PodPlan, image: &str, room: u64) -> Result<Vec<String>> {
        let host = self.hosts.get(&pod.node).ok_or_else(|| {
            Error::not_found("this Node is not a host of the cluster")
                .hint("pass --pre-pull job to pull with the Node's kubelet")
        })?;
        let agent = self.pool.agent(host)?;
        let image = quoted(image);
        if room > 0 {
            self.check_room(&*agent, room)?;
        }
        self.run(&*agent, &format!("crictl pull -- {image} >&2"))?;
        let shown = self.run(&*agent, &format!("crictl inspecti -o json -- {image}"))?;
        let shown: Value = serde_json::from_str(&shown)
            .doing(|| format!("{}: crictl did not return JSON", agent.host()))?;
        let status = &shown["status"];
        let names = status["repoDigests"].as_array().into_iter().flatten();
        let mut found: Vec<String> = names
            .chain([&status["id"]])
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect();
        found.dedup();
        Ok(found)
    }
}

impl HostPuller<'_> {
    /// Checks that there is enough free space where the runtime stores images, if it reports that
    /// location.
    fn check_room(&self, agent: &dyn Agent, room: u64) -> Result<()> {
        let line = "place=$(crictl imagefsinfo -o json 2>/dev/null | sed -n 's/.*\"mountpoint\": *\"\\([^\"]*\\)\".*/\\1/p' | head -n 1); \
                    df -B1 --output=avail -- \"${place:-/var/lib}\" | tail -n 1";
        let text = self.run(agent, line)?;
        let Ok(free) = text.trim().parse::<u64>() else {
            return Ok(());
        };
        if free < room {
            Err(Error::new(
                Kind::NoSpace,
                format!(
                    "{}: {free} bytes are free for images, but {room} are needed",
                    agent.host()
                ),
            ))
        } else {
            Ok(())
        }
    }

    fn run(&self, agent: &dyn Agent, line: &str) -> Result<String> {
        let request = Run {
            directory: self.runs.clone(),
            key: format!("inplace-{}", Timestamp::now().as_nanosecond()),
            line: line.to_owned(),
            workdir: None,
            environment: BTreeMap::new(),
            input: None,
            timeout_seconds: Some(TIMEOUT),
            again: true,
        };
        let (mut text, mut last) = (String::new(), String::new());
        let outcome = agent.run(&request, &mut |output| {
            if output.error_stream {
                last = output.text;
            } else if text.len() < LONGEST {
                text.push_str(&output.text);
                text.push('\n');
            }
        })?;
        match outcome.code {
            Some(0) => Ok(text),
            _ => Err(Error::new(
                Kind::CommandFailed,
                format!("{}: `{line}` failed: {last}", agent.host()),
            )),
        }
    }
}

const JOB_TIMEOUT: Duration = Duration::from_secs(1800);
const NAME: &str = "pull";
/// Reasons why a container does not start although its image is present.
const PULLED: [&str; 4] =
    ["CreateContainerError", "CreateContainerConfigError", "RunContainerError", "CrashLoopBackOff"];

pub(crate) struct JobPuller<'a> {
    pub api: &'a dyn Api,
    pub poll: Duration,
}

impl Puller for JobPuller<'_> {
    /// `room` is ignored: the kubelet manages its own disk space.
    fn pull(&self, pod: &PodPlan, image: &str, _room: u64) -> Result<Vec<String>> {
        let digest = Digest::of(format!("{}\n{image}", pod.node).as_bytes());
        let name = format!("imgctl-pull-{}", digest.short());
        let secrets: Vec<_> = pod.pull_secrets.iter().map(|name| json!({"name": name})).collect();
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": pod.namespace,
                "labels": {"app.kubernetes.io/managed-by": "imgctl"},
            },
            "spec": {
                "nodeName": pod.node,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "imagePullSecrets": secrets,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": NAME,
                    "image": image,
                    "imagePullPolicy": "Always",
                    // The image only has to be pulled, not run; an image without this command works
                    // as well.
                    "command": ["/bin/true"],
                    "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
                }],
            },
        });
        let path = pod_path(&pod.namespace, &name);
        // May be left over from an interrupted run.
        self.remove(&path);
        let collection = format!("/api/v1/namespaces/{}/pods", pod.namespace);
        self.api
            .create(&collection, &object)
            .context(|| format!("cannot create Pod {}/{name}", pod.namespace))?;
        let pulled = self.wait(&path, image);
        self.remove(&path);
        pulled
    }
}

impl JobPuller<'_> {
    fn wait(&self, path: &str, image: &str) -> Result<Vec<String>> {
        let until = Instant::now() + JOB_TIMEOUT;
        loop {
            let value =
                self.api.get(path).context(|| format!("the Pod that pulls {image} is gone"))?;
            let pod: Pod = object::read(&value, "Pod")?;
            if let Some(status) = pod.status_of(NAME) {
                let waiting = status.state.waiting.as_ref();
                if let Some(waiting) = waiting
                    && matches!(
                        waiting.reason.as_str(),
                        "ErrImagePull"
                            | "ImagePullBackOff"
                            | "InvalidImageName"
                            | "RegistryUnavailable"
                    )
                {
                    return Err(Error::failed(format!(
                        "cannot pull {image}: {} {}",
                        waiting.reason, waiting.message
                    )));
                }
                let there = waiting.is_some_and(|one| PULLED.contains(&one.reason.as_str()));
                if there || status.state.running.is_some() || status.state.terminated.is_some() {
                    let id = status.image_id.clone();
                    return Ok(if id.is_empty() { Vec::new() } else { vec![id] });
                }
            }
            if pod.status.phase == "Failed" {
                return Err(Error::failed(format!(
                    "cannot pull {image}: the Node rejects the Pod that pulls it"
                )));
            }
            if Instant::now() > until {
                return Err(Error::failed(format!(
                    "{image} was not pulled within {} s",
                    JOB_TIMEOUT.as_secs()
                )));
            }
            std::thread::sleep(self.poll);
        }
    }

    /// Best effort: a leftover Pod only occupies its name.
    fn remove(&self, path: &str) {
        let options = json!({"gracePeriodSeconds": 0});
        if let Err(error) = self.api.delete(path, &options)
            && !error.is_not_found()
        {
            tracing::debug!("{error}");
        }
    }
}
