//! The containers of a host, read from the output of `crictl inspect`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hash::{ANNOTATION, ANNOTATION_WITHOUT_RESOURCES};
use imgctl_base::error::{Error, Result};

/// A container that a kubelet started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningContainer {
    pub namespace: String,
    pub pod: String,
    /// The pod's uid as the kubelet has it; for a static pod, this is not the uid of its mirror.
    pub uid: String,
    pub container: String,
    /// The id in the container runtime.
    pub id: String,
    /// Whether the container was running when it was inspected.
    pub running: bool,
    pub hash_annotation: Option<String>,
    pub hash_without_resources: Option<String>,
    /// Whether the uid is one that a kubelet derives from a manifest.
    pub is_static: bool,
}

#[derive(Deserialize)]
struct Inspection {
    status: Status,
}

#[derive(Deserialize)]
struct Status {
    id: String,
    state: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// Reads the output of `crictl inspect`, one value per container. Skips containers that no kubelet
/// started. Fails with [`imgctl_base::error::Kind::BadContent`] if a value has another format.
pub fn running(inspect: &[Value]) -> Result<Vec<RunningContainer>> {
    let mut found = Vec::new();
    for value in inspect {
        let Inspection { status } = Inspection::deserialize(value).map_err(|error| {
            Error::bad_content("cannot parse the output of crictl on a container").caused_by(error)
        })?;
        let mut labels = status.labels.unwrap_or_default();
        let mut annotations = status.annotations.unwrap_or_default();
        let mut label = |name: &str| labels.remove(name);
        let (Some(uid), Some(container)) =
            (label("io.kubernetes.pod.uid"), label("io.kubernetes.container.name"))
        else {
            continue;
        };
        found.push(RunningContainer {
            namespace: label("io.kubernetes.pod.namespace").unwrap_or_default(),
            pod: label("io.kubernetes.pod.name").unwrap_or_default(),
            is_static: made_of_a_manifest(&uid),
            uid,
            container,
            id: status.id,
            running: status.state == "CONTAINER_RUNNING",
            hash_annotation: annotations.remove(ANNOTATION),
            hash_without_resources: annotations.remove(ANNOTATION_WITHOUT_RESOURCES),
        });
    }
    Ok(found)
}

/// Returns whether a kubelet computed this uid from a manifest: a 128-bit hash without the dashes
/// of the API server's uids.
pub(super) fn made_of_a_manifest(uid: &str) -> bool {
    uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit())
}
