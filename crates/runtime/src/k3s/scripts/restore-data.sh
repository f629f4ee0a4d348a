#!/bin/bash -e
# the data of k3s, from a backup
# Data that this did not make itself stays as it is. IMGCTL_BACKUP: the directory with the backup.
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

folder=$IMGCTL_BACKUP
cd "$folder"
part=snapshot.db
[ -s "$part" ] || part=files.tar
[ -s "$part" ] || {
  echo "there is no backup of k3s in $folder on this host" >&2
  exit 1
}
digest=$(sha256sum <"$part")
if [ "$(cat restored 2>/dev/null)" = "$digest" ] && [ -d "$data/server/db" ]; then
  echo 'restored already'
  exit 0
fi
if systemctl is-active --quiet k3s; then
  echo 'a k3s runs here' >&2
  exit 1
fi
if [ -e "$data/server/db" ] && [ ! -e restoring ]; then
  echo "$data/server/db holds the data of another k3s: move it away" >&2
  exit 1
fi
: >restoring
rm -rf "$data/server/db" "$data/server/tls" "$data/server/cred"
mkdir -p -m 0700 "$data/server"
rm -rf unpacked
mkdir -m 0700 unpacked
tar -C unpacked --no-same-owner -xpf files.tar
if [ -d unpacked/server/manifests ]; then
  mkdir -p -m 0700 "$data/server/manifests"
  cp -a unpacked/server/manifests/. "$data/server/manifests/"
fi
if [ "$part" = snapshot.db ]; then
  # k3s knows a compressed snapshot by its name.
  path=$folder/snapshot.db
  if [ "$(head -c 2 "$path")" = PK ]; then
    path=$folder/unpacked/snapshot.zip
    ln -f "$folder/snapshot.db" "$path"
  fi
  arguments=(server --cluster-reset --cluster-reset-restore-path="$path")
  if grep -qE '^"?etcd-s3"?: *true' /etc/rancher/k3s/config.yaml; then arguments+=(--etcd-s3=false); fi
  "$k3s" "${arguments[@]}"
else
  [ -f unpacked/db/state.db ] || {
    echo 'the backup has no data of k3s' >&2
    exit 1
  }
  # Certificates are issued again, for the addresses of this host; authorities and keys stay.
  (cd unpacked/server && find tls -type f \( -name '*-ca.*' -o -name 'service*.key' \) -print0 | tar --null -T - -cf -) |
    tar -C "$data/server" -xpf -
  mkdir -p -m 0700 "$data/server/cred"
  for name in passwd ipsec.psk encryption-config.json encryption-state.json; do
    if [ -f "unpacked/server/cred/$name" ]; then cp -a "unpacked/server/cred/$name" "$data/server/cred/"; fi
  done
  cp -a unpacked/db "$data/server/db"
fi
rm -rf unpacked
sync -f "$data"
printf '%s\n' "$digest" >restored
sync -f .
echo 'the data of k3s is that of the backup'
