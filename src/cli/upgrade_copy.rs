//! The copy of a cluster's state on a control plane: it can be inspected there, and taken over when
//! the controller is lost.

use std::path::PathBuf;

use crate::cli::cluster_options::{data_root, state};
use crate::cli::context::Context;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::cluster::paths::Paths;
use imgctl_cluster::upgrade::mirror::{Copied, copied, directory};
use imgctl_cluster::upgrade::upgrade_store::UpgradeStore;

/// Copy of the state on this machine.
pub(crate) struct Copy {
    /// Directory with the layout of the cluster's directory on a controller.
    pub(crate) directory: PathBuf,
    pub(crate) says: Copied,
}

/// Returns the copy that this machine has as a control plane of `cluster`, or `None`.
pub(crate) fn here(cluster: &str, context: &Context) -> Result<Option<Copy>> {
    // Checked because the name becomes part of a path.
    imgctl_cluster::cluster::name::check(cluster)?;
    let root = data_root(&context.environment)?;
    let directory = PathBuf::from(directory(&Paths::new(&root, cluster)));
    Ok(copied(&directory).map(|says| Copy { directory, says }))
}

/// Fails if this machine has only a copy with an open upgrade: the copy must be taken over first,
/// and the error says how.
pub(crate) fn check_home(cluster: &str, context: &Context) -> Result<()> {
    let state = state(cluster, context)?;
    if state.clusterfile().exists() {
        return Ok(());
    }
    let Some(copy) = here(cluster, context)? else {
        return Ok(());
    };
    let Some(open) = UpgradeStore::of(&copy.directory).open()? else {
        return Ok(());
    };
    let (from, to) = (copy.directory.display(), state.directory().display());
    Err(Error::not_found(format!(
        "this machine has only a copy of upgrade {} of cluster {cluster}, which {} runs (as of {})",
        open.id, copy.says.controller, copy.says.time
    ))
    .hint(format!(
        "go on with it on {}. Only when that machine is lost for good: `mkdir -p -m 700 {to} && cp -a {from}/. {to}/`, then `imgctl upgrade resume --cluster {cluster} --pk KEY`",
        copy.says.controller
    )))
}
