//! Annotations on API objects, each with a JSON document. They make changes visible to other tools
//! and allow another controller to continue a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::object::{Meta, Resources};

/// On a Pod: its state before the last change.
pub(super) const STATE: &str = "imgctl.io/inplace-state";
/// On a workload whose template is being updated: the settings to restore afterwards.
pub(crate) const RESTORE: &str = "imgctl.io/inplace-restore";
/// On a workload whose template was intentionally left behind.
pub(crate) const DRIFT: &str = "imgctl.io/inplace-drift";
/// Label that assigns Pods of StatefulSets and DaemonSets to a revision.
pub(crate) const REVISION: &str = "controller-revision-hash";

/// Content of [`STATE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodState {
    pub id: String,
    /// When the Pod was changed.
    pub time: jiff::Timestamp,
    pub containers: BTreeMap<String, Before>,
}

/// A container before the change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Before {
    pub image: String,
    #[serde(rename = "imageID")]
    pub image_id: String,
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    pub(crate) restart_count: u64,
    /// Waiting reason of the container, if any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) waiting: String,
    /// The requested image; admission may have stored a different one.
    pub to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// Content of [`RESTORE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Restore {
    pub id: String,
    /// `spec.paused` of a Deployment.
    #[serde(default)]
    pub paused: bool,
    /// `spec.updateStrategy` of the other kinds.
    #[serde(default)]
    pub(crate) update_strategy: serde_json::Value,
    /// Former images of the template.
    #[serde(default)]
    pub images: BTreeMap<String, String>,
}

/// Content of [`DRIFT`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drift {
    pub id: String,
    pub time: jiff::Timestamp,
    /// Images of the Pods that differ from the template.
    pub images: BTreeMap<String, String>,
}

/// Returns the state of a Pod before the change.
pub(super) fn state(meta: &Meta) -> Option<PodState> {
    serde_json::from_str(meta.annotations.get(STATE)?).ok()
}

/// Returns the settings to restore; an error message if they cannot be read.
pub(crate) fn restore(meta: &Meta) -> Option<Result<Restore, String>> {
    let text = meta.annotations.get(RESTORE)?;
    Some(serde_json::from_str(text).map_err(|error| {
        format!(
            "cannot read its annotation {RESTORE} ({error}): restore its strategy manually and \
             remove the annotation"
        )
    }))
}

pub(super) fn drift(meta: &Meta) -> Option<Drift> {
    serde_json::from_str(meta.annotations.get(DRIFT)?).ok()
}

/// Escapes a map key for a JSON pointer.
pub(crate) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
