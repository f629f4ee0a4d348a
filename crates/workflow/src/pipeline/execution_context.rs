//! Execution context of pipelines: agents, a runtime, files to move, the cluster's record.
//!
//! `imgctl-ops` assembles it; the simulation provides its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::hooks::OfMoments;
use crate::pipeline::image_commands::Recording;
use crate::pipeline::step::{BatchWork, Lane, Order, Phase, Plan, Step};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_kube::drain;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ClusterImage;
use imgctl_runtime::certificates::validity::Validity;
use imgctl_runtime::{Action, Runtime, action::HostPool};

/// Puts an image's files on hosts.
pub trait Files: Sync {
    /// Queries `hosts` and returns the files they lack for `context`.
    fn plan(
        &self,
        context: &Arc<ClusterContext>,
        hosts: &[Host],
        pool: &Arc<dyn HostPool + Send>,
        then: Then,
    ) -> Result<FilesPlan>;

    /// Returns the hooks of the cluster's images for the moments of a change; `None` if only hosts have the images.
    fn hooks(&self, _context: &ClusterContext) -> Result<Option<OfMoments>> {
        Ok(Some(OfMoments::default()))
    }
}

/// What happens with new trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Switch,
    /// They are created next to the current ones.
    Keep,
}

pub struct FilesPlan {
    /// Hosts that lack files.
    pub hosts: Vec<HostFiles>,
    /// Hosts that could not be queried.
    pub failed: Vec<(Host, Error)>,
    /// IDs of all trees that hosts should have, keyed by host ID and tree name.
    pub trees: BTreeMap<String, BTreeMap<String, String>>,
    /// IDs of hosts whose rootfs would be switched away from the tree of another rootfs image.
    pub leave_rootfs: BTreeSet<String>,
    /// Work that moves the files.
    pub work: Arc<dyn BatchWork>,
}

impl FilesPlan {
    /// Returns the phase that brings the files to all hosts at once.
    pub fn phase(self, name: &str) -> Phase {
        let mut phase = Phase::new(name, Order::Parallel);
        phase.together = Some(self.work);
        for files in self.hosts {
            let step = Step::together("files", files.says, files.bytes);
            phase = phase.lane(Lane::on(&files.host, [step]));
        }
        phase
    }
}

/// Files that one host lacks.
pub struct HostFiles {
    pub host: Host,
    pub says: Vec<String>,
    pub bytes: u64,
}

/// A state to write to the cluster's record.
#[derive(Clone, Debug, PartialEq)]
pub enum PhaseUpdate {
    InProcess,
    /// The change has succeeded: the current state is the desired state.
    Success,
    /// These applications were installed, or failed to install.
    Commands {
        images: Vec<String>,
        failed: Option<String>,
    },
    Failed(String),
    /// The cluster no longer exists.
    Gone,
}

/// Stores the Clusterfile and its related files.
pub trait StateStore: Send + Sync {
    fn mark(&self, mark: &PhaseUpdate) -> Result<()>;

    /// Returns the files that control planes keep a copy of, without passwords and private keys.
    /// Paths are relative to the copy's directory.
    fn copies(&self) -> Result<Vec<FileToWrite>>;

    /// Returns the Clusterfile with its variables, for files that only root can read.
    fn whole(&self) -> Result<String> {
        self.clusterfile()
    }

    /// Returns the Clusterfile for the cluster's own Secret.
    fn clusterfile(&self) -> Result<String>;
}

/// Actions of a component other than the runtime.
pub(crate) type Actions<'a> =
    dyn Fn(&ClusterContext, &Host) -> Result<Vec<Action>> + Send + Sync + 'a;

/// The commands of an application as a phase, which record what they send if they are told where.
pub type Commands<'a> = dyn Fn(Option<&Recording>) -> Phase + 'a;

/// The objects of applications in a cluster that has an API.
pub trait Applications: Sync {
    /// Adds the commands of an application, and what records the objects that they send; `prunes`: and
    /// what removes those that only former versions have.
    fn install(
        &self,
        context: &ClusterContext,
        image: &ClusterImage,
        commands: &Commands<'_>,
        prunes: bool,
        plan: &mut Plan,
    ) -> Result<()>;

    /// Adds what removes objects that only former versions of an installed application have.
    fn prune(&self, context: &ClusterContext, image: &ClusterImage, plan: &mut Plan) -> Result<()>;

    /// Returns what removes an application from `host`, which ran its commands, and its objects if the
    /// image has no command of its own for that.
    fn uninstall(
        &self,
        context: &ClusterContext,
        image: &ClusterImage,
        host: &Host,
        plan: &mut Plan,
    ) -> Result<Vec<Action>>;
}

pub struct ExecutionContext<'a> {
    pub pool: Arc<dyn HostPool + Send>,
    pub runtime: &'a dyn Runtime,
    pub files: &'a dyn Files,
    /// `None` if the cluster has no API.
    pub applications: Option<&'a dyn Applications>,
    /// Starts the embedded registry on a registry host.
    pub registry: &'a Actions<'a>,
    /// Removes the embedded registry from a registry host.
    pub clean_registry: &'a Actions<'a>,
    pub state_store: Arc<dyn StateStore>,
    /// Validity of the certificates that imgctl makes.
    pub validity: Validity,
    /// Maximum number of hosts queried at once.
    pub parallel: usize,
    /// Keep a copy of the cluster's record on the control planes (`SEALOS_SYNC_WORKDIR`).
    pub copy_state: bool,
    /// How the Pods of hosts that leave are evicted.
    pub draining: drain::Options,
    /// `--force` turns these errors into warnings: hosts of other clusters, and hosts that do not
    /// answer.
    pub force: bool,
}
