//! Backup of a host before it is changed: files, programs, and their checksums.

use std::time::Duration;

use crate::runtime::action::{Action, Line};
use crate::runtime::kubeadm::upgrade::target::Target;
use crate::runtime::put;
use crate::runtime::upgrade::Move;

/// Label with the minimum version of the container runtime. The runtime is replaced only if an
/// image sets it.
pub(super) const RUNTIME_LABEL: &str = "imgctl.io/cri-version";

/// Returns the runtime version that the image requires.
pub(super) fn wanted_runtime<'a>(step: &Move<'a>) -> Option<&'a str> {
    step.to.rootfs()?.label(&[RUNTIME_LABEL])
}

pub(super) fn files(step: &Move<'_>, target: &Target) -> Action {
    let programs = if wanted_runtime(step).is_some() {
        // Back up every program that would be replaced.
        "\"$root\"/rootfs/bin/* \"$tree\"/bin/* \"$tree\"/cri/*"
    } else {
        "\"$root\"/rootfs/bin/* \"$tree\"/bin/*"
    };
    let line = format!(
        "{functions}backup={backup} root={root} tree={tree}\n\
         mkdir -p \"$backup\"; chmod 0700 \"$backup\"; cd \"$backup\"\n\
         if [ -e {touched} ] && [ -s host.sha256 ]; then\n\
         sha256sum --quiet -c host.sha256\n\
         echo 'the host has been touched since: what it was before is kept'; exit 0\n\
         fi\n\
         rm -rf files.new host.sha256; mkdir -m 0700 files.new\n\
         keep() {{ local file; for file; do if [ -e \"$file\" ]; then (cd / && cp -a --parents \".$file\" {backup}/files.new/); fi; done; }}\n\
         keep /etc/kubernetes/pki /etc/kubernetes/manifests /etc/kubernetes/*.conf /etc/kubernetes/audit-policy.yml\n\
         keep /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /var/lib/kubelet/instance-config.yaml\n\
         keep /etc/default/kubelet /etc/sysconfig/kubelet\n\
         for directory in /etc/systemd/system /usr/lib/systemd/system; do\n\
         keep \"$directory\"/kubelet.service \"$directory\"/kubelet.service.d\n\
         done\n\
         keep /etc/containerd /etc/crictl.yaml /etc/docker/daemon.json /etc/crio\n\
         for program in kubeadm kubelet kubectl {programs}; do\n\
         keep \"$(type -P \"$(basename \"$program\")\" || true)\"\n\
         done\n\
         rm -rf files; mv files.new files\n\
         find files -type f -print0 | sort -z | xargs -0 -r sha256sum >host.sha256.new\n\
         [ -s host.sha256.new ] || {{ echo \"nothing of Kubernetes was found on this host\" >&2; exit 1; }}\n\
         sha256sum --quiet -c host.sha256.new\n\
         sync -f .; mv host.sha256.new host.sha256; sync -f .\n\
         echo \"$(wc -l <host.sha256) files are kept in $backup/files\"",
        functions = put::FUNCTIONS,
        backup = target.backup,
        root = target.root,
        tree = target.tree,
        touched = target.touched(),
    );
    Action::command("backup", Line::repeatable(line))
        .within(Duration::from_secs(600)).saying(format!(
        "back up to {}/files: /etc/kubernetes (pki, manifests, *.conf), kubelet's configuration \
         and unit, the configuration of the container runtime, the programs; with checksums",
        target.backup
    ))
}
