#!/usr/bin/env bash
# Kernel modules, sysctls, swap, the Kubernetes binaries and kubelet's unit.
source "$(dirname "$0")/common.sh"

put 0644 ../etc/modules-load.d/kubernetes.conf /etc/modules-load.d/kubernetes.conf
while read -r module; do
  # In a container host or with a built-in module there is nothing to load.
  modprobe "$module" 2>/dev/null || say "module $module: not loaded (built in?)"
done <../etc/modules-load.d/kubernetes.conf
put 0644 ../etc/sysctl.d/90-kubernetes.conf /etc/sysctl.d/90-kubernetes.conf
sysctl --quiet --system || say "some sysctls could not be set"

if [[ -n $(swapon --show --noheadings) ]]; then
  swapoff --all
  sed -i.before-imgctl -E 's/^([^#].*[[:space:]]swap[[:space:]])/# \1/' /etc/fstab
  say "swap is off, also after a restart"
fi
if command -v setenforce >/dev/null; then
  setenforce 0 2>/dev/null || true
fi

for binary in ../bin/*; do
  put 0755 "$binary" "/usr/bin/$(basename "$binary")"
done
for plugin in ../cni/*; do
  put 0755 "$plugin" "/opt/cni/bin/$(basename "$plugin")"
done
put 0644 ../etc/systemd/system/kubelet.service /etc/systemd/system/kubelet.service
put 0644 ../etc/systemd/system/kubelet.service.d/10-kubeadm.conf /etc/systemd/system/kubelet.service.d/10-kubeadm.conf
mkdir -p /etc/kubernetes/manifests /var/lib/kubelet
# Enabled, not started: before kubeadm has run it would only fail.
systemctl daemon-reload
systemctl enable --quiet kubelet
say "ready for kubeadm $(/usr/bin/kubeadm version -o short 2>/dev/null || true)"
