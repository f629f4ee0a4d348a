//! Execution context of pipelines: agents, a runtime, files to move, the cluster's record.
//!
//! `imgctl-ops` assembles it; the simulation provides its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::context::{ClusterContext, Host};
use crate::pipeline::step::{BatchWork, Lane, Order, Phase, Step};
use crate::runtime::certificates::validity::Validity;
use crate::runtime::{Action, Runtime, action::HostPool};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::FileToWrite;

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
    pub(crate) fn phase(self, name: &str) -> Phase {
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

pub struct ExecutionContext<'a> {
    pub pool: Arc<dyn HostPool + Send>,
    pub runtime: &'a dyn Runtime,
    pub files: &'a dyn Files,
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
    /// `--force` turns these errors into warnings: hosts of other clusters, and hosts that do not
    /// answer.
    pub force: bool,
}
