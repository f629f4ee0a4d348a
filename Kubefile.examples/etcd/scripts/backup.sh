#!/usr/bin/env bash
# Leaves a verified snapshot of the whole cluster in $IMGCTL_BACKUP/snapshot.db, and what it is of in
# snapshot.txt. Changes nothing else. A repeated run takes a newer one.
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
target=${IMGCTL_BACKUP:-$etcdSnapshotDir/$(date -u +%Y%m%dT%H%M%SZ)}

# The data may take longer than any question.
save() { ETCDCTL_API=3 "$rootfs/bin/etcdctl" "${papers[@]}" --dial-timeout=3s --command-timeout=1h --endpoints="$(client_url "$HOST_IP")" snapshot save "$1"; }

install -d -m 0700 "$target"
free=$(df -Pk "$target" | awk 'NR == 2 {print int($4 / 1024)}')
size=$(here endpoint status -w json | sed -n 's/.*"dbSize":\([0-9]*\).*/\1/p')
((free > size / 1048576 + 64)) || die "only $free MiB free at $target; the data is $((size / 1048576)) MiB"

rm -f "$target"/snapshot.db.part*
patiently save "$target/snapshot.db.part" >/dev/null || die "no snapshot can be taken at $(client_url "$HOST_IP")"
# hash, revision, total keys, total size; this reads the whole file and checks its sum.
facts=$(snapshot_tool status "$target/snapshot.db.part") || die "the snapshot in $target cannot be read"
IFS=', ' read -r hash revision keys _ <<<"$facts"
# Members are keys, too; a cluster without data has revision 0.
((keys > 0)) || die "the snapshot in $target is empty: $facts"
chmod 0600 "$target/snapshot.db.part"
mv "$target/snapshot.db.part" "$target/snapshot.db"
{
  echo "hash $hash revision $revision keys $keys etcd $(versions_at "$HOST_IP")"
  here member list
} >"$target/snapshot.txt"
sync "$target/snapshot.db" "$target/snapshot.txt" "$target"
say "snapshot of revision $revision, $keys keys: $target/snapshot.db"
