#!/bin/bash -e
# k3s of the backup, and the data of a snapshot
# IMGCTL_SNAPSHOT: path of the snapshot; empty on servers other than the first, whose data moves away so that they join
# again. IMGCTL_BACKUP, IMGCTL_TREE: see steps.rs.
# shellcheck source=../../scripts/files.sh
. "$(dirname "$0")/../../scripts/files.sh"
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"
# shellcheck source=service.sh
. "$(dirname "$0")/service.sh"

backup=$IMGCTL_BACKUP snapshot=$IMGCTL_SNAPSHOT db=$data/server/db digest=
if [ -n "$snapshot" ]; then
  digest=$(sha256sum <"$snapshot")
  if [ "$(cat "$backup/restored" 2>/dev/null)" = "$digest" ]; then
    echo 'restored already'
    exit 0
  fi
fi
if systemctl is-active --quiet "$unit"; then
  echo 'k3s still runs here' >&2
  exit 1
fi
put_back
if [ -z "$snapshot" ]; then
  if [ -e "$backup/restored" ]; then exit 0; fi
  if [ -d "$db" ]; then
    rm -rf "$backup/db-before"
    mv "$db" "$backup/db-before"
  fi
else
  rm -f "$db/reset-flag"
  if [ -d "$backup/db" ] && [ ! -d "$db/etcd" ]; then
    rm -rf "$backup/db-before"
    mv "$db" "$backup/db-before"
    cp -a "$backup/db" "$db"
  else
    "$k3s" server --cluster-reset --cluster-reset-restore-path="$snapshot"
  fi
  sync -f "$data"
fi
printf '%s\n' "$digest" >"$backup/restored"
sync -f "$backup"
