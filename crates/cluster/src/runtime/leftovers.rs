//! Files that kubelets leave on a host after the cluster is removed: Pod logs and cgroups. A new
//! cluster on the host would report the restarts of the old one.

use crate::runtime::Action;
use crate::runtime::action::Line;

/// Removes the remains of Pods, if any. Runs last, when no container is running.
pub fn pods() -> Action {
    Action::command("pod-leftovers", Line::repeatable(line("/var/log", "/sys/fs/cgroup"))).saying(
        "remove /var/log/pods and /var/log/containers\nstop kubepods.slice and its children",
    )
}

/// Returns the shell line. With the systemd cgroup driver, slices are units; with the other driver,
/// they are only directories. A mount point is kept, without its content.
fn line(logs: &str, cgroups: &str) -> String {
    format!(
        "for directory in {logs}/pods {logs}/containers; do\n\
         [ -d \"$directory\" ] || continue\n\
         find -H \"$directory\" -xdev -mindepth 1 -delete\n\
         rmdir \"$directory\" 2>/dev/null || true\n\
         done\n\
         if command -v systemctl >/dev/null 2>&1; then\n\
         units=$(systemctl list-units --all --plain --no-legend --no-pager --type=slice 'kubepods*' 2>/dev/null || true)\n\
         while read -r unit _; do\n\
         case $unit in kubepods*.slice) systemctl stop \"$unit\" || true ;; esac\n\
         done <<<\"$units\"\n\
         fi\n\
         for tree in {cgroups}/kubepods {cgroups}/kubepods.slice {cgroups}/*/kubepods {cgroups}/*/kubepods.slice; do\n\
         [ -d \"$tree\" ] || continue\n\
         find \"$tree\" -depth -type d -exec rmdir {{}} + 2>/dev/null || true\n\
         [ ! -d \"$tree\" ] || echo \"$tree is left: processes of Pods still run in it\" >&2\n\
         done"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
        let text = line(root.join("log").to_str().unwrap(), root.join("cgroup").to_str().unwrap());
        // The second run has nothing to do.
        for _ in 0..2 {
            let ran = std::process::Command::new("bash")
                .args(["-e", "-c", &text])
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
