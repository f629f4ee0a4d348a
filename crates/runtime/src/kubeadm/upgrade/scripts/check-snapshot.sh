#!/bin/bash -e
# what the restore of a snapshot of etcd needs
# IMGCTL_SNAPSHOT: path of the snapshot. IMGCTL_DATA: the directory of etcd. IMGCTL_IMAGE: its image.
# IMGCTL_BACKUP, IMGCTL_TREE, IMGCTL_ROOTFS: see target.rs.
# shellcheck source=etcd-tool.sh
. "$(dirname "$0")/etcd-tool.sh"

snapshot=$IMGCTL_SNAPSHOT backup=$IMGCTL_BACKUP parent=$(dirname "$IMGCTL_DATA")
[ -s "$snapshot" ] || {
  echo "there is no snapshot $snapshot on this host" >&2
  exit 1
}
[ -s "$backup/host.sha256" ] || {
  echo "there is no backup in $backup: what this host was before is not known" >&2
  exit 1
}
(cd "$backup" && sha256sum --quiet -c host.sha256)
find_tool_anywhere "$snapshot" "$IMGCTL_DATA" "$IMGCTL_IMAGE"
"${tool[@]}" snapshot status "$snapshot" -w json
needed=$(($(stat -c %s "$snapshot") / 1024 + 131072)) free=$(df -Pk "$parent" | awk 'NR == 2 { print $4 }')
[ "$free" -ge "$needed" ] || {
  echo "$parent has $free KiB free, and the restored data needs $needed" >&2
  exit 1
}
echo "${tool[*]} restores $snapshot"
