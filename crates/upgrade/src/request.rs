//! The input of a plan.

use std::collections::BTreeMap;

use crate::document::{Choices, Direction, Release};
use imgctl_base::error::Result;
use imgctl_base::image::{Digest, EMBEDDED_IMAGES};
use imgctl_model::image::ClusterImage;
use imgctl_runtime::{setting::Setting, version::minor};

/// A current or target rootfs image of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// As in `spec.image`.
    pub name: String,
    /// The version it contains, see [`imgctl_runtime::upgrade::Upgrader::version`].
    pub version: String,
    /// By architecture of the hosts; architectures that the image lacks are missing.
    pub images: BTreeMap<String, ClusterImage>,
    /// Its patches for kubeadm's static Pods, see [`crate::image_tree::patches_of`].
    pub patches: Option<BTreeMap<String, String>>,
}

pub struct Request<'a> {
    pub cluster: &'a str,
    /// `kubeadm`, `k3s`, `script`.
    pub runtime: &'a str,
    /// The cluster's current image.
    pub from: Target,
    /// One image per version on the path, in order.
    pub targets: Vec<Target>,
    pub choices: Choices,
    pub direction: Direction,
    pub id: Option<String>,
    /// `--scope`: IDs of the hosts to upgrade; empty for all.
    pub only: Vec<String>,
    /// Roll back to an etcd snapshot, including its data.
    pub to_snapshot: bool,
    /// Settings that change instead of the image; see [`crate::document::Document::settings`].
    pub settings: Vec<Setting>,
    /// Settings of images (`settings.schema.json`) that the cluster has and an image of the path does not accept.
    pub refused: Vec<RefusedSetting>,
    /// Checks whether control planes may move from one version to another in a single step.
    pub permits: &'a dyn Fn(&str, &str) -> Result<()>,
}

/// A setting whose value in the cluster an image does not accept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusedSetting {
    /// Name of the image.
    pub image: String,
    /// The setting's name, a colon and the reason.
    pub what: String,
}

/// The runtime for clusters without a Kubernetes known to imgctl.
pub const SCRIPT: &str = "script";

impl Target {
    /// Digests of the image's manifests.
    pub fn digests(&self) -> BTreeMap<String, Digest> {
        self.images
            .iter()
            .map(|(architecture, image)| (architecture.clone(), image.digest.clone()))
            .collect()
    }

    /// The image as a document names it.
    pub fn release(&self) -> Release {
        Release {
            image: self.name.clone(),
            digests: self.digests(),
            version: self.version.clone(),
            workers: true,
        }
    }

    /// Returns a label; it is the same for all architectures.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.images.values().find_map(|image| image.label(&[name]))
    }

    /// The etcd release in the image: from its label, or otherwise from the embedded etcd image.
    /// `None` if neither exists.
    pub fn etcd(&self) -> Option<String> {
        if let Some(declared) = self.label("imgctl.io/etcd-version") {
            return etcd_release(&format!("etcd:{declared}"));
        }
        let list = self.label(EMBEDDED_IMAGES)?;
        let images: BTreeMap<String, String> = serde_json::from_str(list).ok()?;
        images.keys().find_map(|image| etcd_release(image))
    }
}

/// The release in the tag of an etcd image, without the image's build number: `3.6.5` for
/// `registry.k8s.io/etcd:3.6.5-0`.
pub(crate) fn etcd_release(image: &str) -> Option<String> {
    let name = image.split('@').next()?;
    let (repository, tag) = name.rsplit_once(':')?;
    if repository.rsplit('/').next() != Some("etcd") {
        return None;
    }
    let release = tag.strip_prefix('v').unwrap_or(tag);
    let release = match release.rsplit_once('-') {
        Some((release, build)) if build.bytes().all(|byte| byte.is_ascii_digit()) => release,
        _ => release,
    };
    minor(release).map(|_| release.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::target;

    #[test]
    fn the_etcd_of_an_image_is_the_one_that_is_embedded_in_it() {
        let release = |image: &str| etcd_release(image);
        assert_eq!(release("registry.k8s.io/etcd:3.6.5-0").as_deref(), Some("3.6.5"));
        assert_eq!(release("10.0.0.1:5000/x/etcd:v3.5.9").as_deref(), Some("3.5.9"));
        assert_eq!(release("10.0.0.1:5000/etcd"), None);
        assert_eq!(release("quay.io/x/etcd-backup:3.5.9"), None);
        let mut image = target("v1.34.1");
        assert_eq!(image.etcd(), None);
        for one in image.images.values_mut() {
            let list = r#"{"registry.k8s.io/coredns/coredns:v1.12.1":"sha256:1","registry.k8s.io/etcd:3.6.5-0":"sha256:2"}"#;
            one.labels.insert(EMBEDDED_IMAGES.into(), list.into());
        }
        assert_eq!(image.etcd().as_deref(), Some("3.6.5"));
        for one in image.images.values_mut() {
            let declared = ("imgctl.io/etcd-version".to_owned(), "3.6.6".to_owned());
            one.labels.extend([declared]);
        }
        assert_eq!(image.etcd().as_deref(), Some("3.6.6"));
    }
}
