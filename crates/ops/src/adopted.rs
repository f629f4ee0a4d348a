//! What is special about adopted clusters: they may be without a rootfs image.

use crate::session::{Needed, Session};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_model::clusterfile::{Adopted, Clusterfile, Mount};
use imgctl_model::context::ClusterContext;
use imgctl_model::image::{ClusterImage, ImageKind, check_together};

/// Checks the images of a cluster together. Only an adopted cluster may be without a rootfs image.
pub(crate) fn check_images(cluster: &Clusterfile, images: &[ClusterImage]) -> Result<()> {
    let is_adopted = cluster.cluster.status.adopted.is_some();
    if is_adopted && !images.iter().any(|image| image.kind == ImageKind::Rootfs) {
        return Ok(());
    }
    check_together(images)
}

/// Returns whether a recorded cluster was adopted and has no rootfs image.
pub(crate) fn has_no_image(cluster: &Clusterfile) -> bool {
    let status = &cluster.cluster.status;
    let is_rootfs = |mount: &Mount| {
        mount.kind == ImageKind::Rootfs.as_str() && cluster.cluster.images.contains(&mount.image)
    };
    status.adopted.is_some() && !status.mounts.iter().any(is_rootfs)
}

/// Returns the name of the rootfs image that a cluster without one gets with its new hosts. Fails if
/// there is none, or if it has not the version of the cluster.
pub(crate) fn chosen_image(
    cluster: &Clusterfile,
    image: Option<&String>,
    needed: Needed,
    session: &Session<'_>,
) -> Result<String> {
    let name = &cluster.cluster.name;
    let own = cluster.cluster.status.adopted.as_ref();
    let version = own.map(|own| own.version.as_str()).unwrap_or_default();
    let Some(image) = image else {
        return Err(Error::usage(format!(
            "cluster {name} was adopted: there is no image with the programs for new hosts"
        ))
        .hint(format!("pass --image with a rootfs image of {version}")));
    };
    let images = session.loaded(std::slice::from_ref(image))?;
    let read = session.images(&images, name, None, needed)?;
    match &read[..] {
        [image] if image.kind == ImageKind::Rootfs => {
            own.map_or(Ok(()), |own| same_release(image, &own.image(), name))?;
            Ok(image.name.clone())
        }
        [image] => Err(Error::usage(format!(
            "{} is of type {}: new hosts need a rootfs image",
            image.name,
            image.kind.as_str()
        ))),
        _ => Err(Error::usage(format!("{image} contains several images, not one"))),
    }
}

/// Fails if images bring embedded images to a cluster that has no registry to serve them.
pub(crate) fn no_registry(context: &ClusterContext) -> Result<bool> {
    let brings = |image: &&ClusterImage| image.layers.iter().any(|layer| layer.registry);
    match context.images.iter().find(brings) {
        None => Ok(false),
        Some(image) => Err(Error::usage(format!(
            "cluster {} was adopted and has no registry for the embedded images of {}",
            context.name, image.name
        ))
        .hint(
            "give it a rootfs image first: `imgctl upgrade IMAGE`, or `imgctl add --image IMAGE` \
             with new hosts",
        )),
    }
}

/// Checks the first rootfs image of an adopted cluster: unless the cluster is upgraded, the image has
/// what its hosts run.
pub(crate) fn check_first_image(
    current: Option<&Clusterfile>,
    images: &[ClusterImage],
) -> Result<()> {
    let Some(current) = current.filter(|current| current.exists()) else {
        return Ok(());
    };
    if !has_no_image(current) {
        return check_together(images);
    }
    let own = current.cluster.status.adopted.as_ref().map(Adopted::image);
    let image = images.iter().find(|image| image.kind == ImageKind::Rootfs);
    let (Some(own), Some(image)) = (own, image) else {
        return Ok(());
    };
    same_release(image, &own, &current.cluster.name)
}

fn same_release(image: &ClusterImage, own: &ClusterImage, cluster: &str) -> Result<()> {
    if release(image) == release(own) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{} has {}, and cluster {cluster} is {}",
        image.name,
        release(image),
        release(own)
    ))
    .hint(format!(
        "its first image has the cluster's version; to change the version, run `imgctl upgrade {}`",
        quote(&image.name)
    )))
}

/// Returns `kubernetes v1.34.9`.
fn release(image: &ClusterImage) -> String {
    let distribution = match image.distribution() {
        "" => "kubernetes",
        distribution => distribution,
    };
    let version = image.label(&["version"]).unwrap_or_default();
    format!("{distribution} v{}", version.trim_start_matches('v'))
}
