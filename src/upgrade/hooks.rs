//! What images have to say and to do around an upgrade: `hooks/<moment>.d/*`, `can-upgrade`.
//!
//! Exit codes of hooks: 0 done, 10 was done already, 20 not now, all others are failures.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::runtime::Action;
use crate::runtime::action::Line;
use crate::runtime::upgrade::{Move, Place};
use crate::upgrade::document::Document;

/// The hooks of one moment (`pre-node`), out of the tree that the host gets, in the order of their
/// names.
pub(super) fn run(moment: &str, step: &Move<'_>, document: &Document) -> Action {
    let directory = format!("{}/hooks/{moment}.d", step.tree);
    let line = format!(
        "cd '{directory}' 2>/dev/null || exit 0\n\
         for hook in *; do\n\
           [ -f \"$hook\" ] || continue\n\
           echo \"hook {moment}.d/$hook\"\n\
           code=0\n\
           if [ -x \"$hook\" ]; then ./\"$hook\" || code=$?; else bash \"$hook\" || code=$?; fi\n\
           case $code in\n\
             0) ;;\n\
             10) echo \"hook {moment}.d/$hook: was done already\" ;;\n\
             20) echo \"hook {moment}.d/$hook: not now; resume the upgrade later\" >&2; exit 20 ;;\n\
             *) echo \"hook {moment}.d/$hook failed with exit code $code\" >&2; exit $code ;;\n\
           esac\n\
         done"
    );
    let says = format!("run the hooks in {directory}, if there are any");
    let line = Line {
        line,
        environment: environment(moment, step, document),
        ..Line::default()
    };
    let inputs = format!("{:?}", line.environment);
    Action::new(moment, says, &inputs, move |site| {
        site.run(&line).map(|_| ())
    })
}

/// The new image is asked whether it can follow on what is there: label `can-upgrade`, or a file
/// `hooks/can-upgrade`. It gets the plan on its standard input; its answer is its exit code, and
/// what it prints is the reason.
pub(super) fn can_upgrade(step: &Move<'_>, document: &Document) -> Result<Action> {
    let tree = &step.tree;
    let label = step
        .to
        .rootfs()
        .and_then(|image| image.label(&["can-upgrade"]));
    let line = match label {
        Some(value) => format!("cd '{tree}/scripts' && bash {value}"),
        None => format!(
            "cd '{tree}' && [ -f hooks/can-upgrade ] || exit 0; \
             if [ -x hooks/can-upgrade ]; then ./hooks/can-upgrade; else bash hooks/can-upgrade; fi"
        ),
    };
    let line = Line {
        line,
        environment: environment("can-upgrade", step, document),
        input: Some(document.to_json()?),
        again: true,
        ..Line::default()
    };
    let says = "ask the image whether it can follow on what is there (`can-upgrade`)";
    Ok(Action::new("can-upgrade", says, "", move |site| {
        site.run(&line).map(|_| ())
    }))
}

fn environment(moment: &str, step: &Move<'_>, document: &Document) -> BTreeMap<String, String> {
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
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    environment
}
