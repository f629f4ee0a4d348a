#!/bin/bash -e
# the data of etcd, from a snapshot
# It is restored beside the old data, and replaces it at the end; the old data is kept in the backup.
# IMGCTL_SNAPSHOT: path of the snapshot. IMGCTL_DATA: the directory of etcd. IMGCTL_IMAGE: its image. IMGCTL_NAME,
# IMGCTL_PEER: this member's name and URL. IMGCTL_MEMBERS: NAME=URL of all members. IMGCTL_NEW_CLUSTER: a token of the new cluster.
# IMGCTL_BACKUP, IMGCTL_TREE, IMGCTL_ROOTFS: see target.rs.
# shellcheck source=etcd-tool.sh
. "$(dirname "$0")/etcd-tool.sh"

snapshot=$IMGCTL_SNAPSHOT data=$IMGCTL_DATA backup=$IMGCTL_BACKUP
[ -s "$snapshot" ] || {
  echo "there is no snapshot $snapshot on this host" >&2
  exit 1
}
digest=$(sha256sum <"$snapshot")
if [ "$(cat "$backup/restored" 2>/dev/null)" = "$digest" ]; then
  echo 'restored already'
  exit 0
fi
if (exec 3<>/dev/tcp/127.0.0.1/2379) 2>/dev/null; then
  echo 'etcd still runs here' >&2
  exit 1
fi
find_tool_anywhere "$snapshot" "$data" "$IMGCTL_IMAGE"
new=$(dirname "$data")/imgctl-etcd-restore
restore_into "$snapshot" "$new" --name "$IMGCTL_NAME" --initial-cluster "$IMGCTL_MEMBERS" \
  --initial-cluster-token "$IMGCTL_NEW_CLUSTER" --initial-advertise-peer-urls "$IMGCTL_PEER"
if [ -e "$data/member" ]; then
  rm -rf "$backup/etcd-before"
  mkdir -m 0700 "$backup/etcd-before"
  mv "$data/member" "$backup/etcd-before/"
fi
mkdir -p -m 0700 "$data"
mv "$new/member" "$data/member"
rm -rf "$new"
sync -f "$data"
# Members of a restored cluster have other ids than before.
rm -f "$backup/etcd-members.json"
printf '%s\n' "$digest" >"$backup/restored"
sync -f "$backup"
echo "the data of etcd is that of $snapshot"
