//! The cluster before, during and after an upgrade or a rollback, built from the recorded state, from
//! images and from its hosts' answers.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::adopted::check_images;
use crate::work::{Prepared, Work};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, Platform};
use imgctl_base::quote::quote;
use imgctl_kube::api::Api;
use imgctl_model::context::ClusterContext;
use imgctl_model::image::{ClusterImage, ImageKind};
use imgctl_model::{
    clusterfile,
    clusterfile::{Clusterfile, Mount},
};
use imgctl_runtime::nodes;
use imgctl_upgrade::document::{Direction, Document, Release};
use imgctl_upgrade::upgrade_store::UpgradeStore;
use imgctl_workflow::pipeline::{execution_context::ExecutionContext, look, ownership};

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
    Recorded,
    /// The state recorded before the cluster's target was recorded.
    Former(Box<Clusterfile>),
    /// The cluster with this rootfs image.
    Image(UpgradeImage),
    /// The cluster with these settings.
    Settings(Box<Clusterfile>),
}

impl Start {
    /// Returns the start for an upgrade that has begun. An upgrade that was killed after its last
    /// host has already recorded the new image; its completed steps still started from the former
    /// one and are not repeated.
    pub(crate) fn of_open(open: &Document, work: &Work<'_>) -> Result<Self> {
        if open.is_reconfiguration() {
            return Ok(Self::Settings(Box::new(settings_of(open, work)?.0)));
        }
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

/// Returns the cluster before and after a change of settings, or its rollback, whatever of it has
/// been recorded meanwhile.
pub(crate) fn settings_of(open: &Document, work: &Work<'_>) -> Result<(Clusterfile, Clusterfile)> {
    let upgrades = UpgradeStore::of(work.state.files());
    // A rollback is made of the settings of what it reverts.
    let id = upgrades.instead(&open.id)?.unwrap_or_else(|| open.id.clone());
    let (old, new) = upgrades.settings(&id)?.ok_or_else(|| {
        Error::not_found(format!("the settings before and after {id} are not recorded"))
            .hint("`imgctl upgrade abort` ends it, and `imgctl apply` with the former Clusterfile changes the settings back")
    })?;
    let with = |text: &str, which: &str| -> Result<Clusterfile> {
        let name = format!("the Clusterfile with the {which} settings");
        let (read, _) = clusterfile::read_stored(text, &name)?;
        Ok(with_settings(work.existing()?, &read))
    };
    let (old, new) = (with(&old, "old")?, with(&new, "new")?);
    Ok(match open.direction {
        Direction::Forward => (old, new),
        Direction::Back => (new, old),
    })
}

/// Returns `cluster` with the settings of another Clusterfile: everything that files of images and
/// documents of runtimes are made of, but no host and no image.
pub(crate) fn with_settings(cluster: &Clusterfile, settings: &Clusterfile) -> Clusterfile {
    let mut cluster = cluster.clone();
    cluster.documents.clone_from(&settings.documents);
    cluster.configs.clone_from(&settings.configs);
    cluster.others.clone_from(&settings.others);
    let (own, other) = (&mut cluster.cluster, &settings.cluster);
    own.environment.clone_from(&other.environment);
    own.status.environment.clone_from(&other.status.environment);
    cluster
}

/// Whether a cluster is recorded with this rootfs image. Another image may have the same name and
/// version: the digest identifies an image.
pub(crate) fn is_of(side: &UpgradeImage, cluster: &Clusterfile) -> Result<bool> {
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
    let text = UpgradeStore::of(work.state.files()).former(&open.id)?;
    let read = |text: String| Ok(clusterfile::read_stored(&text, "the former Clusterfile")?.0);
    text.map(read).transpose()
}

/// Whether the upgrade `open` has recorded its target for the cluster.
pub(crate) fn is_recorded(open: &Document, work: &Work<'_>) -> Result<bool> {
    if open.is_reconfiguration() {
        let (from, to) = settings_of(open, work)?;
        let current = work.existing()?;
        let is_it = |one: &Clusterfile| {
            one.documents == current.documents && one.configs == current.configs
        };
        return Ok(is_it(&to) && !is_it(&from));
    }
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
        Start::Settings(before) => work.recorded((**before).clone())?,
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
    let own = &mut desired.cluster.images;
    let without = adopted_name(current).as_ref() == Some(&side.name);
    if without {
        own.retain(|name| *name != rootfs);
    }
    match own.iter().position(|name| *name == rootfs) {
        Some(at) => own[at].clone_from(&side.name),
        // The first image of an adopted cluster.
        None if !without => own.insert(0, side.name.clone()),
        None => {}
    }
    desired.cluster.add_images(install);
    let images = work.images(&desired.cluster.images)?;
    let found = images.iter().find(|image| image.name == side.name);
    if let (Some(wanted), Some(found)) = (&side.digest, found)
        && found.digest != *wanted
    {
        let what = format!(
            "the plan is stale: {} is now {}, but was {wanted} when the plan was made",
            side.name, found.digest
        );
        return Err(Error::check_failed(what).hint(format!(
            "point the name back to the planned image: imgctl pull {0}@{wanted} && imgctl tag \
             {0}@{wanted} {0}",
            quote(side.name.split('@').next().unwrap_or(&side.name))
        )));
    }
    check_images(&desired, &images)?;
    work.context(desired, images)
}

/// Returns the name that stands for an adopted cluster before its first image.
fn adopted_name(current: &Clusterfile) -> Option<String> {
    current.cluster.status.adopted.as_ref().map(|adopted| adopted.image().name)
}

/// Returns the name of the rootfs image, or what stands for it in an adopted cluster without one.
pub(crate) fn rootfs_of(current: &Clusterfile) -> Result<String> {
    let rootfs = ImageKind::Rootfs.as_str();
    let mounts = &current.cluster.status.mounts;
    mounts
        .iter()
        .find(|mount| mount.kind == rootfs && current.cluster.images.contains(&mount.image))
        .map(|mount| mount.image.clone())
        .or_else(|| adopted_name(current))
        .ok_or_else(|| {
            Error::not_found(format!(
                "the rootfs image of cluster {} is not recorded",
                current.cluster.name
            ))
            .hint("run `imgctl apply` with its Clusterfile to record it")
        })
}

/// The cluster of an upgrade after its hosts were queried, and what the upgrade works with.
pub(crate) struct ClusterSnapshot<'a> {
    pub(crate) work: &'a Work<'a>,
    pub(crate) execution: &'a ExecutionContext<'a>,
    pub(crate) upgrades: UpgradeStore,
    /// Names of the other images to install.
    pub(crate) install: Vec<String>,
    pub(crate) from: Arc<ClusterContext>,
    pub(crate) hops: Vec<Arc<ClusterContext>>,
    pub(crate) api: Option<Result<Arc<dyn Api>, String>>,
    pub(crate) architectures: BTreeSet<String>,
}

impl ClusterSnapshot<'_> {
    pub(crate) fn target(&self) -> &Arc<ClusterContext> {
        self.hops.last().unwrap_or(&self.from)
    }
}

/// Queries the facts of all hosts. Fails if one of them belongs to another cluster.
pub(crate) fn know<'a>(
    sides: &UpgradeImages,
    work: &'a Work<'_>,
    execution: &'a ExecutionContext<'_>,
) -> Result<ClusterSnapshot<'a>> {
    let looks = look::look(&sides.from.context.hosts, &execution.pool, execution.parallel);
    ownership::refuse_taken(&sides.from.context, &looks)?;
    let informed = |prepared: &Prepared| Arc::new(look::informed(&prepared.context, &looks));
    let from = informed(&sides.from);
    let api = execution
        .runtime
        .has_api()
        .then(|| nodes::api(&from, &*execution.pool).map_err(|error| error.chain().join(": ")));
    Ok(ClusterSnapshot {
        work,
        execution,
        upgrades: UpgradeStore::of(work.state.files()),
        install: sides.install.clone(),
        api,
        hops: sides.hops.iter().map(informed).collect(),
        architectures: looks
            .values()
            .filter_map(|look| look.as_ref().ok())
            .map(|facts| facts.architecture.clone())
            .collect(),
        from,
    })
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
pub(crate) fn after_snapshot(work: &Work<'_>, id: &str, snapshot: &Path) -> Result<After> {
    let upgrades = UpgradeStore::of(work.state.files());
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
    Ok(as_of(current, &former, &|mount| has_image(work, mount)))
}

/// Whether the store has the image that was installed.
fn has_image(work: &Work<'_>, mount: &Mount) -> bool {
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
