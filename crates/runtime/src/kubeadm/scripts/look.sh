#!/bin/bash -e
# what a configuration of kubeadm depends on: one finding a line
# IMGCTL_SOCKETS: paths of sockets of container runtimes. IMGCTL_POLICY: path of the audit policy.

for socket in $IMGCTL_SOCKETS; do
  if [ -S "$socket" ]; then echo "socket $socket"; fi
done
if [ -e /etc/localtime ]; then echo localtime; fi
if [ -e "$IMGCTL_POLICY" ]; then echo audit; fi
# The kernel has IPVS, or a module of it.
if [ -e /proc/net/ip_vs ] || modprobe -n ip_vs 2>/dev/null; then echo ipvs; fi
# Each runtime reports its own driver; kubeadm defaults to systemd.
if command -v containerd >/dev/null 2>&1; then
  if ! containerd config dump 2>/dev/null | grep -q 'SystemdCgroup = true'; then echo containerd-cgroupfs; fi
fi
if command -v docker >/dev/null 2>&1; then docker info --format 'docker-{{.CgroupDriver}}' 2>/dev/null || true; fi
