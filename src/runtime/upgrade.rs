//! How runtimes take hosts from one version of a cluster to another, and back.
//!
//! An [`Upgrader`] only says what to do on one host; order among hosts, drains, hooks, the switch of
//! the rootfs and the journal belong to upgrade/ and pipeline/.

use crate::cluster::host::Host;
use crate::cluster::image::ClusterImage;
use crate::cluster::scene::Scene;
use crate::error::{Error, Result};
use crate::runtime::{Action, version};

/// What a host is in an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The control plane that goes first and changes what belongs to the whole cluster.
    First,
    ControlPlane,
    Worker,
}

/// `--certificate-renewal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Renewal {
    /// Renewed unless they are good for more than ten years (sealos makes such).
    #[default]
    Auto,
    True,
    False,
}

/// One host on its way from one version to another.
#[derive(Clone)]
pub(crate) struct Move<'a> {
    /// The cluster with the image that it leaves.
    pub(crate) from: &'a Scene,
    /// The cluster with the image that it gets.
    pub(crate) to: &'a Scene,
    pub(crate) host: &'a Host,
    /// The directory on the host of the tree of `to`: there before the rootfs is switched to it,
    /// and after.
    pub(crate) tree: String,
    pub(crate) place: Place,
    /// Names the upgrade: file-name safe. Backups lie in [`Move::backup`].
    pub(crate) id: &'a str,
    pub(crate) renewal: Renewal,
    /// The etcd of the cluster is not ours: no member is touched.
    pub(crate) external_etcd: bool,
    /// CoreDNS's Corefile is left as it is where the runtime cannot take it along.
    pub(crate) keeps_corefile: bool,
    /// It goes back to an older version: `to` is where it was before.
    pub(crate) back: bool,
}

impl Move<'_> {
    /// Where the upgrade keeps what a host was, on that host. A way back is named
    /// `<upgrade>-back-<number>`: it finds what that upgrade has kept.
    pub(crate) fn backup(&self) -> String {
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

/// Moves hosts. Every method only says what to do; actions observe first and do nothing where it
/// is done already.
pub(crate) trait Upgrader: Send + Sync {
    /// The version of what a rootfs image holds: label `version`, or what its files say.
    fn version(&self, image: &ClusterImage) -> Result<String>;

    /// Whether control planes may go from one version to the other in one move; the error says why
    /// not and what to do. Pure.
    fn permits(&self, from: &str, to: &str) -> Result<()>;

    /// Whether `image` may follow on the version `from`, as far as the image says so itself: its
    /// label `imgctl.io/upgrade-from`, scripts that it must have. Pure.
    fn accepts(&self, image: &ClusterImage, from: &str) -> Result<()> {
        version::accepts(image, from)
    }

    /// Keeps in [`Move::backup`] what this host is now; the first control plane also what the
    /// cluster is (`snapshot.db` of etcd, verified). Nothing of it changes the host.
    fn backup(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Images that the new version needs, pulled while nothing has changed yet.
    fn pull(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Must hold right before the host is touched: etcd healthy with a margin, and the like.
    fn before(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// The move itself; the rootfs of the host is that of `to` already.
    fn apply(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Must hold before the next host is touched.
    fn gate(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Takes the host into service again, once its gate holds.
    fn back_in_service(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let _ = step;
        Ok(Vec::new())
    }

    /// On each worker before the first control plane is touched: it must be able to do without one.
    fn before_control_planes(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let _ = step;
        Ok(Vec::new())
    }

    /// Takes the host back to what [`Upgrader::backup`] kept; its rootfs is the former one again.
    /// `step` is the move back: `to` is the former version.
    fn restore(&self, step: &Move<'_>) -> Result<Vec<Action>>;

    /// Once per hop when all control planes have moved: add-ons. On the first control plane.
    fn finish(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let _ = step;
        Ok(Vec::new())
    }

    /// Must hold on every control plane before one of them is stopped for a snapshot: what
    /// [`Upgrader::restore_snapshot`] needs is there. Changes nothing.
    fn before_snapshot(&self, step: &Move<'_>, snapshot: &str) -> Result<Vec<Action>> {
        let _ = (step, snapshot);
        Ok(Vec::new())
    }

    /// Takes the whole cluster back to a snapshot, in three phases on all control planes at once:
    /// stop, restore from the file at `snapshot` (on that host), start.
    fn restore_snapshot(&self, step: &Move<'_>, snapshot: &str) -> Result<[Vec<Action>; 3]> {
        let _ = (step, snapshot);
        Err(Error::usage("this runtime cannot go back to a snapshot"))
    }

    /// On every host once the cluster has the data of a snapshot: who watches the API waits for
    /// revisions that are not to come, and starts anew.
    fn after_snapshot(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let _ = step;
        Ok(Vec::new())
    }

    /// Nodes are drained before they are touched.
    fn drains(&self) -> bool {
        true
    }
}
