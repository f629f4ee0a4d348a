#!/bin/bash -e
# the files of this control plane that are not in the image
# They are for reference: a restore makes its own. IMGCTL_BACKUP: see target.rs. IMGCTL_LIST: name of the list of the
# files that static Pods name.
# shellcheck source=../../scripts/named-files.sh
. "$(dirname "$0")/../../scripts/named-files.sh"
# shellcheck source=keep-files.sh
. "$(dirname "$0")/keep-files.sh"

backup=$IMGCTL_BACKUP
mkdir -p -m 0700 "$backup"
chmod 0700 "$backup"
cd "$backup"
rm -rf files
mkdir -m 0700 files
keep_kubernetes files
named | while read -r file; do
  keep files "$file"
  printf '%s\n' "$file"
done >"files/$IMGCTL_LIST"
[ -e files/etc/kubernetes/manifests ] || {
  echo 'nothing of Kubernetes was found on this host' >&2
  exit 1
}
sync -f .
