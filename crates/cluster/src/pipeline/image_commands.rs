//! Image commands: those of rootfs images and patches run on every host of the operation, those of
//! applications on the first control plane.

use crate::cluster::context::ClusterContext;
use crate::cluster::host::Host;
use crate::cluster::image::{ClusterImage, ImageKind};
use crate::cluster::paths::Paths;
use crate::pipeline::bootstrap::quoted;
use crate::pipeline::commands;
use crate::pipeline::step::{Lane, Order, Phase};
use crate::runtime::Action;
use crate::runtime::action::Line;

/// `--cmd`: replaces the `CMD` of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Name of the image in `spec.image`.
    pub image: String,
    pub command: Vec<String>,
}

/// Returns the commands of one image as a phase. Images run one after the other.
pub fn phase(
    context: &ClusterContext,
    image: &ClusterImage,
    hosts: &[Host],
    replacement: Option<&Replacement>,
) -> Phase {
    let first: Vec<Host> = context.first().cloned().into_iter().collect();
    let hosts = match image.kind {
        ImageKind::Application => &first,
        ImageKind::Rootfs | ImageKind::Patch => hosts,
    };
    let mut phase = Phase::new("guest", Order::Parallel);
    for host in hosts {
        phase = phase.lane(Lane::on(host, actions(context, image, host, replacement)));
    }
    phase
}

fn actions(
    context: &ClusterContext,
    image: &ClusterImage,
    host: &Host,
    replacement: Option<&Replacement>,
) -> Vec<Action> {
    let replaced = replacement
        .filter(|replacement| replacement.image == image.name)
        .map(|replacement| replacement.command.as_slice());
    let lines = commands::lines(image, replaced);
    if lines.is_empty() {
        return Vec::new();
    }
    let environment = context.environment_on(host, Some(image));
    let workdir = workdir(context, image);
    let mut actions = Vec::new();
    if image.layers.iter().all(|layer| layer.registry) {
        // The image has only embedded images, so no tree was made for it.
        actions.push(Action::command(
            &format!("{}-workdir", image.mount_name),
            Line::new(format!("mkdir -p {}", quoted(&workdir))),
        ));
    }
    for (number, line) in (1..).zip(&lines) {
        actions.push(Action::command(
            &format!("{}-{number}", image.mount_name),
            Line {
                line: commands::expand(line, &environment),
                workdir: Some(workdir.clone()),
                environment: environment.clone(),
                ..Line::default()
            },
        ));
    }
    actions
}

/// Returns the directory in which the commands of `image` run.
pub(crate) fn workdir(context: &ClusterContext, image: &ClusterImage) -> String {
    match image.kind {
        ImageKind::Rootfs | ImageKind::Patch => context.paths.rootfs(),
        ImageKind::Application => {
            format!("{}/{}", context.paths.root(), Paths::application_tree(&image.mount_name))
        }
    }
}

/// Returns the directory of an application on the first control plane.
pub fn directory(context: &ClusterContext, mount_name: &str) -> String {
    format!("{}/applications/{mount_name}", context.paths.root())
}

/// Returns the actions that remove an application: the script in its label `uninstall` or `clean`,
/// otherwise a script of that name.
pub fn uninstall(context: &ClusterContext, image: &ClusterImage, host: &Host) -> Vec<Action> {
    let workdir = quoted(&workdir(context, image));
    let line = match image.label(&["uninstall", "clean"]) {
        Some(value) => format!("if cd {workdir} 2>/dev/null; then bash {value}; fi"),
        None => format!(
            "cd {workdir} 2>/dev/null || exit 0; \
             for script in scripts/uninstall.sh uninstall.sh scripts/clean.sh clean.sh; do \
             if [ -e $script ]; then bash $script; exit; fi; done"
        ),
    };
    let environment = context.environment_on(host, Some(image));
    vec![
        Action::command(
            &format!("{}-uninstall", image.mount_name),
            Line { line, environment, ..Line::default() },
        ),
        remove(context, &image.mount_name),
    ]
}

/// Removes the directory of an application.
pub fn remove(context: &ClusterContext, mount_name: &str) -> Action {
    let directory = directory(context, mount_name);
    let says = format!("remove {directory}");
    Action::new(&format!("{mount_name}-files"), says, "", move |site| {
        let left = site.agent.remove(std::slice::from_ref(&directory))?;
        if left.is_empty() {
            Ok(())
        } else {
            Err(imgctl_base::error::Error::new(
                imgctl_base::error::Kind::CheckFailed,
                format!("{}: left behind: {}", site.agent.host(), left.join(", ")),
            ))
        }
    })
}
