#!/bin/bash -e
# the data of etcd as a new member, from the snapshot of a backup
# Data that this did not make itself stays as it is.
# IMGCTL_BACKUP: the directory with the backup. IMGCTL_LIST: name of the list of the files that static Pods name.
# IMGCTL_CONFIG: kubeadm's configuration. IMGCTL_DATA: the directory of etcd. IMGCTL_NAME, IMGCTL_PEER: the member's name
# and URL. IMGCTL_NEW_CLUSTER: a token of the new cluster. IMGCTL_TREE, IMGCTL_ROOTFS: see target.rs.
# shellcheck source=etcd-tool.sh
. "$(dirname "$0")/etcd-tool.sh"

backup=$IMGCTL_BACKUP data=$IMGCTL_DATA snapshot=$IMGCTL_BACKUP/snapshot.db
[ -s "$snapshot" ] || {
  echo "there is no snapshot $snapshot on this host" >&2
  exit 1
}
# etcd appends a SHA-256 sum to each snapshot and verifies it on restore. Reading that sum takes milliseconds;
# `sha256sum` of a large snapshot would take as long as the restore.
digest="$(stat -c %s "$snapshot") $(tail -c 32 "$snapshot" | od -An -v -tx1 | tr -d ' \n')"
if [ "$(cat "$backup/restored" 2>/dev/null)" = "$digest" ] && [ -d "$data/member" ]; then
  echo 'restored already'
  exit 0
fi
if (exec 3<>/dev/tcp/127.0.0.1/2379) 2>/dev/null; then
  echo 'an etcd runs here' >&2
  exit 1
fi
if [ -e "$data/member" ] && [ ! -e "$backup/restoring" ]; then
  echo "$data holds the data of another etcd: move it away" >&2
  exit 1
fi
: >"$backup/restoring"
if [ -e "$backup/files.tar" ]; then
  for part in ./bin ./files; do
    tar -C "$backup" --no-same-owner -xf "$backup/files.tar" "$part" 2>/dev/null || true
  done
fi
if [ -e "$backup/files/$IMGCTL_LIST" ]; then
  while read -r file; do
    if [ ! -e "$file" ] && [ -f "$backup/files$file" ]; then
      mkdir -p "$(dirname "$file")"
      install -m 0600 "$backup/files$file" "$file.imgctl-new"
      sync "$file.imgctl-new"
      mv "$file.imgctl-new" "$file"
      echo "$file is that of the backup"
    fi
  done <"$backup/files/$IMGCTL_LIST"
fi
image=$(kubeadm config images list --config "$IMGCTL_CONFIG" 2>/dev/null | grep '/etcd:' | head -n 1 || true)
find_tool_anywhere "$snapshot" "$data" "$image"
new=$(dirname "$data")/imgctl-etcd-restore
restore_into "$snapshot" "$new" --name "$IMGCTL_NAME" --initial-cluster "$IMGCTL_NAME=$IMGCTL_PEER" \
  --initial-cluster-token "$IMGCTL_NEW_CLUSTER" --initial-advertise-peer-urls "$IMGCTL_PEER"
mkdir -p -m 0700 "$data"
rm -rf "$data/member"
mv "$new/member" "$data/member"
rm -rf "$new"
sync -f "$data"
printf '%s\n' "$digest" >"$backup/restored"
sync -f "$backup"
echo "the data of etcd is that of $snapshot"
