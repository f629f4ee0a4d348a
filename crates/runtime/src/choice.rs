//! Selects a cluster's runtime from the label `distribution` of its rootfs image.

use crate::{
    ImageFiles, Runtime, certificates::validity::Validity, k3s::K3s, kubeadm::Kubeadm,
    script::Script,
};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::ClusterContext;

/// Returns the runtime of `context`. `validity` applies to certificates that imgctl creates itself.
pub fn of<'a>(
    context: &ClusterContext,
    files: &'a dyn ImageFiles,
    validity: Validity,
) -> Result<Box<dyn Runtime + 'a>> {
    let Some(rootfs) = context.rootfs() else {
        return Err(
            Error::usage(format!("cluster {} has no rootfs image", context.name)).hint(
                "name an image with the label sealos.io.type=rootfs, for example labring/kubernetes:v1.29.9",
            ),
        );
    };
    match rootfs.distribution() {
        "" | "kubernetes" | "kubeadm" => Ok(Box::new(Kubeadm::new(files, validity))),
        "k3s" => Ok(Box::new(K3s::new(files))),
        "script" => Ok(Box::new(Script { validity })),
        other => Err(Error::usage(format!(
            "image {} has the unknown distribution `{other}`",
            rootfs.name
        ))
        .hint("supported distributions are kubernetes, k3s and script")),
    }
}
