//! The steps on one host, in order: cordon, gate, drain, switch, move, gate, uncordon.

use std::time::Duration;

use crate::document::{Choices, Document, KubeletSwap};
use crate::{hooks, hooks::Hooks};
use crate::{probes, rehash, request::SCRIPT};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::SwitchTree;
use imgctl_kube::drain;
use imgctl_model::image::ClusterImage;
use imgctl_runtime::upgrade::{Move, Place, Upgrader};
use imgctl_runtime::{Action, nodes};
use imgctl_workflow::pipeline::step::Step;
use imgctl_workflow::sync::tree::ROOTFS;

/// Returns all steps of one host in one hop.
pub(super) fn steps(
    step: &Move<'_>,
    upgrader: &dyn Upgrader,
    document: &Document,
    tree: &str,
    hooks: &Hooks,
) -> Result<Vec<Step>> {
    let mut actions: Vec<Action> = Vec::new();
    let node = document
        .hosts
        .get(&step.host.id())
        .and_then(|host| host.node.as_deref())
        .filter(|_| upgrader.drains());
    let is_control_plane = step.place != Place::Worker;
    let (pre, post) = if is_control_plane {
        ("pre-control-plane", "post-control-plane")
    } else {
        ("pre-node", "post-node")
    };
    if let Some(node) = node {
        actions.push(nodes::cordon(node, &document.id));
    }
    actions.extend(upgrader.before(step)?);
    if let Some(node) = node.filter(|_| document.choices.kubelet_swap == KubeletSwap::Drain) {
        actions.push(nodes::drain(node, &document.id, &draining(&document.choices)));
    }
    actions.extend(hooks::run(pre, hooks, step, document));
    actions.push(switch(step, tree));
    actions.extend(if step.back {
        upgrader.restore(step)?
    } else if is_scripts_alone(step, document, hooks) {
        Vec::new()
    } else {
        upgrader.apply(step)?
    });
    rehash::insert(&mut actions, step, document)?;
    if !step.back {
        actions.extend(hooks::legacy_host(hooks, step, document));
    }
    actions.extend(hooks::run(post, hooks, step, document));
    actions.extend(upgrader.gate(step)?);
    actions.extend(upgrader.back_in_service(step)?);
    if document.choices.bake_seconds > 0 {
        actions.push(bake(document.choices.bake_seconds));
        for mut action in upgrader.gate(step)? {
            action.name = format!("{}-again", action.name);
            actions.push(action);
        }
    }
    if let Some(node) = node {
        actions.extend(probes::action(node, &document.choices, step.to.rootfs())?);
        actions.push(nodes::uncordon(node));
    }
    Ok(actions.into_iter().map(Step::from).collect())
}

/// Returns how the choices want Pods to be evicted.
fn draining(choices: &Choices) -> drain::Options {
    drain::Options {
        timeout: Duration::from_secs(choices.drain_timeout_seconds),
        on_timeout: choices.drain_on_timeout,
        delete_emptydir_data: choices.delete_emptydir_data,
        force: choices.force_unmanaged,
        ..drain::Options::default()
    }
}

/// Returns whether an image of the script runtime has no scripts other than those of sealer.
fn is_scripts_alone(step: &Move<'_>, document: &Document, hooks: &Hooks) -> bool {
    let has_label = |image: &ClusterImage| image.label(&["upgrade"]).is_some();
    document.runtime == SCRIPT && hooks.is_legacy() && !step.to.rootfs().is_some_and(has_label)
}

/// Switches the rootfs of the host to another tree that is already on the host.
pub(super) fn switch(step: &Move<'_>, tree: &str) -> Action {
    if !step.to.has_rootfs_image() {
        let link = step.to.paths.rootfs();
        let says = format!("remove the link {link}: the cluster had no image");
        return Action::new("switch", says, move |site| site.remove(&link));
    }
    let request =
        SwitchTree { root: step.to.paths.root(), tree: ROOTFS.to_owned(), id: tree.to_owned() };
    let version = step.to.rootfs().map_or_else(String::new, |image| format!(" ({})", image.name));
    let short = tree.get(..12).unwrap_or(tree);
    let says = format!("switch {ROOTFS} to {short}{version}");
    Action::depending_on("switch", says, tree, move |site| {
        for note in site.agent.switch_tree(&request)? {
            (site.output)(imgctl_host::agent::protocol::OutputLine {
                text: note,
                error_stream: false,
            });
        }
        Ok(())
    })
}

/// Waits; the gate that follows detects failures during this time.
fn bake(seconds: u64) -> Action {
    let says = format!("wait {seconds} s, then check again");
    Action::new("bake", says, move |site| {
        let limit = site.timeout.unwrap_or(Duration::MAX);
        let wanted = Duration::from_secs(seconds);
        if wanted > limit {
            return Err(Error::usage(format!("--bake {seconds}s is longer than a step may take")));
        }
        std::thread::sleep(wanted);
        Ok(())
    })
    .within(Duration::from_secs(seconds.saturating_add(60)))
}
