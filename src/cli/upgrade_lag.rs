//! Clusters that tell no versions: which image a host has is told by the tree that it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cli::cluster_work::Work;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::upgrade_sides::{Side, side_of};
use crate::cli::upgrade_work::{Known, informed};
use crate::cluster::host::Host;
use crate::cluster::image::ClusterImage;
use crate::cluster::scene::Scene;
use crate::error::Result;
use crate::pipeline::means::Means;
use crate::sync::tree::ROOTFS;
use crate::upgrade::book::{Book, Stand};
use crate::upgrade::document::Direction;
use crate::upgrade::observation::Observation;

/// Gives each host the version whose tree it has. `releases` are scenes with their versions; a host
/// that has none of their trees gets none.
pub(crate) fn tell_versions(
    observation: &mut Observation,
    releases: &[(&Arc<Scene>, &str)],
    work: &Work<'_>,
    means: &Means<'_>,
) {
    for (scene, version) in releases {
        let trees = trees(scene, observation, work, means);
        for host in &mut observation.hosts {
            if host.version.is_none()
                && host.tree.is_some()
                && host.tree.as_ref() == trees.get(&host.id)
            {
                host.version = Some((*version).to_owned());
            }
        }
    }
}

/// Hosts that stayed at the former image when the cluster went to its present one: they could not be
/// reached then. With that image.
pub(crate) fn behind(
    work: &Work<'_>,
    known: &Known,
    observation: &Observation,
    means: &Means<'_>,
    registry: &RegistryArgs,
) -> Result<Option<(Side, Vec<String>)>> {
    if means.runtime.has_api() {
        return Ok(None);
    }
    let Some(current) = known.from.rootfs() else {
        return Ok(None);
    };
    let history = Book::of(work.state.directory()).history()?;
    let last = history.iter().rev().find(|ended| {
        ended.direction == Direction::Forward
            && ended.end == Stand::Committed
            && ended.to.image == current.name
            && Side::of(&ended.to).digest.as_ref() == Some(&current.digest)
    });
    let Some(last) = last else { return Ok(None) };
    let side = Side::of(&last.from);
    // Without that image nobody can tell.
    let Ok(former) = side_of(work, work.existing()?, &side, &[], registry) else {
        return Ok(None);
    };
    let trees = trees(&informed(&former, means), observation, work, means);
    let behind: Vec<String> = observation
        .hosts
        .iter()
        .filter(|host| host.tree.is_some() && host.tree.as_ref() == trees.get(&host.id))
        .map(|host| host.id.clone())
        .collect();
    Ok(Some((side, behind)).filter(|(_, behind)| !behind.is_empty()))
}

/// The trees that a scene makes of its images, by host; of hosts that can be asked.
fn trees(
    scene: &Arc<Scene>,
    observation: &Observation,
    work: &Work<'_>,
    means: &Means<'_>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    // A name that means another image by now would tell lies.
    let is_here = scene.rootfs().is_some_and(|rootfs| {
        let read = work
            .context
            .store()
            .and_then(|store| ClusterImage::load(store, &scene.name, &rootfs.name, None));
        read.is_ok_and(|image| image.digest == rootfs.digest)
    });
    let hosts: Vec<Host> = scene
        .hosts
        .iter()
        .filter(|host| {
            let seen = observation.host(&host.id());
            seen.is_some_and(|seen| seen.unreachable.is_none())
        })
        .cloned()
        .collect();
    if !is_here || hosts.is_empty() {
        return found;
    }
    if let Ok(files) = means.files.stage(scene, &hosts, &means.crew) {
        for (host, mut trees) in files.trees {
            found.extend(trees.remove(ROOTFS).map(|tree| (host, tree)));
        }
    }
    found
}
