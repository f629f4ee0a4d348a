//! The images of an operation: what it needs of them depends on the operation and on what the cluster has already.
//! Must not know how images are pulled.

use std::collections::BTreeSet;

use crate::session::Needed;
use crate::work::{Prepared, Work};
use imgctl_base::error::Result;
use imgctl_model::{
    clusterfile::Clusterfile,
    context::{Host, REGISTRY},
    image::ClusterImage,
};

impl Work<'_> {
    /// Prepares a cluster from which hosts leave. That needs no files of its images: if the store lacks
    /// them and they cannot be pulled, the images are used as they were recorded.
    pub(crate) fn prepare_removal(&self, desired: Clusterfile) -> Result<Prepared> {
        let error = match self.prepare(desired.clone()) {
            Err(error) if self.lacks_images(&desired)? => error,
            prepared => return prepared,
        };
        let mut prepared = self.recorded(desired)?;
        let serve = |host: &Host| host.has_role(REGISTRY);
        // Another host has to serve the registry then, with the images' content.
        if prepared.context.leaving.iter().any(serve) {
            return Err(error);
        }
        let note = format!("{}; hosts that stay keep their files as they are", error.message());
        self.session.front.note(&note);
        prepared.keeps_files = true;
        Ok(prepared)
    }

    fn lacks_images(&self, desired: &Clusterfile) -> Result<bool> {
        let store = self.session.store()?;
        let lacks = |name: &String| store.resolve(name).map_or(true, |it| it.has_remote_layers());
        Ok(desired.cluster.images.iter().any(lacks))
    }

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
