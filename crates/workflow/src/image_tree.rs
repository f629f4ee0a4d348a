//! The merged files of a cluster's rootfs and patch images, as listed by their layers.

use std::sync::Arc;

use imgctl_base::error::{Context, Result};
use imgctl_base::image::Digest;
use imgctl_layer::{Toc, Tree};
use imgctl_model::{context::ClusterContext, image::ImageKind};
use imgctl_store::store::Store;

/// A layer of the merged tree; found entries name it by its index.
pub struct Layer {
    pub blob: Digest,
    pub toc: Arc<Toc>,
}

/// Merges the layers of all images of `context` but applications and registry layers. `what` is what
/// the caller looks for, for errors.
///
/// # Errors
/// If a layer is not in the store.
pub fn of(context: &ClusterContext, store: &Store, what: &str) -> Result<(Tree, Vec<Layer>)> {
    let (mut tree, mut layers) = (Tree::new(), Vec::new());
    let images = context.images.iter();
    for image in images.filter(|image| image.kind != ImageKind::Application) {
        for layer in image.layers.iter().filter(|layer| !layer.registry) {
            let toc = store
                .toc(&layer.descriptor.digest, &layer.diff_id)
                .context(|| format!("cannot list the {what} of image {}", image.name))?;
            let toc = Arc::new(toc);
            tree.apply(Arc::clone(&toc))?;
            layers.push(Layer { blob: layer.descriptor.digest.clone(), toc });
        }
    }
    Ok((tree, layers))
}
