//! Pulls images on Nodes that are not hosts of the cluster: a short-lived Pod on the Node makes its
//! kubelet pull the image, with the pull secrets of the Pod that needs it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::inplace::object::{self, Pod, pod_path};
use crate::inplace::plan::PodPlan;
use crate::inplace::pre_pull::Puller;
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::Digest;
use imgctl_kube::api::Api;

/// Timeout for a pull.
const TIMEOUT: Duration = Duration::from_secs(1800);
const NAME: &str = "pull";
/// Reasons why a container does not start although its image is present.
const PULLED: [&str; 4] =
    ["CreateContainerError", "CreateContainerConfigError", "RunContainerError", "CrashLoopBackOff"];

pub struct JobPuller<'a> {
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
            .map_err(Error::from)
            .context(|| format!("cannot create Pod {}/{name}", pod.namespace))?;
        let pulled = self.wait(&path, image);
        self.remove(&path);
        pulled
    }
}

impl JobPuller<'_> {
    fn wait(&self, path: &str, image: &str) -> Result<Vec<String>> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let value = self
                .api
                .get(path)
                .map_err(Error::from)
                .context(|| format!("the Pod that pulls {image} is gone"))?;
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
                    TIMEOUT.as_secs()
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
