//! The recorded state after a rollback to a snapshot: the cluster has the applications that it had
//! when the snapshot was taken.

use std::path::Path;

use crate::work::Work;
use imgctl_base::error::Result;
use imgctl_cluster::cluster::clusterfile::{self, Clusterfile, Mount};
use imgctl_cluster::cluster::image::{ClusterImage, ImageKind};
use imgctl_cluster::upgrade::upgrade_store::UpgradeStore;

/// The cluster after a rollback.
pub(crate) struct After {
    /// The present record with the other applications; the rootfs image is still the present one.
    pub(crate) cluster: Clusterfile,
    /// Messages about the applications.
    pub(crate) told: Vec<String>,
}

impl After {
    /// Returns a result in which only the rootfs image changes.
    pub(crate) fn unchanged(current: &Clusterfile) -> Self {
        Self { cluster: current.clone(), told: Vec::new() }
    }
}

/// Returns the cluster with the data of `snapshot`, which the upgrade `id` took.
pub(crate) fn after(work: &Work<'_>, id: &str, snapshot: &Path) -> Result<After> {
    let upgrades = UpgradeStore::of(work.state.directory());
    let current = work.existing()?;
    // A snapshot of another upgrade is in a directory named after that upgrade.
    let parent = snapshot.parent().and_then(Path::file_name);
    let named = parent.and_then(|name| name.to_str());
    let named = named.and_then(|name| upgrades.former(name).ok().flatten());
    let former = match named {
        Some(text) => Some(text),
        None => upgrades.former(id)?,
    };
    let Some(former) = former else {
        return Ok(After {
            cluster: current.clone(),
            told: vec![
                "the applications at the time of the snapshot are not known: the record keeps the \
                 current ones"
                    .to_owned(),
            ],
        });
    };
    let (former, _) = clusterfile::read_stored(&former, "the former Clusterfile")?;
    Ok(as_of(current, &former, &|mount| is_here(work, mount)))
}

/// Whether the store has the image that was installed.
fn is_here(work: &Work<'_>, mount: &Mount) -> bool {
    let load = |store| ClusterImage::load(store, work.state.name(), &mount.image, None);
    let image = work.session.store().and_then(load);
    image.is_ok_and(|image| mount.digest.as_deref() == Some(&image.digest.to_string()))
}

/// Returns `current` with the applications of `former`; applications whose image is missing cannot
/// be recorded again.
fn as_of(current: &Clusterfile, former: &Clusterfile, is_here: &dyn Fn(&Mount) -> bool) -> After {
    let mut cluster = current.clone();
    let mut told = Vec::new();
    let then: Vec<&Mount> = applications(former).collect();
    for now in applications(current) {
        let was = then.iter().find(|mount| mount.image == now.image);
        if was.is_some_and(|was| was.digest == now.digest) {
            continue;
        }
        let image = &now.image;
        cluster.cluster.images.retain(|own| own != image);
        cluster.cluster.status.mounts.retain(|mount| mount.image != *image);
        told.push(format!(
            "{image} was installed after the snapshot: it is removed from the record; `imgctl run \
             {image}` reinstalls it"
        ));
    }
    for was in then {
        if applications(current).any(|now| now.image == was.image) {
            continue;
        }
        let image = &was.image;
        if is_here(was) {
            cluster.cluster.images.push(image.clone());
            cluster.cluster.status.mounts.push(was.clone());
            told.push(format!(
                "{image} was uninstalled after the snapshot: its part of the cluster's data is \
                 restored, and it is recorded again"
            ));
        } else {
            told.push(format!(
                "{image} was uninstalled after the snapshot: its part of the cluster's data is \
                 restored, but the image is missing here and cannot be recorded"
            ));
        }
    }
    After { cluster, told }
}

fn applications(cluster: &Clusterfile) -> impl Iterator<Item = &Mount> {
    let kind = ImageKind::Application.as_str();
    let mounts = cluster.cluster.status.mounts.iter();
    mounts.filter(move |mount| mount.kind == kind && cluster.cluster.images.contains(&mount.image))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(images: &[(&str, &str, &str)]) -> Clusterfile {
        let mut cluster = Clusterfile::default();
        for (image, kind, digest) in images {
            cluster.cluster.images.push((*image).to_owned());
            cluster.cluster.status.mounts.push(Mount {
                kind: (*kind).to_owned(),
                image: (*image).to_owned(),
                digest: Some((*digest).to_owned()),
                ..Mount::default()
            });
        }
        cluster
    }

    #[test]
    fn applications_are_those_of_the_snapshot() {
        let former = cluster(&[
            ("k8s:v1", "rootfs", "a"),
            ("old:v1", "application", "b"),
            ("gone:v1", "application", "c"),
            ("both:v1", "application", "d"),
            ("again:v1", "application", "e"),
        ]);
        let current = cluster(&[
            ("k8s:v2", "rootfs", "f"),
            ("fix:v1", "patch", "g"),
            ("both:v1", "application", "d"),
            ("again:v1", "application", "h"),
            ("new:v1", "application", "i"),
        ]);
        let after = as_of(&current, &former, &|mount| mount.image != "gone:v1");
        assert_eq!(after.cluster.cluster.images, ["k8s:v2", "fix:v1", "both:v1", "old:v1"]);
        let mounts = after.cluster.cluster.status.mounts.iter();
        let mounts: Vec<&str> = mounts.map(|mount| &*mount.image).collect();
        assert_eq!(mounts, after.cluster.cluster.images);
        let told = after.told.join("\n");
        for words in [
            "imgctl run new:v1",
            "imgctl run again:v1",
            "old:v1 was uninstalled",
            "gone:v1 was uninstalled",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(after.told.len(), 4);
    }
}
