//! Registry actions of one host, in order. Must not depend on the content of the shell lines.

use std::time::Duration;

use crate::{Action, ImageFiles, action::Line, registry::lines};
use imgctl_base::error::Result;
use imgctl_base::quote::quote;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, Host, RegistryAccess};
use imgctl_model::image::ClusterImage;
use imgctl_model::registry_access::htpasswd;

/// Labels and default scripts of images that include their own registry.
const START: (&str, &str) = ("init-registry", "init-registry.sh");
const CLEAN: (&str, &str) = ("clean-registry", "clean-registry.sh");
/// Time to wait for the registry to respond: starting an image's registry unpacks and starts one
/// program.
const ANSWERS: Duration = Duration::from_secs(180);

pub(super) fn serves(context: &ClusterContext, host: &Host) -> bool {
    context.registry.is_some() && context.serves_registry(host)
}

/// Starts the registry on `host`. Does nothing on a host that is not a registry host. Idempotent.
pub fn registry_steps(
    context: &ClusterContext,
    host: &Host,
    files: &dyn ImageFiles,
) -> Result<Vec<Action>> {
    let Some(access) = context.registry.as_ref().filter(|_| serves(context, host)) else {
        return Ok(Vec::new());
    };
    let mut actions = Vec::new();
    if access.needs_login() {
        actions.push(users(context, access));
    }
    actions.push(Action::command("registry-data", lines::link_data(context, access)));
    match script(context, files, START)? {
        Some(value) => actions.push(
            Action::script(
                "registry-start",
                &value,
                context.paths.scripts(),
                context.environment_on(host, context.rootfs()),
            )
            .bringing(&context.rootfs_content()),
        ),
        None => actions.push(lines::start_unit(context, access)),
    }
    let answers =
        says(lines::wait(access, &lines::unit_name(context)), "registry-answers", "wait until");
    actions.push(answers.within(ANSWERS));
    let verify =
        says(lines::verify(context, access), "registry-images", "check that every image of");
    actions.push(verify.bringing(&context.registry_content()));
    Ok(actions)
}

/// Removes the registry from `host`, which serves it or has served it, even if it is incomplete. Its
/// data is removed with the cluster's root.
pub fn clean_steps(
    context: &ClusterContext,
    host: &Host,
    files: &dyn ImageFiles,
) -> Result<Vec<Action>> {
    let Some(access) = &context.registry else {
        return Ok(Vec::new());
    };
    let stop = match script(context, files, CLEAN)? {
        Some(value) => {
            let scripts = context.paths.scripts();
            // A partially set up host can lack the scripts.
            let line = Line {
                environment: context.environment_on(host, context.rootfs()),
                ..Line::new(format!("cd {} 2>/dev/null || exit 0\nbash {value}", quote(&scripts)))
            };
            Action::command("registry-clean", line)
        }
        None => lines::stop_unit(context),
    };
    let unlink = Action::command("registry-unlink", lines::unlink_data(context, access));
    Ok(vec![stop, unlink])
}

/// Removes imgctl's own registry from a host that does not serve, if one is left there. Scripts of
/// images know nothing of such hosts.
pub fn clean_leftovers(context: &ClusterContext) -> Option<Action> {
    context.registry.as_ref().map(|_| lines::stop_unit(context))
}

/// Shortens what a plan shows of a request line: the line itself is long and says little.
fn says(line: Line, name: &str, doing: &str) -> Action {
    let says = match line.environment.get(lines::PORT) {
        Some(port) => format!("{doing} the registry on port {port} answers"),
        None => format!("{doing} the registry answers"),
    };
    let inputs = line.line.clone();
    Action::depending_on(name, says, &inputs, move |site| site.run(&line).map(|_| ()))
}

/// Returns the image's own script: the label's value, or the default script if it exists.
fn script(
    context: &ClusterContext,
    files: &dyn ImageFiles,
    (label, default): (&str, &str),
) -> Result<Option<String>> {
    let Some(rootfs) = context.rootfs() else {
        return Ok(None);
    };
    if let Some(value) = rootfs.label(&[label]) {
        return Ok(Some(value.to_owned()));
    }
    // A patch can include the script.
    let is_patch = |image: &&ClusterImage| image.kind == imgctl_model::image::ImageKind::Patch;
    for image in std::iter::once(rootfs).chain(context.images.iter().filter(is_patch)) {
        if files.read(image, &format!("scripts/{default}"))?.is_some() {
            return Ok(Some(default.to_owned()));
        }
    }
    Ok(None)
}

/// Writes the users' files. The hash is salted, so it is created when needed and not in the plan.
fn users(context: &ClusterContext, access: &RegistryAccess) -> Action {
    let paths = lines::users_files(context);
    let says = format!("write {} (mode 0600, user {})", paths.join(" and "), access.username);
    let access = access.clone();
    Action::depending_on("registry-users", says, "", move |site| {
        let Some(text) = htpasswd(&access, site.state())? else {
            return Ok(());
        };
        for path in &paths {
            let content = text.clone().into_bytes();
            site.agent.write_file(&FileToWrite { path: path.clone(), mode: 0o600, content })?;
        }
        Ok(())
    })
}
