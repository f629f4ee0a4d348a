#!/bin/bash -e
# the kubelet and its unit
# kubeadm has already written the new configuration; nothing reads it before the new kubelet starts.
# IMGCTL_TREE, IMGCTL_CLUSTER_ROOT, IMGCTL_STARTED: see target.rs.
# shellcheck source=../../../scripts/files.sh
. "$(dirname "$0")/../../../scripts/files.sh"
# shellcheck source=services.sh
. "$(dirname "$0")/services.sh"

tree=$IMGCTL_TREE
pid=$(systemctl show -p MainPID --value kubelet)
if cmp -s "$tree/bin/kubelet" "$(where kubelet)" && [ -e "$IMGCTL_STARTED" ] &&
  systemctl is-active --quiet kubelet && cmp -s "/proc/${pid:-0}/exe" "$tree/bin/kubelet"; then
  echo 'kubelet runs already'
  exit 0
fi
systemctl stop kubelet
put "$tree/bin/kubelet" "$(where kubelet)" 0755
for file in etc/systemd/system/kubelet.service etc/systemd/system/kubelet.service.d/10-kubeadm.conf; do
  [ -f "$tree/$file" ] && [ -f "/$file" ] || continue
  if ours "/$file" "$IMGCTL_CLUSTER_ROOT" "$file"; then
    put "$tree/$file" "/$file" 0644
  else
    echo "/$file was changed on this host: it stays"
  fi
done
start_kubelet
