//! What an operation needs of images, and what a failed one left: both depend on the verb and on what
//! earlier commands recorded. Must not know how operations are planned or carried out.

use std::collections::BTreeSet;

use crate::session::Needed;
use crate::work::Work;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_cluster::cluster::image::ClusterImage;

impl Work<'_> {
    /// Reads images of the cluster, and pulls what is missing of them.
    pub(crate) fn images(&self, names: &[String]) -> Result<Vec<ClusterImage>> {
        let mounts = self.current.iter().flat_map(|current| &current.cluster.status.mounts);
        let installed: BTreeSet<&String> = mounts.map(|mount| &mount.image).collect();
        let read = names.iter().map(|name| {
            let needed = match self.verb.as_str() {
                // Hosts have the files already.
                "rollback" | "renumber" => Needed::FilesRead,
                "run" if installed.contains(name) => Needed::FilesRead,
                _ => self.options.source.needed(),
            };
            self.session.images(std::slice::from_ref(name), self.state.name(), None, needed)
        });
        Ok(read.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Adds to the error of a repeated creation how to begin anew: what an earlier attempt left on
    /// hosts may be why a corrected image fails as well.
    pub(super) fn with_way_out(&self, error: Error) -> Error {
        let is_again = self.current.as_ref().is_some_and(|current| !current.exists());
        let creates = matches!(self.verb.as_str(), "run" | "apply");
        let is_of_host =
            matches!(error.kind(), Kind::CommandFailed | Kind::CheckFailed | Kind::Failed);
        match is_again && creates && is_of_host {
            true => error.hint(format!(
                "if what the earlier attempt left on the hosts is in the way, run `imgctl reset \
                 --cluster {}` before you create the cluster again",
                self.state.name()
            )),
            false => error,
        }
    }
}
