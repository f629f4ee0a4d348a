//! What we leave on objects of the API, so that everybody can see it and a lost controller is no
//! loss: annotations with a JSON document each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::inplace::object::{Meta, Resources};

/// On a Pod: what it was before the last change.
pub(crate) const STATE: &str = "imgctl.io/inplace-state";
/// On a workload whose template is being brought after: what is to be put back when that is done.
pub(crate) const RESTORE: &str = "imgctl.io/inplace-restore";
/// On a workload whose template was left behind on purpose.
pub(crate) const DRIFT: &str = "imgctl.io/inplace-drift";
/// The label by which StatefulSets and DaemonSets know Pods of a revision.
pub(crate) const REVISION: &str = "controller-revision-hash";

/// [`STATE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodState {
    pub(crate) id: String,
    /// When the Pod was changed.
    pub(crate) time: jiff::Timestamp,
    pub(crate) containers: BTreeMap<String, Before>,
}

/// A container before the change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Before {
    pub(crate) image: String,
    #[serde(rename = "imageID")]
    pub(crate) image_id: String,
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    pub(crate) restart_count: u64,
    /// It waited for this.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) waiting: String,
    /// What was asked for; admission may have stored something else.
    pub(crate) to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resources: Option<Resources>,
}

/// [`RESTORE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Restore {
    pub(crate) id: String,
    /// `spec.paused` of a Deployment.
    #[serde(default)]
    pub(crate) paused: bool,
    /// `spec.updateStrategy` of the others.
    #[serde(default)]
    pub(crate) update_strategy: serde_json::Value,
    /// The template's images before.
    #[serde(default)]
    pub(crate) images: BTreeMap<String, String>,
}

/// [`DRIFT`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drift {
    pub(crate) id: String,
    pub(crate) time: jiff::Timestamp,
    /// Images of the Pods where the template has others.
    pub(crate) images: BTreeMap<String, String>,
}

/// What a Pod was before.
pub(crate) fn state(meta: &Meta) -> Option<PodState> {
    serde_json::from_str(meta.annotations.get(STATE)?).ok()
}

/// What is to be put back; an error in words when it cannot be read.
pub(crate) fn restore(meta: &Meta) -> Option<Result<Restore, String>> {
    let text = meta.annotations.get(RESTORE)?;
    Some(serde_json::from_str(text).map_err(|error| {
        format!("its annotation {RESTORE} cannot be read ({error}): put its strategy back by hand and remove the annotation")
    }))
}

/// What was left behind.
pub(crate) fn drift(meta: &Meta) -> Option<Drift> {
    serde_json::from_str(meta.annotations.get(DRIFT)?).ok()
}

/// A key of a map as JSON pointers write it.
pub(crate) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
