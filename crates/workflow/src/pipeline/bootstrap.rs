//! Preparation that every runtime needs on a host before the host joins a cluster, and how to undo
//! it, with what kubelets leave behind.
//!
//! The order follows sealos: the image's check, names, registry, container runtime, init; undone in
//! reverse. Only labels of the rootfs image name scripts.

use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::host_names;
use crate::pipeline::step::{Order, Phase};
use imgctl_base::error::Result;
use imgctl_base::quote::quote as quoted;
use imgctl_model::context::{ClusterContext, Host, REGISTRY};
use imgctl_runtime::registry::{self, clients, peers};
use imgctl_runtime::renewal::timer;
use imgctl_runtime::{Action, action::Line, units};

/// Returns the image's own preflight check. Its output is for the operator.
pub(crate) fn preflight(context: &ClusterContext, host: &Host) -> Vec<Action> {
    script(context, host, "check", &["check"], Some("check.sh")).into_iter().collect()
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
    if inits_every_host(execution) {
        actions.extend(clients::joining(context, host));
    }
    actions.extend(execution.runtime.prepare(context, host)?);
    Ok(actions)
}

/// Returns the phase that tells containerd the registry hosts, for runtimes whose scripts install it
/// with the cluster.
pub(crate) fn clients_of_scripts(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    new: &[&Host],
) -> Result<Phase> {
    let hosts = new.iter().copied().filter(|_| !inits_every_host(execution));
    Phase::new("registry-clients-new", Order::Parallel)
        .over(hosts, |host| Ok(clients::joining(context, host)))
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
    let mut actions = Vec::new();
    if host.is_control_plane() {
        actions.push(stop_backups(context));
    }
    actions.push(timer::removal(context));
    actions.extend(clients::clean(context));
    actions.extend(context.share_images.map(|_| peers::stop(context)));
    actions.extend(execution.runtime.reset(context, host)?);
    actions.extend(script(context, host, "clean", &["clean"], Some("clean.sh")));
    actions.extend(script(context, host, "clean-cri", &["clean-cri"], None));
    if execution.runtime.has_api() {
        actions.push(remove_pod_leftovers());
    }
    // A host that leaves is not among those that serve.
    if host.has_role(REGISTRY) || context.serves_registry(host) {
        actions.extend((execution.clean_registry)(context, host)?);
    } else {
        // Its role of today says nothing about a unit that it got for a former one.
        actions.extend(registry::clean_leftovers(context));
    }
    actions.push(host_names::removal(context));
    actions.push(remove_files(context));
    Ok(actions)
}

/// Returns the name of the units of backups that a timer makes on a control plane.
pub(crate) fn backup_unit(context: &ClusterContext) -> String {
    format!("imgctl-backup-{}", context.name)
}

/// Returns the action that removes the timer of backups, if there is one.
pub(crate) fn stop_backups(context: &ClusterContext) -> Action {
    let unit = backup_unit(context);
    let line = units::removal(&[&format!("{unit}.timer"), &format!("{unit}.service")], &[]);
    Action::command("backup-timer", line)
        .saying(format!("remove the timer {unit}, if there is one"))
}

/// Returns the action that removes the cluster's files from a host. It reports files that cannot be
/// removed.
fn remove_files(context: &ClusterContext) -> Action {
    let root = context.paths.root();
    Action::new("files", format!("remove {root}"), move |site| site.remove(&root))
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
    let cleans = name.starts_with("clean");
    let rootfs = if cleans { context.cleaning_rootfs() } else { context.rootfs() }?;
    let environment = context.environment_on(host, Some(rootfs));
    let scripts = context.paths.scripts();
    let content = context.rootfs_content();
    if let Some(value) = rootfs.label(labels) {
        // A host that never received its files has no script to run; only `clean` runs in that
        // case.
        return Some(if cleans {
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

/// Removes the remains of Pods, if any. Runs last, when no container is running.
fn remove_pod_leftovers() -> Action {
    Action::command("pod-leftovers", leftovers("/var/log", "/sys/fs/cgroup")).saying(
        "remove /var/log/pods and /var/log/containers\nstop kubepods.slice and its children",
    )
}

fn leftovers(logs: &str, cgroups: &str) -> Line {
    Line::script(&[include_str!("scripts/remove-pod-leftovers.sh")])
        .with([("IMGCTL_LOGS", logs), ("IMGCTL_CGROUPS", cgroups)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::{image::ImageKind, testing};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_image_that_a_failed_run_brought_cleans_hosts_of_a_cluster_without_one() {
        let mut context = testing::context(&["master", "node"]);
        let mut image = testing::image("kubernetes:v1", ImageKind::Rootfs);
        image.labels.insert("clean".into(), "clean.sh --all".into());
        context.adopted = Some(testing::image("adopted", ImageKind::Rootfs));
        context.unfinished = Some(image.clone());
        let cleans = |context: &ClusterContext| {
            let host = &context.hosts[1];
            let action = script(context, host, "clean", &["clean"], Some("clean.sh")).unwrap();
            action.says.join("\n")
        };
        let line = cleans(&context);
        assert!(line.contains("bash clean.sh --all"), "{line}");
        // Once the cluster has an image, that one counts.
        image.labels.insert("clean".into(), "other.sh".into());
        context.images = vec![image];
        let line = cleans(&context);
        assert!(line.contains("bash other.sh"), "{line}");
    }

    /// systemctl is a stand-in, so that a test never stops real units.
    #[test]
    fn logs_and_slices_of_pods_go_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let make = |path: &str| std::fs::create_dir_all(root.join(path)).unwrap();
        make("log/pods/a_b_c/web");
        std::fs::write(root.join("log/pods/a_b_c/web/7.log"), "x").unwrap();
        make("log/containers");
        std::os::unix::fs::symlink("../pods/gone", root.join("log/containers/web.log")).unwrap();
        make("log/journal");
        make("cgroup/kubepods.slice/kubepods-burstable.slice");
        make("cgroup/cpu/kubepods/pod1");
        make("cgroup/system.slice");
        make("bin");
        let systemctl = root.join("bin/systemctl");
        let script = format!(
            "#!/bin/bash\n[ $1 = stop ] && echo \"$2\" >>{0}/stopped\n\
             [ $1 = list-units ] && printf 'kubepods.slice loaded active\\nkubepods-pod1.slice loaded active\\n'\nexit 0\n",
            root.display()
        );
        std::fs::write(&systemctl, script).unwrap();
        std::fs::set_permissions(&systemctl, PermissionsExt::from_mode(0o755)).unwrap();
        let (logs, cgroups) = (root.join("log"), root.join("cgroup"));
        let line = leftovers(logs.to_str().unwrap(), cgroups.to_str().unwrap());
        // The second run has nothing to do.
        for _ in 0..2 {
            let ran = std::process::Command::new("bash")
                .args(["-e", "-c", &line.line])
                .envs(line.environment.to_map())
                .env("PATH", format!("{}:/usr/bin:/bin", root.join("bin").display()))
                .output()
                .unwrap();
            assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
        }
        let left = |path: &str| root.join(path).exists();
        for gone in ["log/pods", "log/containers", "cgroup/kubepods.slice", "cgroup/cpu/kubepods"] {
            assert!(!left(gone), "{gone}");
        }
        assert!(left("log/journal") && left("cgroup/system.slice") && left("cgroup/cpu"));
        let stopped = std::fs::read_to_string(root.join("stopped")).unwrap();
        assert!(stopped.starts_with("kubepods.slice\nkubepods-pod1.slice\n"), "{stopped}");
    }
}
