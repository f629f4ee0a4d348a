//! How runtimes upgrade hosts from one version of a cluster to another, and roll them back.
//!
//! An [`Upgrader`] only returns the actions of one host; order among hosts, drains, hooks, the
//! switch of the rootfs and the journal belong to upgrade/ and pipeline/.

use crate::setting::Setting;
use crate::{Action, version};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ClusterImage;

/// Name of the action in the place of a backup that an image cannot make.
pub const NO_BACKUP: &str = "no-backup";

/// Role of a host in an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The control plane that is upgraded first and changes cluster-wide objects.
    First,
    ControlPlane,
    Worker,
}

/// Value of `--certificate-renewal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Renewal {
    /// Renewed unless valid for more than ten years (as sealos creates them).
    #[default]
    Auto,
    True,
    False,
}

/// Upgrade of one host from one version to another.
#[derive(Clone)]
pub struct Move<'a> {
    /// Cluster with the image that it is upgraded from.
    pub from: &'a ClusterContext,
    /// Cluster with the image that it is upgraded to.
    pub to: &'a ClusterContext,
    pub host: &'a Host,
    /// Directory on the host with the tree of `to`, both before and after the rootfs is switched to
    /// it.
    pub tree: String,
    pub place: Place,
    /// Identifies the upgrade; safe as a file name. Backups are in [`Move::backup`].
    pub id: &'a str,
    pub renewal: Renewal,
    /// The cluster's etcd is external: no member is changed.
    pub external_etcd: bool,
    /// Keeps CoreDNS's Corefile if the runtime cannot migrate it.
    pub keeps_corefile: bool,
    /// Whether this is a rollback: `to` is the older version that the host had before.
    pub back: bool,
}

impl Move<'_> {
    /// Returns the host's backup directory of this upgrade, on that host. A rollback has the ID
    /// `<upgrade>-back-<number>` and uses the backup of that upgrade.
    pub fn backup(&self) -> String {
        let upgrade = match self.id.rsplit_once("-back-") {
            Some((upgrade, number))
                if self.back && number.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                upgrade
            }
            _ => self.id,
        };
        format!("{}/backup/{upgrade}", self.to.paths.root())
    }
}

/// How the data of a cluster comes to hosts that have only their files.
pub enum Restoration {
    /// All control planes at once: stop, restore, start.
    Together([Vec<Action>; 3]),
    /// The first control plane alone; the others join it.
    First(Vec<Action>),
}

/// Upgrades hosts. Every method only returns actions; an action inspects the host first and does
/// nothing if its work is already done.
pub trait Upgrader: Send + Sync {
    /// Returns the version of a rootfs image's content: its label `version`, or what its files say.
    fn version(&self, image: &ClusterImage) -> Result<String>;

    /// Checks whether control planes can go from one version to the other in one step; the error
    /// explains why not and what to do. Pure.
    fn permits(&self, from: &str, to: &str) -> Result<()>;

    /// Checks whether `image` accepts an upgrade from version `from`, by its own metadata: the
    /// label `imgctl.io/upgrade-from` and the scripts that it must have. Pure.
    fn accepts(&self, image: &ClusterImage, from: &str) -> Result<()> {
        version::accepts(image, from)
    }

    /// Returns the settings that differ between two states of one cluster with the same image and
    /// hosts. Accesses no host.
    ///
    /// # Errors
    /// A usage error that names the settings that cannot change while the cluster runs.
    fn settings(&self, _from: &ClusterContext, _to: &ClusterContext) -> Result<Vec<Setting>> {
        Ok(Vec::new())
    }

    /// Returns what gives hosts other settings and takes them back: `from` and `to` of its steps
    /// differ in settings only.
    fn reconfigurer(&self, _settings: &[Setting]) -> Result<Box<dyn Upgrader + '_>> {
        Err(Error::usage("the settings of clusters of this runtime cannot be changed"))
    }

    /// Saves this host's state in [`Move::backup`]; the first control plane also saves the
    /// cluster's state (`snapshot.db` of etcd, verified). Changes nothing else on the host.
    fn backup(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Saves in [`Move::backup`] what the cluster is restored from on other hosts, on one control
    /// plane: top-level files are parts of the backup, directories one archive. Changes nothing else
    /// on the host.
    fn save(&self, _step: &Move<'_>) -> Result<Vec<Action>> {
        Err(Error::usage("clusters of this runtime cannot be backed up yet"))
    }

    /// Restores a cluster from what [`Upgrader::save`] left, in `folder` of each control plane. The
    /// hosts have their files and container runtime; nothing of the cluster has run on them.
    fn restore_cluster(&self, _step: &Move<'_>, _folder: &str) -> Result<Restoration> {
        Err(Error::usage("clusters of this runtime cannot be restored from a backup yet"))
    }

    /// Pulls the images of the new version before anything is changed.
    fn pull(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Checks that must pass right before the host is changed, such as a healthy etcd with a
    /// margin.
    fn before(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Upgrades the host; its rootfs is already that of `to`.
    fn apply(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Checks that must pass before the next host is changed.
    fn gate(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Returns the host to service after its gate has passed.
    fn back_in_service(&self, _step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    /// Runs on each worker before the first control plane is changed: the worker must be able to
    /// work without one.
    fn before_control_planes(&self, _step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    /// Restores the state that [`Upgrader::backup`] saved; the rootfs is already the previous one.
    /// `step` is the rollback: `to` is the previous version.
    fn restore(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Runs on the first control plane once per hop, after all control planes are upgraded:
    /// add-ons.
    fn finish(&self, _step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    /// Checks that must pass on every control plane before one of them is stopped for a snapshot:
    /// the prerequisites of [`Upgrader::restore_snapshot`]. Changes nothing.
    fn before_snapshot(&self, _step: &Move<'_>, _snapshot: &str) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    /// Restores the whole cluster from a snapshot, in three phases on all control planes at once:
    /// stop, restore from the file at `snapshot` (on that host), start.
    fn restore_snapshot(&self, _step: &Move<'_>, _snapshot: &str) -> Result<[Vec<Action>; 3]> {
        Err(Error::usage("this runtime cannot restore a snapshot"))
    }

    /// Runs on every host after the cluster was restored from a snapshot: restarts clients that
    /// watch the API and wait for revisions that will not arrive.
    fn after_snapshot(&self, _step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    /// Whether Nodes are drained before they are changed.
    fn drains(&self) -> bool {
        true
    }
}
