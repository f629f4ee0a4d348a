//! What the timer of a host knows of the cluster: a file that the controller writes, readable by root
//! alone, because the variables of an image's scripts may be secret.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::script::declared_file;
use imgctl_base::error::Result;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::variables::Variables;

/// Name of the file below [`directory`].
pub const FILE: &str = "settings.json";
/// Longest pause between two checks: certificates of a year are due for four months.
const LONGEST: Duration = Duration::from_secs(12 * 3600);
const SHORTEST: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub cluster: String,
    /// `kubeadm`, `k3s`, `script`.
    pub runtime: String,
    /// Directory of the cluster's files on this host.
    pub root: String,
    pub address: String,
    pub control_plane: bool,
    /// Number of this host among those that have a turn of their own, and how many these are.
    pub place: usize,
    pub hosts: usize,
    /// Pause between two checks, in seconds.
    pub interval: u64,
    /// Validity of renewed certificates in seconds; none: that of the ones before.
    pub validity: Option<u64>,
    /// File with the declared certificates.
    pub declared: Option<String>,
    /// Line that succeeds if the whole cluster is well; for clusters without an API.
    pub health: Option<String>,
    /// Directory and variables of the image's lines.
    pub scripts: String,
    pub environment: BTreeMap<String, String>,
}

/// Returns the directory of the timer's files on a host; only root may enter it.
pub fn directory(context: &ClusterContext) -> String {
    format!("{}/certificates", context.paths.root())
}

/// Returns the pause between two checks of certificates with this validity. A third of it is left when a
/// certificate is due: time for two checks, each with a round of slots, and for a host that is not well.
pub(crate) fn interval(validity: Duration) -> Duration {
    (validity / 20).clamp(SHORTEST, LONGEST)
}

impl Settings {
    /// `validity`: of certificates that imgctl signs; `None` if nobody asked for another than the usual.
    pub(crate) fn of(
        context: &ClusterContext,
        host: &Host,
        runtime: &str,
        validity: Option<Duration>,
    ) -> Result<Self> {
        let rootfs = context.rootfs();
        let health = rootfs.and_then(|rootfs| rootfs.label(&["health"]));
        Ok(Self {
            cluster: context.name.clone(),
            runtime: runtime.to_owned(),
            root: context.paths.root(),
            address: host.ip().to_owned(),
            control_plane: host.is_control_plane(),
            place: context
                .hosts
                .iter()
                .position(|other| other.address == host.address)
                .unwrap_or(0),
            hosts: context.hosts.len().max(1),
            interval: interval(validity.unwrap_or(LONGEST * 20)).as_secs(),
            validity: validity.map(|validity| validity.as_secs()),
            declared: declared_file(context)?,
            health: health.filter(|_| runtime == "script").map(|line| format!("bash {line}")),
            scripts: context.paths.scripts(),
            environment: BTreeMap::new(),
        })
    }

    /// Returns the variables of the image's lines on a host, which [`Settings::of`] leaves out: in a
    /// large cluster they are long.
    pub(crate) fn variables(context: &ClusterContext, host: &Host, runtime: &str) -> Variables {
        match runtime {
            "script" => context.environment_on(host, context.rootfs()),
            _ => Variables::default(),
        }
    }

    pub(crate) fn folder(&self) -> String {
        format!("{}/certificates", self.root)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_certificates_are_looked_at_often() {
        assert_eq!(interval(Duration::from_secs(365 * 86_400)), LONGEST);
        assert_eq!(interval(Duration::from_secs(86_400)), Duration::from_secs(4320));
        assert_eq!(interval(Duration::from_secs(600)), SHORTEST);
    }
}
