//! The cluster before, during and after an upgrade, built from the recorded state, from images and
//! from its hosts' answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::work::{Prepared, Work};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Digest, Platform};
use imgctl_cluster::cluster::clusterfile::{self, Clusterfile};
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::cluster::image::{ClusterImage, ImageKind};
use imgctl_cluster::pipeline::{execution_context::ExecutionContext, look};
use imgctl_cluster::upgrade::document::{Direction, Document, Release};
use imgctl_cluster::upgrade::{nodes, upgrade_store::UpgradeStore};
use imgctl_kube::api::Api;

/// The cluster before, during and after an upgrade.
pub(crate) struct UpgradeImages {
    pub(crate) from: Prepared,
    /// One for each version on the way; the last is the target.
    pub(crate) hops: Vec<Prepared>,
    /// Names of the other images to install.
    pub(crate) install: Vec<String>,
}

impl UpgradeImages {
    pub(crate) fn target(&self) -> &Prepared {
        self.hops.last().unwrap_or(&self.from)
    }
}

/// Rootfs image of an endpoint: as recorded with the cluster, or by its name.
#[derive(Clone, Debug)]
pub(crate) struct UpgradeImage {
    pub(crate) name: String,
    /// Expected digest; `None` accepts whatever the name refers to now.
    pub(crate) digest: Option<Digest>,
}

impl UpgradeImage {
    /// Returns the endpoint of an image in the store.
    pub(crate) fn now(image: &ClusterImage) -> Self {
        Self { name: image.name.clone(), digest: Some(image.digest.clone()) }
    }

    /// Returns the endpoint of a release in a document; images are identified by their digest for
    /// this machine's architecture.
    pub(crate) fn of(release: &Release) -> Self {
        let own = &Platform::host().architecture;
        Self {
            name: release.image.clone(),
            digest: release.digests.get(own).or_else(|| release.digests.values().next()).cloned(),
        }
    }
}

/// State of the cluster before the upgrade.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    /// The recorded state.
    Recorded,
    /// The state recorded before the cluster's target was recorded.
    Former(Box<Clusterfile>),
    /// The cluster with this rootfs image.
    Image(UpgradeImage),
}

impl Start {
    /// Returns the start for an upgrade that has begun. An upgrade that was killed after its last
    /// host has already recorded the new image; its completed steps still started from the former
    /// one and are not repeated.
    pub(crate) fn of_open(open: &Document, work: &Work<'_>) -> Result<Self> {
        let current = work.existing()?;
        let from = UpgradeImage::of(&open.from);
        if open.direction == Direction::Forward {
            if is_of(&from, current)? {
                return Ok(Self::Recorded);
            }
            if let Some(former) = former(open, work)?
                && is_of(&from, &former)?
            {
                return Ok(Self::Former(Box::new(former)));
            }
        }
        Ok(Self::Image(from))
    }
}

/// Whether a cluster is recorded with this rootfs image. Another image may have the same name and
/// version: the digest identifies an image.
fn is_of(side: &UpgradeImage, cluster: &Clusterfile) -> Result<bool> {
    let name = rootfs_of(cluster)?;
    let mounts = &cluster.cluster.status.mounts;
    let mount = mounts.iter().find(|mount| mount.image == name);
    let digest = mount.and_then(|mount| mount.digest.clone());
    let differs = match (digest, &side.digest) {
        (Some(one), Some(other)) => one != other.to_string(),
        _ => false,
    };
    Ok(name == side.name && !differs)
}

fn former(open: &Document, work: &Work<'_>) -> Result<Option<Clusterfile>> {
    let text = UpgradeStore::of(work.state.directory()).former(&open.id)?;
    let read = |text: String| Ok(clusterfile::read_stored(&text, "the former Clusterfile")?.0);
    text.map(read).transpose()
}

/// Whether the upgrade `open` has recorded its target for the cluster.
pub(crate) fn is_recorded(open: &Document, work: &Work<'_>) -> Result<bool> {
    let (from, target) = (UpgradeImage::of(&open.from), UpgradeImage::of(open.target()));
    if let Some(former) = former(open, work)?
        && is_of(&target, &former)?
    {
        // Hosts that lag behind move to the state that the cluster was already recorded with.
        return Ok(false);
    }
    let current = work.existing()?;
    Ok(is_of(&target, current)? && !is_of(&from, current)?)
}

/// Returns the endpoints for a cluster that becomes `after` except for its rootfs image.
pub(crate) fn sides(
    work: &Work<'_>,
    after: &Clusterfile,
    from: &Start,
    hops: &[UpgradeImage],
    install: &[String],
) -> Result<UpgradeImages> {
    let current = work.existing()?;
    let from = match from {
        Start::Recorded => work.recorded(current.clone())?,
        Start::Former(former) => {
            let mut then = current.clone();
            then.cluster.images.clone_from(&former.cluster.images);
            let mounts = &former.cluster.status.mounts;
            then.cluster.status.mounts.clone_from(mounts);
            work.recorded(then)?
        }
        Start::Image(side) => side_of(work, current, side, &[])?,
    };
    let mut prepared = Vec::new();
    for side in hops {
        prepared.push(side_of(work, after, side, install)?);
    }
    Ok(UpgradeImages { from, hops: prepared, install: install.to_vec() })
}

/// Returns the cluster with another rootfs image.
pub(crate) fn side_of(
    work: &Work<'_>,
    current: &Clusterfile,
    side: &UpgradeImage,
    install: &[String],
) -> Result<Prepared> {
    let mut desired = current.clone();
    let rootfs = rootfs_of(current)?;
    for name in &mut desired.cluster.images {
        if *name == rootfs {
            name.clone_from(&side.name);
        }
    }
    desired.cluster.add_images(install);
    let images = work.session.images(&desired.cluster.images, work.state.name(), None)?;
    let found = images.iter().find(|image| image.name == side.name);
    if let (Some(wanted), Some(found)) = (&side.digest, found)
        && found.digest != *wanted
    {
        let what = format!(
            "the plan is stale: {} is now {}, but was {wanted} when the plan was made",
            side.name, found.digest
        );
        return Err(Error::new(Kind::CheckFailed, what).hint(format!(
            "point the name back to the planned image: imgctl pull {0}@{wanted} && imgctl tag \
             {0}@{wanted} {0}",
            side.name.split('@').next().unwrap_or(&side.name)
        )));
    }
    imgctl_cluster::cluster::image::check_together(&images)?;
    work.context(desired, images)
}

/// Returns the name of the cluster's rootfs image.
pub(crate) fn rootfs_of(current: &Clusterfile) -> Result<String> {
    let rootfs = ImageKind::Rootfs.as_str();
    let mounts = &current.cluster.status.mounts;
    mounts
        .iter()
        .find(|mount| mount.kind == rootfs && current.cluster.images.contains(&mount.image))
        .map(|mount| mount.image.clone())
        .ok_or_else(|| {
            Error::not_found(format!(
                "the rootfs image of cluster {} is not recorded",
                current.cluster.name
            ))
            .hint("run `imgctl apply` with its Clusterfile to record it")
        })
}

/// Facts about the cluster after the hosts were queried.
pub(crate) struct ClusterSnapshot {
    pub(crate) from: Arc<ClusterContext>,
    pub(crate) hops: Vec<Arc<ClusterContext>>,
    pub(crate) api: Option<Result<Arc<dyn Api>, String>>,
    pub(crate) architectures: BTreeSet<String>,
}

/// Queries the facts of all hosts.
pub(crate) fn know(sides: &UpgradeImages, execution: &ExecutionContext<'_>) -> ClusterSnapshot {
    let looks = look::look(&sides.from.context.hosts, &execution.pool, execution.parallel);
    let informed = |prepared: &Prepared| Arc::new(look::informed(&prepared.context, &looks));
    let from = informed(&sides.from);
    let api = execution
        .runtime
        .has_api()
        .then(|| nodes::api(&from, &*execution.pool).map_err(|error| error.chain().join(": ")));
    ClusterSnapshot {
        api,
        hops: sides.hops.iter().map(informed).collect(),
        architectures: looks
            .values()
            .filter_map(|look| look.as_ref().ok())
            .map(|facts| facts.architecture.clone())
            .collect(),
        from,
    }
}

/// Returns a cluster context with the facts of its hosts; they were queried before, and the answers
/// are cached.
pub(crate) fn informed(
    prepared: &Prepared,
    execution: &ExecutionContext<'_>,
) -> Arc<ClusterContext> {
    let looks = look::look(&prepared.context.hosts, &execution.pool, execution.parallel);
    Arc::new(look::informed(&prepared.context, &looks))
}
