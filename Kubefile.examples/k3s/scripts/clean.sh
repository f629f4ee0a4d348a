#!/usr/bin/env bash
# Stops k3s and every container, removes its files.
#   clean.sh DATA
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}
[[ $data == /*/* ]] || die "refusing to remove $data"

remove_service k3s
# KillMode=process leaves the containers running, so that k3s can be restarted under them.
{ pgrep -f "^$data/data/[0-9a-f]+/bin/containerd-shim" || true; } | while read -r shim; do
  pkill -KILL -P "$shim" || true
  kill -KILL "$shim" || true
done
awk '$2 ~ "^(/run/k3s|/var/lib/kubelet|/run/netns/cni-)" {print $2}' /proc/mounts | sort -r | while read -r mount; do
  umount "$mount" || say "still busy: $mount"
done
for interface in cni0 flannel.1 kube-ipvs0; do
  ip link delete "$interface" 2>/dev/null || true
done
for name in kubectl crictl ctr; do
  if [[ $(readlink "/usr/local/bin/$name" || true) == k3s ]]; then
    rm -f "/usr/local/bin/$name"
  fi
done
rm -rf "$data" /run/k3s /etc/rancher /var/lib/kubelet /var/lib/cni /usr/local/bin/k3s /etc/sysctl.d/90-k3s.conf
rmdir "$(dirname "$data")" 2>/dev/null || true
say "k3s is gone from this host"
