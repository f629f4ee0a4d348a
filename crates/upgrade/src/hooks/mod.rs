//! Hooks of images for an upgrade: `hooks/<moment>.d/*`, `can-upgrade`.
//!
//! How a hook runs is in [`imgctl_workflow::hooks`].

mod found;
mod legacy;

use crate::document::Document;
pub use found::Hooks;
use imgctl_base::error::Result;
use imgctl_model::variables::Variables;
use imgctl_runtime::upgrade::{Move, Place};
use imgctl_runtime::{Action, action::Line};
use imgctl_workflow::hooks;

/// Returns the hooks of one moment (`pre-node`) from the host's target tree, in name order.
pub(super) fn run(
    moment: &'static str,
    hooks: &Hooks,
    step: &Move<'_>,
    document: &Document,
) -> Vec<Action> {
    hooks::actions(moment, hooks.of_moment(moment), &environment(moment, step, document))
}

/// sealer scripts to run on each host.
pub(super) fn legacy_host(hooks: &Hooks, step: &Move<'_>, document: &Document) -> Vec<Action> {
    legacy::run(legacy::UPGRADE_HOST, hooks.plugins(), step, document)
}

/// sealer scripts to run on the first control plane after all hosts are done.
pub(super) fn legacy_cluster(hooks: &Hooks, step: &Move<'_>, document: &Document) -> Vec<Action> {
    legacy::run(legacy::UPGRADE, hooks.plugins(), step, document)
}

/// Asks the new image whether it can follow the current release: by the label `can-upgrade` or a
/// file `hooks/can-upgrade`. The check receives the plan on standard input; its exit code is the
/// answer and its output the reason. Returns `None` if the image has neither.
pub(super) fn can_upgrade(
    hooks: &Hooks,
    step: &Move<'_>,
    document: &Document,
) -> Result<Option<Action>> {
    let label = step.to.rootfs().and_then(|image| image.label(&["can-upgrade"]));
    let (line, what) = match label {
        Some(value) => (
            format!("cd -- \"$IMGCTL_ROOTFS/scripts\" && bash {value}"),
            "its label `can-upgrade`",
        ),
        None if hooks.has_can_upgrade() => (
            "cd -- \"$IMGCTL_ROOTFS\"\n\
             if [ -x hooks/can-upgrade ]; then exec hooks/can-upgrade; else exec bash hooks/can-upgrade; fi"
                .to_owned(),
            "hooks/can-upgrade",
        ),
        None => return Ok(None),
    };
    let line = Line {
        line,
        environment: environment("can-upgrade", step, document),
        input: Some(document.to_json()?),
        again: true,
        ..Line::default()
    };
    let says = format!("ask the image whether it can upgrade the current release: {what}");
    Ok(Some(Action::new("can-upgrade", says, move |site| site.run(&line).map(|_| ()))))
}

fn environment(moment: &str, step: &Move<'_>, document: &Document) -> Variables {
    let mut environment = step.to.environment_on(step.host, step.to.rootfs());
    let role = match step.place {
        Place::First | Place::ControlPlane => "control-plane",
        Place::Worker => "worker",
    };
    let node = document
        .hosts
        .get(&step.host.id())
        .and_then(|host| host.node.clone())
        .unwrap_or_else(|| step.host.id());
    environment.extend(
        [
            ("IMGCTL_PHASE", moment.to_owned()),
            ("IMGCTL_FROM_VERSION", document.from.version.clone()),
            ("IMGCTL_TO_VERSION", document.target().version.clone()),
            ("IMGCTL_NODE", node),
            ("IMGCTL_ROLE", role.to_owned()),
            ("IMGCTL_ROOTFS", step.tree.clone()),
            ("IMGCTL_UPGRADE_ID", document.id.clone()),
            ("IMGCTL_BACKUP", step.backup()),
            ("IMGCTL_DRY_RUN", "false".to_owned()),
            ("IMGCTL_ATTEMPT", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    environment
}
