//! Clusters that report no versions: the tree of a host identifies its image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::upgrade::images::{ClusterSnapshot, UpgradeImage, informed, side_of};
use imgctl_base::error::Result;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ClusterImage;
use imgctl_upgrade::upgrade_store::UpgradeStatus;
use imgctl_upgrade::{document::Direction, observation::Observation};
use imgctl_workflow::pipeline::execution_context::{ExecutionContext, Then};
use imgctl_workflow::sync::tree::ROOTFS;

/// Sets the version of each host from its tree. `releases` are cluster contexts with their
/// versions; a host that has none of their trees gets no version.
pub(crate) fn tell_versions(
    known: &ClusterSnapshot<'_>,
    observation: &mut Observation,
    releases: &[(&Arc<ClusterContext>, &str)],
) {
    for (context, version) in releases {
        let trees = trees(known, context, observation);
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

/// Returns the hosts that kept the former image when the cluster moved to its present one, and that
/// image. These hosts were unreachable then, or have been rolled back since.
pub(crate) fn behind(
    known: &ClusterSnapshot<'_>,
    observation: &Observation,
) -> Result<Option<(UpgradeImage, Vec<String>)>> {
    let (work, execution) = (known.work, known.execution);
    let Some(current) = known.from.rootfs() else {
        return Ok(None);
    };
    let history = known.upgrades.history()?;
    let last = history.iter().rev().find(|ended| {
        ended.direction == Direction::Forward
            && ended.end == UpgradeStatus::Committed
            && ended.to.image == current.name
            && UpgradeImage::of(&ended.to).digest.as_ref() == Some(&current.digest)
    });
    let Some(last) = last else { return Ok(None) };
    let side = UpgradeImage::of(&last.from);
    let others = with_other_rootfs(known.target(), observation, execution)?;
    if execution.runtime.has_api() {
        let behind: Vec<String> = others.into_iter().collect();
        return Ok(Some((side, behind)).filter(|(_, behind)| !behind.is_empty()));
    }
    // Without that image, the hosts cannot be compared.
    let Ok(former) = side_of(work, work.existing()?, &side, &[]) else {
        return Ok(None);
    };
    let former = informed(&former, execution);
    let trees = trees(known, &former, observation);
    // Different variables yield a different tree of the former image.
    let older = if others.is_empty() {
        BTreeSet::new()
    } else {
        with_other_rootfs(&former, observation, execution)?
    };
    let behind: Vec<String> = observation
        .hosts
        .iter()
        .filter(|host| {
            let is_former = host.tree.as_ref() == trees.get(&host.id);
            host.tree.is_some()
                && (is_former || others.contains(&host.id) && !older.contains(&host.id))
        })
        .map(|host| host.id.clone())
        .collect();
    Ok(Some((side, behind)).filter(|(_, behind)| !behind.is_empty()))
}

/// Returns the hosts whose files come from another rootfs image than that of `context`.
fn with_other_rootfs(
    context: &Arc<ClusterContext>,
    observation: &Observation,
    execution: &ExecutionContext<'_>,
) -> Result<BTreeSet<String>> {
    let hosts = reachable(context, observation);
    Ok(execution.files.plan(context, &hosts, &execution.pool, Then::Switch)?.leave_rootfs)
}

fn reachable(context: &ClusterContext, observation: &Observation) -> Vec<Host> {
    let answers = |host: &&Host| {
        let seen = observation.host(&host.id());
        seen.is_some_and(|seen| seen.unreachable.is_none())
    };
    context.hosts.iter().filter(answers).cloned().collect()
}

/// Returns the trees that a cluster context renders from its images, by host, for reachable hosts.
fn trees(
    known: &ClusterSnapshot<'_>,
    context: &Arc<ClusterContext>,
    observation: &Observation,
) -> BTreeMap<String, String> {
    let (session, execution) = (known.work.session, known.execution);
    let mut found = BTreeMap::new();
    // A name that refers to another image by now would give wrong results.
    let is_here = context.rootfs().is_some_and(|rootfs| {
        let load = |store| ClusterImage::load(store, &context.name, &rootfs.name, None);
        let read = session.store().and_then(load);
        read.is_ok_and(|image| image.digest == rootfs.digest)
    });
    let hosts = reachable(context, observation);
    if !is_here || hosts.is_empty() {
        return found;
    }
    if let Ok(files) = execution.files.plan(context, &hosts, &execution.pool, Then::Keep) {
        for (host, mut trees) in files.trees {
            found.extend(trees.remove(ROOTFS).map(|tree| (host, tree)));
        }
    }
    found
}
