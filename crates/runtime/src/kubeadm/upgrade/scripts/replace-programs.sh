#!/bin/bash -e
# all programs of the image except the kubelet, which still runs its old version
# Prints the version of kubeadm. IMGCTL_BACKUP, IMGCTL_CLUSTER_ROOT, IMGCTL_TREE: see target.rs.
# shellcheck source=../../../scripts/files.sh
. "$(dirname "$0")/../../../scripts/files.sh"

backup=$IMGCTL_BACKUP tree=$IMGCTL_TREE
mkdir -p "$backup"
[ -e "$backup/touched" ] || {
  : >"$backup/touched"
  sync -f "$backup"
}
put "$tree/bin/kubeadm" "$(where kubeadm)" 0755
put "$tree/bin/kubectl" "$(where kubectl)" 0755
for file in "$tree"/bin/*; do
  name=$(basename "$file")
  there=$(type -P "$name" || true)
  case $name in kubeadm | kubectl | kubelet) continue ;; esac
  if [ -f "$file" ] && [ -n "$there" ] && ours "$there" "$IMGCTL_CLUSTER_ROOT" "bin/$name"; then put "$file" "$there" 0755; fi
done
"$(where kubeadm)" version -o short
