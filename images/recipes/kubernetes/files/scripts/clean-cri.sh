#!/usr/bin/env bash
# Stops every container, then containerd; removes its data.
#   clean-cri.sh DATA
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}
[[ $data == /*/* ]] || die "refusing to remove $data"

if command -v ctr >/dev/null && ctr version >/dev/null 2>&1; then
  ctr -n k8s.io tasks list -q | while read -r task; do
    ctr -n k8s.io tasks kill -s SIGKILL "$task" >/dev/null 2>&1 || true
  done
fi
remove_service containerd
awk '$2 ~ "^/run/containerd/" {print $2}' /proc/mounts | sort -r | while read -r mount; do
  umount "$mount" || say "still busy: $mount"
done
for binary in ../cri/*; do
  rm -f "/usr/local/bin/$(basename "$binary")"
done
rm -rf "$data" /run/containerd /etc/containerd /etc/crictl.yaml
say "containerd is gone from this host"
