#!/bin/bash -e
# a snapshot of etcd: snapshot.db in the backup
# It is a bbolt file with more than its first pages, or nothing. IMGCTL_BACKUP: see steps.rs.
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

backup=$IMGCTL_BACKUP
mkdir -p "$backup"
cd "$backup"
if [ -e touched ] && [ -s snapshot.sha256 ]; then
  sha256sum --quiet -c snapshot.sha256
  echo 'the snapshot from before the host was touched is kept'
  exit 0
fi
if [ ! -d "$data/server/db/etcd" ]; then
  if [ -f "$data/server/db/state.db" ]; then
    echo 'k3s keeps its data in a file: it is copied when k3s stops'
  else
    echo 'k3s keeps its data elsewhere: make a backup there' >&2
  fi
  exit 0
fi
rm -rf snapshot.new snapshot.db snapshot.sha256
mkdir -m 0700 snapshot.new
"$k3s" etcd-snapshot save --name imgctl --dir "$backup/snapshot.new"
file=$(find snapshot.new -maxdepth 1 -type f -name 'imgctl*' | head -n 1)
[ -s "$file" ] || {
  echo 'k3s etcd-snapshot save left no snapshot' >&2
  exit 1
}
case $file in
  *.zip) ;;
  *)
    if [ "$(od -An -tx4 -j16 -N4 "$file" | tr -d ' ')" != ed0cdaed ] || [ "$(stat -c %s "$file")" -le 16384 ]; then
      echo "$file is no database of etcd" >&2
      exit 1
    fi
    ;;
esac
chmod 0600 "$file"
sync "$file"
mv -f "$file" snapshot.db
rm -rf snapshot.new
sha256sum snapshot.db >snapshot.sha256
sync -f .
echo "$backup/snapshot.db: $(stat -c %s snapshot.db) bytes"
