//! What brings a cluster up, changes its members and takes it down: scripts, kubeadm, k3s.
//!
//! A [`Runtime`] answers with [`Action`]s, which a plan shows and the executor does. Order among
//! hosts, parallelism, retries and journal belong to pipeline/.

pub(crate) mod action;
pub(crate) mod certificates;
pub(crate) mod choice;
pub(crate) mod k3s;
pub(crate) mod kubeadm;
pub(crate) mod kubectl;
pub(crate) mod leftovers;
pub(crate) mod load_balancer;
pub(crate) mod node_state;
mod put;
pub(crate) mod registry;
pub(crate) mod script;
pub(crate) mod upgrade;
pub(crate) mod version;
pub(crate) mod wait;

use crate::cluster::host::Host;
use crate::cluster::image::ClusterImage;
use crate::cluster::scene::Scene;
use crate::error::{Error, Result};

pub(crate) use action::{Action, Crew};

/// One way to make hosts a cluster. Every method only says what to do.
pub(crate) trait Runtime: Send + Sync {
    /// `script`, `kubeadm`, `k3s`.
    fn name(&self) -> &'static str;

    /// Can this cluster be made at all? Checks documents, addresses, versions; touches no host.
    fn check(&self, scene: &Scene) -> Result<()>;

    /// On every host before the cluster is there, on new hosts before they join: after its files
    /// are synced and hosts entries, registry and `check` are done (pipeline/ does those).
    fn prepare(&self, scene: &Scene, host: &Host) -> Result<Vec<Action>>;

    /// On the first control plane.
    fn init(&self, scene: &Scene, host: &Host) -> Result<Vec<Action>>;

    /// On each further control plane, one after the other.
    fn join_control_plane(&self, scene: &Scene, host: &Host) -> Result<Vec<Action>>;

    /// On workers, several at once where [`Runtime::workers_in_parallel`].
    fn join_worker(&self, scene: &Scene, host: &Host) -> Result<Vec<Action>>;

    /// On hosts that stay, after control planes came or went: load balancers, endpoints.
    fn settle(&self, scene: &Scene, host: &Host) -> Result<Vec<Action>>;

    /// Exit 0 when the host does its part; after each step that changed it.
    fn health(&self, scene: &Scene, host: &Host) -> Result<Vec<Action>>;

    /// Before `host` is taken out of a cluster that lives on: drain, remove from etcd and API.
    fn leave(&self, scene: &Scene, host: &Host) -> Result<Vec<Action>>;

    /// Takes everything off `host` that this runtime put there; also when it is half made.
    fn reset(&self, scene: &Scene, host: &Host) -> Result<Vec<Action>>;

    /// Names for the hosts file of `host`, besides the registry's: `(address, name)`.
    fn hosts_entries(&self, scene: &Scene, host: &Host) -> Vec<(String, String)> {
        let _ = (scene, host);
        Vec::new()
    }

    /// TCP ports that must be free on `host` before it becomes part of the cluster.
    fn ports(&self, scene: &Scene, host: &Host) -> Vec<u16> {
        let _ = (scene, host);
        Vec::new()
    }

    /// Whether the cluster has a Kubernetes API, in which its state can be kept.
    fn has_api(&self) -> bool {
        false
    }

    fn workers_in_parallel(&self) -> bool {
        true
    }

    /// How hosts get another version; an error where that cannot be.
    fn upgrader(&self) -> Result<&dyn upgrade::Upgrader> {
        Err(Error::usage(format!(
            "clusters of the runtime {} cannot be upgraded",
            self.name()
        )))
    }
}

/// A line that puts a copy of the imgctl binary, which runs the commands of a host, at `target`.
pub(crate) fn own_binary(target: &str) -> action::Line {
    action::Line {
        line: format!(
            "mkdir -p \"$(dirname {target})\" && \
             install -m 0755 /proc/$PPID/exe {target}.new && mv -f {target}.new {target}"
        ),
        again: true,
        ..action::Line::default()
    }
}

/// Reads files out of images in the controller's store, without unpacking them.
pub(crate) trait ImageFiles: Send + Sync {
    /// The file at `path` (relative to the image's root); `None` when there is none.
    fn read(&self, image: &ClusterImage, path: &str) -> Result<Option<Vec<u8>>>;
}
