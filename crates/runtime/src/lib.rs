//! Creates a cluster, changes its members and removes it: scripts, kubeadm, k3s. Renews the certificates of
//! its hosts.
//!
//! A [`Runtime`] returns [`Action`]s that a plan shows and the executor runs. Order among hosts,
//! parallelism, retries and journal belong to `workflow`.

pub mod action;
pub mod certificates;
pub mod choice;
pub mod control_plane;
pub mod k3s;
pub mod kubeadm;
pub mod kubectl;
pub mod load_balancer;
pub mod nodes;
pub mod registry;
pub mod renewal;
pub mod rotation;
pub mod script;
pub mod setting;
pub mod setting_files;
pub mod shell;
pub mod units;
pub mod upgrade;
pub mod version;
pub mod wait;

use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::Facts;
use imgctl_kube::drain;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ClusterImage;

pub use action::{Action, HostPool};

/// A way to turn hosts into a cluster. Every method only returns the actions.
pub trait Runtime: Send + Sync {
    /// `script`, `kubeadm`, `k3s`.
    fn name(&self) -> &'static str;

    /// Checks whether this cluster can be created: documents, addresses, versions. Accesses no
    /// host.
    fn check(&self, context: &ClusterContext) -> Result<()>;

    /// Runs on every host before the cluster exists, and on new hosts before they join: after their
    /// files are synced and hosts entries, registry and `check` are done (by pipeline/).
    fn prepare(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    /// Runs on the first control plane.
    fn init(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>>;

    /// Runs on each additional control plane, one after the other.
    fn join_control_plane(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>>;

    /// Runs on workers, several at once if [`Runtime::workers_in_parallel`].
    fn join_worker(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>>;

    /// Runs on remaining hosts after control planes were added or removed: load balancers,
    /// endpoints.
    fn settle(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>>;

    /// Succeeds if the host is healthy. Runs after each step that changed the host.
    fn health(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>>;

    /// Runs before `host` is removed from a cluster that continues to run: drain, removal from etcd
    /// and the API. `draining` says how its Pods are evicted.
    fn leave(
        &self,
        context: &ClusterContext,
        host: &Host,
        draining: &drain::Options,
    ) -> Result<Vec<Action>>;

    /// Gives `host`, which was at the address `old`, the address that it has in `context`. The host
    /// has it on an interface already, and perhaps `old` as well. Fails if this runtime or this
    /// image cannot do that.
    fn renumber(&self, _context: &ClusterContext, host: &Host, _old: &str) -> Result<Vec<Action>> {
        Err(Error::usage(format!(
            "hosts of the runtime {} cannot change their addresses",
            self.name()
        ))
        .hint(format!(
            "add the machine under a new name and address with `imgctl add`, and remove {} with \
             `imgctl delete`",
            host.id()
        )))
    }

    /// Runs on every host, the moved one included, after `moved` has changed its address from `old`.
    fn follow(
        &self,
        context: &ClusterContext,
        host: &Host,
        _moved: &Host,
        _old: &str,
    ) -> Result<Vec<Action>> {
        self.settle(context, host)
    }

    /// Removes everything that this runtime created on `host`, even after a partial setup.
    fn reset(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>>;

    /// Returns names for the hosts file of `host`, besides the registry's: `(address, name)`.
    fn hosts_entries(&self, _context: &ClusterContext, _host: &Host) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns other blocks of the hosts file that `host` has as a member, by their names, and the actions
    /// that write them.
    fn hosts_blocks(&self, _context: &ClusterContext, _host: &Host) -> Vec<(String, Action)> {
        Vec::new()
    }

    /// Fails if `host`, which has reported `facts`, cannot be a member of a cluster that is created.
    fn fits(&self, _context: &ClusterContext, _host: &Host, _facts: &Facts) -> Result<()> {
        Ok(())
    }

    /// Returns the TCP ports that must be free on `host` before it joins the cluster.
    fn ports(&self, _context: &ClusterContext, _host: &Host) -> Vec<u16> {
        Vec::new()
    }

    /// Reports whether the cluster has a Kubernetes API that can store its state.
    fn has_api(&self) -> bool {
        false
    }

    fn workers_in_parallel(&self) -> bool {
        true
    }

    /// Returns what rotates authorities; fails if this runtime cannot do that.
    fn rotator(&self) -> Result<&dyn rotation::Rotator> {
        Err(Error::usage(format!(
            "imgctl does not rotate the authorities of clusters of the runtime {}",
            self.name()
        ))
        .hint(
            "k3s does so itself: `k3s certificate rotate-ca` on a server, see docs/certificates.md",
        ))
    }

    /// Returns the upgrader for hosts; fails if upgrades are not supported.
    fn upgrader(&self) -> Result<&dyn upgrade::Upgrader> {
        Err(Error::usage(format!("clusters of the runtime {} cannot be upgraded", self.name())))
    }
}

/// Returns a line that puts the imgctl binary, which runs the commands of a host, at `target`.
pub fn own_binary(target: &str) -> action::Line {
    let script = include_str!("scripts/put-own-binary.sh");
    action::Line::script(&[shell::OWN_BINARY, script]).with([("IMGCTL_BINARY", target)])
}

/// Reads files from images in the controller's store, without unpacking them.
pub trait ImageFiles: Send + Sync {
    /// Returns the file at `path` (relative to the image's root); `None` if there is none.
    fn read(&self, image: &ClusterImage, path: &str) -> Result<Option<Vec<u8>>>;
}
