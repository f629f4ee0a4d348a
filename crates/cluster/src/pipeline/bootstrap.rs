//! Preparation that every runtime needs on a host before the host joins a cluster, and how to undo
//! it.
//!
//! The order follows sealos: the image's check, names, registry, container runtime, init; undone in
//! reverse. Only labels of the rootfs image name scripts.

use crate::cluster::context::ClusterContext;
use crate::cluster::host::Host;
use crate::pipeline::execution_context::ExecutionContext;
use crate::runtime::Action;
use crate::runtime::action::Line;
use crate::runtime::leftovers;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_host::agent::protocol::HostsBlock;

/// Returns the image's own preflight check. Its output is for the operator.
pub(crate) fn preflight(context: &ClusterContext, host: &Host) -> Vec<Action> {
    script(context, host, "check", &["check"], Some("check.sh")).into_iter().collect()
}

/// Returns the action that writes the cluster's block in the hosts file.
pub(crate) fn names(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    host: &Host,
) -> Action {
    let mut entries = Vec::new();
    if let Some(registry) = &context.registry {
        let hosts = context.registry_hosts();
        let own = hosts.iter().find(|other| other.address == host.address);
        if let Some(serving) = own.or(hosts.first()) {
            entries.push((serving.ip().to_owned(), registry.domain.clone()));
        }
    }
    for entry in execution.runtime.hosts_entries(context, host) {
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    set_names("hosts", context, entries)
}

fn set_names(name: &str, context: &ClusterContext, entries: Vec<(String, String)>) -> Action {
    let says = if entries.is_empty() {
        "remove imgctl's lines from the hosts file".to_owned()
    } else {
        let lines: Vec<String> =
            entries.iter().map(|(address, name)| format!("{address} {name}")).collect();
        format!("hosts file: {}", lines.join(", "))
    };
    let block = HostsBlock { cluster: context.name.clone(), entries };
    Action::new(name, says, "", move |site| site.agent.set_hosts(&block).map(|_| ()))
}

/// Returns the actions for the container runtime, the image's `init`, and the runtime's own
/// preparation.
pub(crate) fn prepare(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    host: &Host,
) -> Result<Vec<Action>> {
    let mut actions = Vec::new();
    actions.extend(script(context, host, "init-cri", &["init-cri"], None));
    if inits_every_host(execution) {
        actions.extend(script(context, host, "init", &["init"], Some("init.sh")));
    }
    actions.extend(execution.runtime.prepare(context, host)?);
    Ok(actions)
}

/// Returns whether `init` is a step of each host. The runtime `script` starts the cluster with
/// `init` instead.
fn inits_every_host(execution: &ExecutionContext<'_>) -> bool {
    execution.runtime.name() != "script"
}

/// Returns the actions that remove everything from a host: the runtime's part first, names and
/// files last.
pub(crate) fn clean(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    host: &Host,
) -> Result<Vec<Action>> {
    let mut actions = execution.runtime.reset(context, host)?;
    actions.extend(script(context, host, "clean", &["clean"], Some("clean.sh")));
    actions.extend(script(context, host, "clean-cri", &["clean-cri"], None));
    if execution.runtime.has_api() {
        actions.push(leftovers::pods());
    }
    let serves = |other: &&Host| other.address == host.address;
    let registry_role = host.has_role(crate::cluster::host::REGISTRY);
    if registry_role || context.registry_hosts().iter().any(serves) {
        actions.extend((execution.clean_registry)(context, host)?);
    }
    actions.push(set_names("hosts-clean", context, Vec::new()));
    actions.push(remove_files(context));
    Ok(actions)
}

/// Returns the action that removes the cluster's files from a host. It reports files that cannot be
/// removed.
fn remove_files(context: &ClusterContext) -> Action {
    let root = context.paths.root();
    Action::new("files", format!("remove {root}"), "", move |site| {
        let left = site.agent.remove(std::slice::from_ref(&root))?;
        if left.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            Kind::CheckFailed,
            format!("{}: left behind: {}", site.agent.host(), left.join(", ")),
        )
        .hint("unmount it or stop the processes that use it, then run the same command again"))
    })
}

/// Returns the script named by the first of `labels` that the rootfs image has, otherwise `default`
/// if that file exists on the host.
fn script(
    context: &ClusterContext,
    host: &Host,
    name: &str,
    labels: &[&str],
    default: Option<&str>,
) -> Option<Action> {
    let rootfs = context.rootfs()?;
    let environment = context.environment_on(host, Some(rootfs));
    let scripts = context.paths.scripts();
    let content = context.rootfs_content();
    if let Some(value) = rootfs.label(labels) {
        // A host that never received its files has no script to run; only `clean` runs in that
        // case.
        return Some(if name.starts_with("clean") {
            Action::command(
                name,
                Line {
                    line: format!("if cd {} 2>/dev/null; then bash {value}; fi", quoted(&scripts)),
                    environment,
                    ..Line::default()
                },
            )
        } else {
            Action::script(name, value, scripts, environment).bringing(&content)
        });
    }
    let default = default?;
    let action = Action::command(
        name,
        Line {
            line: format!(
                "if [ -e {path} ]; then cd {directory} && bash {default}; fi",
                path = quoted(&format!("{scripts}/{default}")),
                directory = quoted(&scripts),
            ),
            environment,
            ..Line::default()
        },
    );
    Some(action.bringing(&content))
}

/// Quotes a word for the shell.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
