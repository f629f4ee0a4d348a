//! An upgrade as a value: all that is decided before it begins. Kept with the cluster's state while
//! it is open; `--save-plan` writes the same.
//!
//! Must not know how anything is done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::image::Digest;
use crate::runtime::upgrade::Renewal;

/// The form of this document; another one is refused.
pub(crate) const SCHEMA: u32 = 1;

/// Everything that was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    pub(crate) schema: u32,
    /// File-name safe: `v1.34.9-<8 characters of the digest>`, or what `--id` says.
    pub(crate) id: String,
    pub(crate) cluster: String,
    /// `kubeadm`, `k3s`, `script`.
    pub(crate) runtime: String,
    pub(crate) direction: Direction,
    /// What the cluster is now.
    pub(crate) from: Release,
    /// One for each version on the way; the last is the target.
    pub(crate) hops: Vec<Release>,
    pub(crate) choices: Choices,
    /// Ids of control planes in the order in which they go.
    pub(crate) control_planes: Vec<String>,
    /// Ids of workers that go alone before all others.
    pub(crate) canary: Vec<String>,
    /// Ids of the other workers; those of one batch go together.
    pub(crate) batches: Vec<Vec<String>>,
    /// Hosts by id, also those that are left out.
    pub(crate) hosts: BTreeMap<String, HostBefore>,
    /// What a resumed upgrade must find again.
    pub(crate) identity: Identity,
    /// All that was found; those of severity `error` that are not skipped keep it from beginning.
    pub(crate) findings: Vec<Finding>,
    /// Worth knowing before: what cannot be rolled back, which hazards the target has.
    pub(crate) notes: Vec<String>,
    /// What the containers of each host will do, by host id; see kube/restart.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) restarts: BTreeMap<String, serde_json::Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Direction {
    Forward,
    /// A rollback: workers go before control planes.
    Back,
}

/// A version of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Release {
    /// The rootfs image as in `spec.image`.
    pub(crate) image: String,
    /// Manifest digest by OCI architecture of the hosts.
    pub(crate) digests: BTreeMap<String, Digest>,
    /// `v1.34.9`, `3.5.1`.
    pub(crate) version: String,
    /// Workers go to this version, too; else they stay where they are until a later hop.
    pub(crate) workers: bool,
}

/// `--strategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    #[default]
    InOrder,
    /// Spares join, the old hosts leave.
    Replace,
}

/// `--kubelet-swap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KubeletSwap {
    #[default]
    Drain,
    InPlace,
}

/// `--drain-on-timeout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnTimeout {
    /// The Node takes Pods again, the upgrade stops.
    #[default]
    Abort,
    Wait,
    /// Pods are deleted past their PodDisruptionBudgets.
    Delete,
}

/// `--hop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HopMode {
    /// Several images, one minor each, one after the other.
    Auto,
    #[default]
    Single,
}

/// `--pause-after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PauseAfter {
    Stage,
    ControlPlane,
    Canary,
    Batch,
}

/// `--on-failure`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnFailure {
    /// The host stays as it failed.
    #[default]
    Stop,
    /// It goes back to what it was.
    Rollback,
}

impl OnFailure {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_stop(&self) -> bool {
        *self == Self::Stop
    }
}

/// What the operator chose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Choices {
    pub(crate) strategy: Strategy,
    /// Host ids or addresses; empty: the plan chooses one.
    pub(crate) canary: Vec<String>,
    pub(crate) no_canary: bool,
    /// `10%` or `3`: workers per batch.
    pub(crate) batch: String,
    /// `10%` or `1`: workers that may be out of service at once, those that are anyway included.
    pub(crate) max_unavailable: String,
    pub(crate) kubelet_swap: KubeletSwap,
    pub(crate) drain_timeout_seconds: u64,
    pub(crate) drain_on_timeout: OnTimeout,
    pub(crate) delete_emptydir_data: bool,
    pub(crate) force_unmanaged: bool,
    pub(crate) hop: HopMode,
    pub(crate) pause_after: Option<PauseAfter>,
    pub(crate) certificate_renewal: Renewal,
    /// Ids of findings that are known and accepted.
    pub(crate) skip_checks: Vec<String>,
    /// `--no-restart`, `--max-restarts`: more predicted restarts of containers refuse the plan.
    pub(crate) max_restarts: Option<u64>,
    /// Seconds that a host must stay healthy before the next is touched.
    pub(crate) bake_seconds: u64,
    /// Workers that may fail before nothing more is begun. Not written where it is the usual one: plans
    /// that older versions made keep their digest.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) max_failed: usize,
    /// What becomes of a host that fails; not written where it stays, as above.
    #[serde(default, skip_serializing_if = "OnFailure::is_stop")]
    pub(crate) on_failure: OnFailure,
    /// Hosts that take over in the replace strategy.
    pub(crate) spares: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_none(number: &usize) -> bool {
    *number == 0
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            canary: Vec::new(),
            no_canary: false,
            batch: "1".to_owned(),
            max_unavailable: "1".to_owned(),
            kubelet_swap: KubeletSwap::default(),
            drain_timeout_seconds: 600,
            drain_on_timeout: OnTimeout::default(),
            delete_emptydir_data: false,
            force_unmanaged: false,
            hop: HopMode::default(),
            pause_after: None,
            certificate_renewal: Renewal::default(),
            skip_checks: Vec::new(),
            max_restarts: None,
            bake_seconds: 0,
            max_failed: 0,
            on_failure: OnFailure::default(),
            spares: Vec::new(),
        }
    }
}

/// A host as it was when the plan was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostBefore {
    pub(crate) roles: Vec<String>,
    pub(crate) architecture: String,
    /// The Kubernetes Node, where there is one.
    pub(crate) node: Option<String>,
    /// What runs there.
    pub(crate) version: Option<String>,
    /// An administrator had cordoned it: it stays so.
    pub(crate) was_unschedulable: bool,
    /// Why it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
}

/// Which cluster it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    /// UID of the namespace kube-system.
    pub(crate) kube_system: Option<String>,
    pub(crate) external_etcd: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
    Note,
    Warning,
    Error,
}

/// Something that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// For `--skip-check`: lower case and dashes.
    pub(crate) check: String,
    pub(crate) severity: Severity,
    /// The host, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    pub(crate) what: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// `--skip-check` named it.
    #[serde(default)]
    pub(crate) skipped: bool,
}

impl Document {
    /// The release that the cluster is to be.
    pub(crate) fn target(&self) -> &Release {
        self.hops.last().unwrap_or(&self.from)
    }

    /// Names what is decided; findings, notes and the id are no part of it.
    pub(crate) fn digest(&self) -> Result<Digest> {
        let mut decided = self.clone();
        decided.id.clear();
        decided.findings.clear();
        decided.notes.clear();
        decided.restarts.clear();
        let bytes = serde_json::to_vec(&decided)
            .map_err(|error| Error::failed("cannot name the plan").caused_by(error))?;
        Ok(Digest::of(&bytes))
    }

    /// Findings that keep it from beginning.
    pub(crate) fn blockers(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error && !finding.skipped)
    }

    /// Reads what [`Document::to_json`] wrote.
    pub(crate) fn parse(bytes: &[u8], name: &str) -> Result<Self> {
        let document: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::bad_content(format!("{name} is no plan")).caused_by(error))?;
        match document.schema {
            SCHEMA => Ok(document),
            other => Err(Error::bad_content(format!(
                "{name} is a plan of form {other}; this imgctl knows {SCHEMA}"
            ))
            .hint("make the plan anew with this imgctl")),
        }
    }

    /// The document as text.
    pub(crate) fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|error| Error::failed("cannot write the plan").caused_by(error))
    }
}
