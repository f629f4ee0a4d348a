//! What pipelines work with: agents, a runtime, files to move, the cluster's record.
//!
//! `cli/` puts it together; the simulation brings its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::agent::protocol::FileToWrite;
use crate::cluster::host::Host;
use crate::cluster::scene::Scene;
use crate::error::{Error, Result};
use crate::pipeline::step::Together;
use crate::runtime::action::Crew;
use crate::runtime::{Action, Runtime};

/// Puts an image's files on hosts.
pub(crate) trait Files: Sync {
    /// Asks `hosts` what they have, and says what they lack of what `scene` wants on them.
    fn plan(
        &self,
        scene: &Arc<Scene>,
        hosts: &[Host],
        crew: &Arc<dyn Crew + Send>,
    ) -> Result<FilesPlan>;

    /// The same with trees that are only made beside the current ones.
    fn stage(
        &self,
        scene: &Arc<Scene>,
        hosts: &[Host],
        crew: &Arc<dyn Crew + Send>,
    ) -> Result<FilesPlan>;
}

/// What is to be moved.
pub(crate) struct FilesPlan {
    /// Hosts that lack something.
    pub(crate) hosts: Vec<HostFiles>,
    /// Hosts that could not be asked.
    pub(crate) failed: Vec<(Host, Error)>,
    /// The ids of all trees that hosts are to have: by host id and name of the tree.
    pub(crate) trees: BTreeMap<String, BTreeMap<String, String>>,
    /// Ids of hosts whose rootfs would be switched away from the tree of another rootfs image.
    pub(crate) leave_rootfs: BTreeSet<String>,
    /// Moves it.
    pub(crate) work: Arc<dyn Together>,
}

/// What one host lacks.
pub(crate) struct HostFiles {
    pub(crate) host: Host,
    pub(crate) says: Vec<String>,
    pub(crate) bytes: u64,
}

/// What the record of a cluster is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mark {
    /// Something is being done to it.
    InProcess,
    /// All of it was done: the desired state is the current one.
    Success,
    /// These applications were installed, or not.
    Commands {
        images: Vec<String>,
        failed: Option<String>,
    },
    /// It could not be done.
    Failed(String),
    /// It is no more.
    Gone,
}

/// Keeps the Clusterfile and what belongs to it.
pub(crate) trait Keeper: Send + Sync {
    /// Writes down how far the cluster is.
    fn mark(&self, mark: &Mark) -> Result<()>;

    /// What control planes keep a copy of, without passwords and private keys: paths relative to
    /// the copy's directory.
    fn copies(&self) -> Result<Vec<FileToWrite>>;

    /// The Clusterfile for the cluster's own Secret.
    fn clusterfile(&self) -> Result<String>;
}

/// Actions of something that is no runtime.
pub(crate) type Actions<'a> = dyn Fn(&Scene, &Host) -> Result<Vec<Action>> + Send + Sync + 'a;

/// All of it.
pub(crate) struct Means<'a> {
    pub(crate) crew: Arc<dyn Crew + Send>,
    pub(crate) runtime: &'a dyn Runtime,
    pub(crate) files: &'a dyn Files,
    /// Starts the embedded registry on a registry host.
    pub(crate) registry: &'a Actions<'a>,
    /// Takes it down.
    pub(crate) clean_registry: &'a Actions<'a>,
    pub(crate) keeper: Arc<dyn Keeper>,
    /// Hosts asked at once.
    pub(crate) parallel: usize,
    /// Keep a copy of the cluster's record on the control planes (`SEALOS_SYNC_WORKDIR`).
    pub(crate) copy_state: bool,
    /// What is only a warning with `--force`: foreign clusters, hosts that do not answer.
    pub(crate) force: bool,
}
