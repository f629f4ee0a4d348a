#!/bin/bash -e
# what Pods leave when no container is running
# With the systemd cgroup driver, slices are units; with the other driver, they are only directories. A mount point is kept,
# without its content. IMGCTL_LOGS: the directory of logs. IMGCTL_CGROUPS: that of control groups.

for directory in "$IMGCTL_LOGS/pods" "$IMGCTL_LOGS/containers"; do
  [ -d "$directory" ] || continue
  find -H "$directory" -xdev -mindepth 1 -delete
  rmdir "$directory" 2>/dev/null || true
done
if command -v systemctl >/dev/null 2>&1; then
  units=$(systemctl list-units --all --plain --no-legend --no-pager --type=slice 'kubepods*' 2>/dev/null || true)
  while read -r unit _; do
    case $unit in kubepods*.slice) systemctl stop "$unit" || true ;; esac
  done <<<"$units"
fi
top=$IMGCTL_CGROUPS
for tree in "$top/kubepods" "$top/kubepods.slice" "$top"/*/kubepods "$top"/*/kubepods.slice; do
  [ -d "$tree" ] || continue
  find "$tree" -depth -type d -exec rmdir {} + 2>/dev/null || true
  [ ! -d "$tree" ] || echo "$tree is left: processes of Pods still run in it" >&2
done
