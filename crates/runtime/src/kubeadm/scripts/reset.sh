#!/bin/bash -e
# kubeadm reset
# kubeadm does not unmount what it cannot remove, and waits for an API that is gone; later steps remove what it leaves.

if command -v kubeadm >/dev/null 2>&1; then
  socket=()
  for path in /var/run/crio/crio.sock /run/containerd/containerd.sock /var/run/cri-dockerd.sock; do
    if [ -S "$path" ]; then socket=(--cri-socket "unix://$path"); fi
  done
  kubeadm reset -f "${socket[@]}" || echo "kubeadm reset ended with $?: what it left is removed below" >&2
fi
if command -v systemctl >/dev/null 2>&1; then systemctl stop kubelet >/dev/null 2>&1 || true; fi
awk '$2 ~ "^/var/lib/kubelet/" {print $2}' /proc/mounts | sort -r | while read -r mount; do umount "$mount" || true; done
kube=$HOME/.kube
if [ -e "$kube/config" ] && grep -q apiserver.cluster.local "$kube/config"; then
  rm -f "$kube/config"
  rm -rf "$kube/cache"
fi
if [ -e "$kube/config.before-imgctl" ]; then mv -f "$kube/config.before-imgctl" "$kube/config"; fi
if [ -d "$kube" ]; then rmdir "$kube" 2>/dev/null || true; fi
