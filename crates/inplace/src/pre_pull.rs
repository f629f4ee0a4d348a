//! Pulls new images to Nodes before any container is killed: the kubelet kills the container first
//! and pulls afterwards. Must not depend on how a Node is reached.

use std::collections::BTreeMap;

use crate::plan::{PodPlan, Verdict};
use crate::target::Target;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::workers::map;

/// Maximum number of Nodes that pull concurrently.
const PARALLEL: usize = 8;
/// Size of an unpacked image relative to its compressed size, in tenths.
const UNPACKED: u64 = 25;

pub trait Puller: Sync {
    /// Pulls `image` on the Node of `pod`, with the secrets of `pod` if supported. Returns the
    /// names of the image on the Node (digests), if reported. `room`: free space required, in
    /// bytes.
    fn pull(&self, pod: &PodPlan, image: &str, room: u64) -> Result<Vec<String>>;
}

/// Pulls with the Node's own credentials first and, if that fails, with the secrets of the Pod.
pub struct OrWithSecrets<A, B> {
    pub node: A,
    pub secrets: B,
}

impl<A: Puller, B: Puller> Puller for OrWithSecrets<A, B> {
    fn pull(&self, pod: &PodPlan, image: &str, room: u64) -> Result<Vec<String>> {
        match self.node.pull(pod, image, room) {
            Err(error) if error.kind() == Kind::CommandFailed && !pod.pull_secrets.is_empty() => {
                tracing::info!("{error}; retrying with {}", pod.pull_secrets.join(", "));
                self.secrets.pull(pod, image, room)
            }
            pulled => pulled,
        }
    }
}

/// Pulls on all Nodes of `pods` the images that they need. The error lists the failures of all
/// Nodes.
pub fn pre_pull(
    pods: &[&PodPlan],
    targets: &BTreeMap<String, Target>,
    puller: &dyn Puller,
) -> Result<usize> {
    let mut tasks: BTreeMap<(&str, &str), &PodPlan> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.node.is_empty()) {
        for one in &pod.containers {
            // An image under a new name has to be pulled as well, even if its content is present.
            if matches!(one.verdict, Verdict::Change | Verdict::RestartOnly) {
                tasks.entry((&pod.node, &one.to)).or_insert(pod);
            }
        }
    }
    // A Node pulls its images one after another; several Nodes pull concurrently.
    let mut by_node: BTreeMap<&str, Vec<(&str, &PodPlan)>> = BTreeMap::new();
    for ((node, image), pod) in tasks {
        by_node.entry(node).or_default().push((image, pod));
    }
    let count = by_node.values().map(Vec::len).sum();
    let mut problems = map(by_node, PARALLEL, |(node, images)| -> Vec<String> {
        let pulled = images.iter().map(|(image, pod)| one(pod, image, targets.get(*image), puller));
        let failed = pulled.filter_map(Result::err);
        failed.map(|error| format!("Node {node}: {error}")).collect()
    })
    .concat();
    if problems.is_empty() {
        return Ok(count);
    }
    problems.sort();
    Err(Error::check_failed("not every Node can pull the new image; nothing was changed:")
        .lines(problems.iter().map(|problem| format!("  {problem}")))
        .hint(
        "check the Node, its registry and its free space, then run the same command again; or pass \
         --pre-pull none to skip the pull",
    ))
}

fn one(pod: &PodPlan, image: &str, target: Option<&Target>, puller: &dyn Puller) -> Result<()> {
    let variant = target.and_then(|target| target.variant(&pod.architecture));
    let room = variant.map_or(0, |one| one.size.saturating_mul(UNPACKED) / 10);
    let found = puller.pull(pod, image, room)?;
    let Some(target) = target else { return Ok(()) };
    if found.is_empty() || found.iter().any(|id| target.is(id, &pod.architecture)) {
        Ok(())
    } else {
        Err(Error::bad_content(format!(
            "{image} is {} there, but {} in the registry",
            found.join(", "),
            target.digest
        )))
    }
}
