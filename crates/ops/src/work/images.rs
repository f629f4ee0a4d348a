//! The images of an operation: what it needs of them depends on the operation and on what the cluster has already.
//! Must not know how images are pulled.

use std::collections::BTreeSet;

use crate::session::Needed;
use crate::work::Work;
use imgctl_base::error::Result;
use imgctl_cluster::cluster::image::ClusterImage;

impl Work<'_> {
    /// Reads images of the cluster, and pulls what is missing of them.
    pub(crate) fn images(&self, names: &[String]) -> Result<Vec<ClusterImage>> {
        let mounts = self.current.iter().flat_map(|current| &current.cluster.status.mounts);
        let installed: BTreeSet<&String> = mounts.map(|mount| &mount.image).collect();
        let read = names.iter().map(|name| {
            let needed = if self.operation.hosts_have(installed.contains(name)) {
                Needed::FilesRead
            } else {
                self.options.source.needed()
            };
            self.session.images(std::slice::from_ref(name), self.state.name(), None, needed)
        });
        Ok(read.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}
