//! This machine, as a controller of clusters: what a front end knows about it.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// This machine.
#[derive(Clone, Debug, Default)]
pub struct Controller {
    /// Directory of the clusters' state; `None` if it is not known.
    pub state_root: Option<PathBuf>,
    /// Directory of clusters' data on their hosts.
    pub data_root: String,
    /// Directory that `~` in a Clusterfile means.
    pub home: Option<PathBuf>,
    /// Variables that a Clusterfile may refer to.
    pub variables: BTreeMap<String, String>,
    /// Agent binary to install on hosts instead of this program, and directory of agent binaries
    /// for other architectures.
    pub agent: Option<PathBuf>,
    pub agent_directory: Option<PathBuf>,
    /// Who runs this program, for other controllers to read.
    pub user: Option<String>,
    /// Whether control planes get a copy of the state.
    pub copy_state: bool,
    /// Whether records must survive power loss.
    pub sync: bool,
}
