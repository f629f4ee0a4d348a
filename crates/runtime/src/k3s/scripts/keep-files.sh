#!/bin/bash -e
# the files of k3s on this host, with checksums
# IMGCTL_BACKUP: see steps.rs.
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

backup=$IMGCTL_BACKUP
mkdir -p "$backup"
chmod 0700 "$backup"
cd "$backup"
if [ -e touched ] && [ -s host.sha256 ]; then
  sha256sum --quiet -c host.sha256
  echo 'what the host was before it was touched is kept'
  exit 0
fi
rm -rf files.new host.sha256
mkdir -m 0700 files.new
systemd=/etc/systemd/system
for file in "$k3s" /etc/rancher "$systemd/$unit.service" "$systemd/$unit.service.d" "$systemd/$unit.service.env" \
  "$data/server/token" "$data/server/agent-token"; do
  if [ -e "$file" ]; then (cd / && cp -a --parents ".$file" "$backup/files.new/"); fi
done
[ -e "files.new$k3s" ] || {
  echo "there is no k3s at $k3s" >&2
  exit 1
}
rm -rf files
mv files.new files
find files -type f -print0 | sort -z | xargs -0 sha256sum >host.sha256.new
sha256sum --quiet -c host.sha256.new
sync -f .
mv host.sha256.new host.sha256
sync -f .
echo "$(wc -l <host.sha256) files are kept in $backup/files"
