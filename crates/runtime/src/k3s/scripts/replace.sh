#!/bin/bash -e
# k3s and its unit, which become those of the image
# IMGCTL_BACKUP, IMGCTL_CLUSTER_ROOT, IMGCTL_TREE, IMGCTL_STARTED, IMGCTL_SERVER: see steps.rs.
# shellcheck source=../../scripts/files.sh
. "$(dirname "$0")/../../scripts/files.sh"
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"
# shellcheck source=service.sh
. "$(dirname "$0")/service.sh"

backup=$IMGCTL_BACKUP tree=$IMGCTL_TREE
touch_backup
if cmp -s "$tree/bin/k3s" "$k3s" && is_current; then
  echo 'k3s runs already'
  exit 0
fi
# A database other than etcd is only safe to copy while nothing writes to it.
db=$data/server/db
if [ "$IMGCTL_SERVER" = yes ] && [ -f "$db/state.db" ] && [ ! -d "$db/etcd" ] && [ ! -e "$backup/db" ]; then
  systemctl stop "$unit"
  rm -rf "$backup/db.new"
  cp -a "$db" "$backup/db.new"
  sync -f "$backup"
  mv "$backup/db.new" "$backup/db"
  echo "the database is kept in $backup/db"
fi
put "$tree/bin/k3s" "$k3s" 0755
replace() {
  if [ -f "$tree/$1" ] && [ -f "$2" ]; then
    if ours "$2" "$IMGCTL_CLUSTER_ROOT" "$1"; then
      put "$tree/$1" "$2" "$3"
    else
      echo "$2 was changed on this host: it stays"
    fi
  fi
}
replace etc/k3s.service /etc/systemd/system/k3s.service 0644
replace etc/registries.yaml /etc/rancher/k3s/registries.yaml 0600
start_k3s
