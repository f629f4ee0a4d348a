//! Builds a [`ClusterContext`] from a Clusterfile and the images that it names.

use std::collections::BTreeMap;

use crate::clusterfile::{Adopted, Clusterfile, Mount, Phase, Surroundings};
use crate::context::{ClusterContext, Paths};
use crate::image::{ClusterImage, DISTRIBUTION_LABELS, ImageKind, TYPE_LABELS};
use crate::state_files::StateFiles;
use crate::variables::SharedCache;
use imgctl_base::{error::Result, image::Digest};

/// Label for the API address that workers use, unless another address is given.
const VIP_LABEL: &str = "vip";

impl ClusterContext {
    /// Returns the cluster that `clusterfile` describes, with `images` in `spec.image` order. The
    /// registry is not set, and no host leaves.
    pub fn new(
        clusterfile: &Clusterfile,
        images: Vec<ClusterImage>,
        data_root: &str,
        state: StateFiles,
        surroundings: &Surroundings<'_>,
    ) -> Result<Self> {
        let cluster = &clusterfile.cluster;
        let mut context = Self {
            name: cluster.name.clone(),
            uid: cluster.uid.clone(),
            hosts: cluster.hosts(surroundings)?,
            leaving: Vec::new(),
            images,
            paths: Paths::new(data_root, &cluster.name),
            state,
            environment: cluster.environment.clone(),
            flag_environment: cluster.status.environment.clone(),
            registry: None,
            vip: None,
            documents: clusterfile.documents.clone(),
            adopted: cluster.status.adopted.as_ref().map(Adopted::image),
            unfinished: None,
            in_process: cluster.status.phase == Some(Phase::InProcess),
            renew_certificates: cluster.renew_certificates,
            share_images: cluster.share_images,
            shared: SharedCache::default(),
        };
        // Workers of an adopted cluster reach the API in their own way.
        if !context.is_adopted() {
            context.vip = context.rendered_label(VIP_LABEL);
        }
        Ok(context)
    }

    /// Returns a label of the rootfs with the cluster's variables substituted; `None` if it is
    /// missing or empty.
    pub(crate) fn rendered_label(&self, name: &str) -> Option<String> {
        let rootfs = self.rootfs()?;
        let mut environment = rootfs.environment.clone();
        for layer in [&self.environment, &self.flag_environment] {
            environment.extend(layer.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        rootfs.rendered_label(name, &environment)
    }
}

impl Adopted {
    /// Returns what is known of the cluster in the form of a rootfs image. It has no files, and no
    /// store has it.
    pub fn image(&self) -> ClusterImage {
        let distribution = if self.runtime == "k3s" { "k3s" } else { "kubernetes" };
        let name = format!("{distribution} {} (adopted)", self.version);
        let labels = [
            (TYPE_LABELS[0], ImageKind::Rootfs.as_str()),
            (DISTRIBUTION_LABELS[0], distribution),
            ("version", &self.version),
        ];
        ClusterImage {
            digest: Digest::of(name.as_bytes()),
            name,
            mount_name: String::new(),
            kind: ImageKind::Rootfs,
            labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            environment: BTreeMap::new(),
            entrypoint: Vec::new(),
            command: Vec::new(),
            layers: Vec::new(),
        }
    }
}

impl Mount {
    pub fn of(image: &ClusterImage) -> Self {
        Self {
            name: image.mount_name.clone(),
            kind: image.kind.as_str().to_owned(),
            image: image.name.clone(),
            digest: Some(image.digest.to_string()),
            environment: image.environment.clone(),
            labels: image.labels.clone(),
            command: image.command.clone(),
            entrypoint: image.entrypoint.clone(),
            ..Self::default()
        }
    }

    /// Returns the image as recorded, without layers: for display when the store no longer has it.
    pub fn image(&self) -> ClusterImage {
        let digest = self.digest.as_deref().map(Digest::parse);
        ClusterImage {
            name: self.image.clone(),
            mount_name: self.name.clone(),
            kind: ImageKind::parse(&self.kind).unwrap_or(ImageKind::Application),
            digest: match digest {
                Some(Ok(digest)) => digest,
                _ => Digest::of(self.image.as_bytes()),
            },
            labels: self.labels.clone(),
            environment: self.environment.clone(),
            entrypoint: self.entrypoint.clone(),
            command: self.command.clone(),
            layers: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusterfile::read;
    use crate::testing::image;

    #[test]
    fn a_context_has_the_clusters_words_and_keeps_its_secrets() {
        let text = "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata: {name: c}\nspec:\n  image: [r:v1]\n  env: [defaultVIP=10.9.9.9, dbPassword=s3cret-word, DB=open]\n  ssh: {passwd: pass-word}\n  hosts:\n  - {ips: [10.0.0.1], roles: [master]}\nstatus: {env: [X=1]}\n";
        let clusterfile = read(text, "f").unwrap().0;
        let mut rootfs = image("r:v1", ImageKind::Rootfs);
        rootfs.labels.insert("vip".into(), "$defaultVIP".into());
        rootfs.environment.insert("defaultVIP".into(), "10.103.97.2".into());
        let surroundings = Surroundings { variable: &|_| None, home: None, local: Vec::new() };
        let context = ClusterContext::new(
            &clusterfile,
            vec![rootfs.clone()],
            "/data",
            StateFiles::plain("/state"),
            &surroundings,
        )
        .unwrap();
        assert_eq!(context.vip.as_deref(), Some("10.9.9.9"));
        assert_eq!(context.flag_environment["X"], "1");
        assert_eq!(context.paths.root(), "/data/data/c");
        assert_eq!(
            crate::redact::of_cluster(&context).redact("s3cret-word pass-word open"),
            "*** *** open"
        );
        assert_eq!(Mount::of(&rootfs).image(), rootfs);
    }
}
