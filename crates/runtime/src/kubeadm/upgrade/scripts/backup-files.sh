#!/bin/bash -e
# what this host is before an upgrade, with checksums
# IMGCTL_BACKUP, IMGCTL_CLUSTER_ROOT, IMGCTL_TREE: see target.rs. IMGCTL_RUNTIME: true if the container runtime is replaced.
# shellcheck source=keep-files.sh
. "$(dirname "$0")/keep-files.sh"

begin_files
keep_kubernetes files.new
# Every program that would be replaced.
programs=(kubeadm kubelet kubectl "$IMGCTL_CLUSTER_ROOT"/rootfs/bin/* "$IMGCTL_TREE"/bin/*)
if [ "$IMGCTL_RUNTIME" = true ]; then programs+=("$IMGCTL_TREE"/cri/*); fi
for program in "${programs[@]}"; do
  keep files.new "$(type -P "$(basename "$program")" || true)"
done
list_files
[ -s host.sha256.new ] || {
  echo "nothing of Kubernetes was found on this host" >&2
  exit 1
}
sha256sum --quiet -c host.sha256.new
done_with_files
