//! Stops, replaces and starts the kubelet and, if the image requires it, the container runtime.

use std::time::Duration;

use crate::action::{Action, Line, Site};
use crate::kubeadm::upgrade::{
    target,
    target::{Target, evictable},
};
use crate::{shell::FILES, upgrade::Move, version::order};
use imgctl_base::error::{Error, Result};
use imgctl_base::semver::Version;

const LIMIT: Duration = Duration::from_secs(300);

/// The functions `start_kubelet` and `restart_runtime`, which need those of [`FILES`].
pub(super) const SERVICES: &str = include_str!("scripts/services.sh");

/// Replaces the kubelet. kubeadm has already written the new configuration; nothing reads it before
/// the new kubelet starts.
pub(super) fn swap(target: &Target) -> Action {
    let line = target.script(&[FILES, SERVICES, include_str!("scripts/swap-kubelet.sh")]);
    Action::command("kubelet", line).within(LIMIT).saying(format!(
        "systemctl stop kubelet; replace kubelet and its unit with those of {}; systemctl start \
         kubelet",
        target.tree
    ))
}

/// Replaces containerd and runc, only if the image's label requires a newer version than the
/// running one.
pub(super) fn runtime(step: &Move<'_>, target: &Target) -> Option<Action> {
    let wanted = target::wanted_runtime(step)?.to_owned();
    let says = format!(
        "replace the container runtime with that of {}/cri if it is older than {wanted}",
        target.tree
    );
    let target = target.clone();
    let action = Action::depending_on("runtime", says, &wanted.clone(), move |site| {
        replace_runtime(site, &target, &wanted)
    });
    Some(action.within(LIMIT))
}

fn replace_runtime(site: &Site<'_>, target: &Target, wanted: &str) -> Result<()> {
    let line = Line::query("containerd --version");
    let text = site.run_on(site.agent, &line, "-version")?;
    // Output: containerd github.com/containerd/containerd v1.7.27 <commit>; on Debian: 1.6.20~ds1
    // 1.6.20~ds1-1
    let runs =
        text.split_whitespace().filter_map(|word| word.split('~').next()).find_map(Version::parse);
    let (Some(runs), Some(wanted_version)) = (runs, Version::parse(wanted)) else {
        return Err(Error::failed(format!(
            "{}: cannot compare `{}` with {wanted}, which the image requires",
            site.agent.host(),
            text.trim()
        ))
        .hint(format!("check the image's label {}", target::RUNTIME_LABEL)));
    };
    if order(&runs, &wanted_version).is_ge() {
        return Ok(());
    }
    let left = evictable(site)?;
    if !left.is_empty() {
        return Err(Error::failed(format!(
            "{}: the container runtime is replaced only on a drained Node, and these Pods are on \
             it: {}",
            site.agent.host(),
            left.join(", ")
        ))
        .hint(
            "omit --kubelet-swap in-place, or use an image that does not require a newer container \
             runtime",
        ));
    }
    let line = target.script(&[FILES, SERVICES, include_str!("scripts/replace-runtime.sh")]);
    site.run_on(site.agent, &line, "-replace").map(|_| ())
}
