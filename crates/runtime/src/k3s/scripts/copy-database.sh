#!/bin/bash -e
# a database of k3s other than etcd
# Nothing may write to it meanwhile: with k3s stopped, its files belong together. Its containers keep running.
# IMGCTL_BACKUP: where the copy goes. IMGCTL_PATIENCE: seconds after which the host starts k3s by itself, if this is gone.
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

backup=$IMGCTL_BACKUP
mkdir -p -m 0700 "$backup"
chmod 0700 "$backup"
cd "$backup"
if [ -d "$data/server/db/etcd" ]; then exit 0; fi
if [ ! -f "$data/server/db/state.db" ]; then
  echo 'k3s keeps its data in an external database: a backup would be without it' >&2
  exit 1
fi
timer=imgctl-start-k3s
back() {
  systemctl start "$unit"
  systemctl stop "$timer.timer" 2>/dev/null || true
}
systemctl stop "$timer.timer" 2>/dev/null || true
systemd-run --quiet --collect --unit "$timer" --on-active="$IMGCTL_PATIENCE" systemctl start "$unit"
trap back EXIT
systemctl stop "$unit"
rm -rf db.new db
cp -a --reflink=auto "$data/server/db" db.new
if systemctl is-active --quiet "$unit"; then
  rm -rf db.new
  echo 'k3s was started while its data was copied: run the command again' >&2
  exit 1
fi
back
trap - EXIT
if [ "$(head -c 15 db.new/state.db)" != 'SQLite format 3' ]; then
  echo "$data/server/db/state.db is no database of SQLite" >&2
  exit 1
fi
sync -f .
mv db.new db
sync -f .
for _ in $(seq 150); do
  "$k3s" kubectl get --raw /readyz >/dev/null 2>&1 && exit 0
  sleep 2
done
echo "k3s does not come up; see journalctl -u $unit" >&2
exit 1
