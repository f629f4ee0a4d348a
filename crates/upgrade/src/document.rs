//! An upgrade as a value: all decisions made before it begins. Stored with the cluster's state
//! while the upgrade is open; `--save-plan` writes the same document.
//!
//! Must not depend on how steps are executed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Digest;
use imgctl_runtime::{setting::Setting, upgrade::Renewal};

pub use imgctl_kube::drain::OnTimeout;

/// Schema version of this document; others are refused.
pub(crate) const SCHEMA: u32 = 1;

/// Start of [`HostBefore::skipped`] for an unreachable host.
pub const CANNOT_BE_REACHED: &str = "it cannot be reached";

/// All decisions of an upgrade.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    pub(crate) schema: u32,
    /// Safe as a file name: `v1.34.9-<8 characters of the digest>`, or the value of `--id`.
    pub id: String,
    pub cluster: String,
    /// `kubeadm`, `k3s`, `script`.
    pub runtime: String,
    pub direction: Direction,
    /// The current release of the cluster.
    pub from: Release,
    /// One release per version on the path; the last is the target.
    pub hops: Vec<Release>,
    pub choices: Choices,
    /// Settings that change instead of the image: `from` and the only hop are the same release. Empty
    /// for an upgrade.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<Setting>,
    /// IDs of control planes in upgrade order.
    pub control_planes: Vec<String>,
    /// IDs of workers that are upgraded alone before all others.
    pub canary: Vec<String>,
    /// IDs of the other workers, grouped into batches.
    pub batches: Vec<Vec<String>>,
    /// Hosts by ID, including skipped ones.
    pub hosts: BTreeMap<String, HostBefore>,
    /// Identity of the cluster, which a resumed upgrade must match.
    pub identity: Identity,
    /// All findings; those of severity `error` that are not skipped prevent the upgrade.
    pub findings: Vec<Finding>,
    /// Information for the operator: what cannot be rolled back, and known hazards of the target.
    pub notes: Vec<String>,
    /// Predicted behaviour of the containers of each host, by host ID; see kube/restart.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub restarts: BTreeMap<String, serde_json::Value>,
}

impl Document {
    /// Returns the hosts in the order in which they are worked on, each with its group: `control
    /// plane`, `canary`, `batch 1`. A rollback begins with the workers.
    pub fn order(&self) -> Vec<(String, &String)> {
        let planes = self.control_planes.iter().map(|id| ("control plane".to_owned(), id));
        let canary = self.canary.iter().map(|id| ("canary".to_owned(), id));
        let batches = self.batches.iter().zip(1..).flat_map(|(batch, number)| {
            batch.iter().map(move |id| (format!("batch {number}"), id))
        });
        let workers = canary.chain(batches);
        match self.direction {
            Direction::Forward => planes.chain(workers).collect(),
            Direction::Back => workers.chain(planes).collect(),
        }
    }

    /// Returns the predicted restarts on a host as JSON, recorded with or without those of its
    /// rollback.
    pub fn prediction(&self, id: &str) -> Option<&serde_json::Value> {
        let value = self.restarts.get(id)?;
        Some(value.get("forward").unwrap_or(value))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Forward,
    /// A rollback: workers before control planes.
    Back,
}

impl Direction {
    /// Returns the command that moves a cluster in this direction.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Forward => "upgrade",
            Self::Back => "rollback",
        }
    }
}

/// A version of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// The rootfs image as in `spec.image`.
    pub image: String,
    /// Manifest digests by OCI architecture of the hosts.
    pub digests: BTreeMap<String, Digest>,
    /// `v1.34.9`, `3.5.1`.
    pub version: String,
    /// Whether workers also move to this version; otherwise they keep theirs until a later hop.
    pub workers: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    #[default]
    InOrder,
    /// Spares join, then the old hosts leave.
    Replace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KubeletSwap {
    #[default]
    Drain,
    InPlace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HopMode {
    /// Several images in sequence, one minor at a time.
    Auto,
    #[default]
    Single,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PauseAfter {
    Stage,
    ControlPlane,
    Canary,
    Batch,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The host stays in its failed state.
    #[default]
    Stop,
    /// The host is rolled back.
    Rollback,
}

/// Value of `--keep-containers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeepContainers {
    /// Nothing: kubelets restart what they restart.
    #[default]
    None,
    /// Hashes in containerd's records are changed while no kubelet runs.
    Rehash,
}

impl KeepContainers {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_default(&self) -> bool {
        *self == Self::None
    }
}

impl OnFailure {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_stop(&self) -> bool {
        *self == Self::Stop
    }
}

/// The operator's options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Choices {
    pub strategy: Strategy,
    /// Host IDs or addresses; if empty, the plan chooses a canary.
    pub canary: Vec<String>,
    pub no_canary: bool,
    /// `10%` or `3`: workers per batch.
    pub batch: String,
    /// `10%` or `1`: maximum number of workers out of service at the same time, including those
    /// that already are.
    pub max_unavailable: String,
    pub kubelet_swap: KubeletSwap,
    pub drain_timeout_seconds: u64,
    pub drain_on_timeout: OnTimeout,
    pub delete_emptydir_data: bool,
    pub force_unmanaged: bool,
    pub hop: HopMode,
    pub pause_after: Option<PauseAfter>,
    pub certificate_renewal: Renewal,
    /// IDs of known and accepted findings.
    pub skip_checks: Vec<String>,
    /// `--no-restart`, `--max-restarts`: a plan with more predicted container restarts is refused.
    pub max_restarts: Option<u64>,
    /// Seconds that a host must stay healthy before the next one is touched.
    pub bake_seconds: u64,
    /// Number of workers that may fail before no further host is started. The default is omitted,
    /// so that plans made by older versions keep their digest.
    #[serde(default, skip_serializing_if = "is_none")]
    pub max_failed: usize,
    /// Action for a failed host; the default is omitted for the same reason.
    #[serde(default, skip_serializing_if = "OnFailure::is_stop")]
    pub on_failure: OnFailure,
    /// Replacement hosts for the replace strategy.
    pub spares: Vec<String>,
    /// Windows in which hosts may begin to change, see [`crate::window::Windows::parse`]; empty
    /// for any time. Omitted then, so that plans made by older versions keep their digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<String>,
    /// A probe Pod runs on each Node before it is opened; its image, empty for one that the rootfs
    /// image names. Omitted if there is none, as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
    /// What keeps containers running whose hash alone would restart them; the default is omitted, as
    /// above.
    #[serde(default, skip_serializing_if = "KeepContainers::is_default")]
    pub keep_containers: KeepContainers,
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
            windows: Vec::new(),
            probe: None,
            keep_containers: KeepContainers::default(),
        }
    }
}

/// A host as observed when the plan was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostBefore {
    pub roles: Vec<String>,
    pub architecture: String,
    /// The host's Kubernetes Node, if it has one.
    pub node: Option<String>,
    pub version: Option<String>,
    /// An administrator had cordoned the Node, so it stays cordoned.
    pub(crate) was_unschedulable: bool,
    /// Why the host is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// UID of the namespace kube-system.
    pub kube_system: Option<String>,
    pub(crate) external_etcd: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    Note,
    Warning,
    Error,
}

/// A finding of a preflight check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The ID for `--skip-check`: lower case and dashes.
    pub check: String,
    pub severity: Severity,
    /// The host, if the finding concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// `--skip-check` names this check.
    #[serde(default)]
    pub skipped: bool,
}

impl Document {
    /// Reports whether settings change, and not the image.
    pub fn is_reconfiguration(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Returns what the operator calls it: `upgrade`, `rollback`, `change of settings`.
    pub fn kind(&self) -> &'static str {
        match self.direction {
            Direction::Forward if self.is_reconfiguration() => "change of settings",
            direction => direction.verb(),
        }
    }

    pub fn target(&self) -> &Release {
        self.hops.last().unwrap_or(&self.from)
    }

    /// Computes a digest over the decisions; the ID, findings, notes and predicted restarts do not
    /// count.
    pub fn digest(&self) -> Result<Digest> {
        let mut decided = self.clone();
        decided.id.clear();
        decided.findings.clear();
        decided.notes.clear();
        decided.restarts.clear();
        let bytes = serde_json::to_vec(&decided).doing(|| "cannot name the plan".to_owned())?;
        Ok(Digest::of(&bytes))
    }

    pub fn blockers(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error && !finding.skipped)
    }

    /// Parses the output of [`Document::to_json`].
    pub fn parse(bytes: &[u8], name: &str) -> Result<Self> {
        let document: Self =
            serde_json::from_slice(bytes).doing(|| format!("{name} is not a plan"))?;
        match document.schema {
            SCHEMA => Ok(document),
            other => Err(Error::bad_content(format!(
                "{name} is a plan with schema {other}; this imgctl reads {SCHEMA}"
            ))
            .hint("create the plan again with this imgctl")),
        }
    }

    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).doing(|| "cannot write the plan".to_owned())
    }
}

/// Joins the first few names and counts the rest.
pub fn few<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
