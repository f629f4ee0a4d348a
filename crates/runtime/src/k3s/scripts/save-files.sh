#!/bin/bash -e
# what is not in the datastore of k3s: tokens, configuration, manifests, and the authorities
# IMGCTL_BACKUP: where they go.
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

backup=$IMGCTL_BACKUP
mkdir -p -m 0700 "$backup"
chmod 0700 "$backup"
cd "$backup"
rm -rf files server
mkdir -m 0700 files server
systemd=/etc/systemd/system
for file in /etc/rancher/k3s $systemd/k3s.service $systemd/k3s.service.d $systemd/k3s.service.env; do
  if [ -e "$file" ]; then (cd / && cp -a --parents ".$file" "$backup/files/"); fi
done
[ -s "$data/server/token" ] || {
  echo "there is no token of k3s in $data/server" >&2
  exit 1
}
for name in token agent-token; do
  if [ -s "$data/server/$name" ]; then cp -L --preserve=mode,timestamps "$data/server/$name" server/; fi
done
for name in tls cred manifests; do
  if [ -d "$data/server/$name" ]; then cp -a "$data/server/$name" server/; fi
done
sync -f .
