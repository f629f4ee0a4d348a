#!/bin/bash -e
# images of the new version
# IMGCTL_TREE: see steps.rs.
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

tree=$IMGCTL_TREE
[ -f "$tree/bin/k3s" ] || {
  echo 'bin/k3s is not in the rootfs image' >&2
  exit 1
}
for list in "$tree"/images/shim/*; do
  [ -f "$list" ] || continue
  for image in $(sed -E 's/#.*//' "$list"); do
    "$k3s" crictl inspecti -q "$image" >/dev/null 2>&1 && continue
    for try in 1 2 3; do
      "$k3s" crictl pull "$image" && continue 2
      sleep "$try"
    done
    echo "cannot pull $image: is it in the cluster's registry, and does the registry answer?" >&2
    exit 1
  done
done
