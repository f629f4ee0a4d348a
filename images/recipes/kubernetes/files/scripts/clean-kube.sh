#!/usr/bin/env bash
# The reverse of init-kube.sh, and what kubelet, CNI and kube-proxy leave behind.
source "$(dirname "$0")/common.sh"

remove_service kubelet
# Mounts of Pods that kubelet did not get to take down, deepest first.
awk '$2 ~ "^/var/lib/kubelet/" {print $2}' /proc/mounts | sort -r | while read -r mount; do
  umount "$mount" || say "still busy: $mount"
done
rm -rf /etc/kubernetes /var/lib/kubelet /etc/cni /opt/cni /var/lib/cni /var/lib/etcd
for interface in kube-ipvs0 cni0 flannel.1 vxlan.calico; do
  ip link delete "$interface" 2>/dev/null || true
done
for binary in ../bin/*; do
  rm -f "/usr/bin/$(basename "$binary")"
done
rm -f /etc/sysctl.d/90-kubernetes.conf /etc/modules-load.d/kubernetes.conf
say "Kubernetes is gone from this host; firewall rules go with the next restart"
