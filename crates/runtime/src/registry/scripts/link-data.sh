#!/bin/bash -e
# the registry's data: a link to the cluster's
# IMGCTL_DATA: where the link is. IMGCTL_REGISTRY: the cluster's tree. Data of others is never removed.

data=$IMGCTL_DATA tree=$IMGCTL_REGISTRY
refuse() {
  echo "$data $1" >&2
  echo "move it away, or give the registry another directory (-e registryData=DIR)" >&2
  exit 1
}
mkdir -p "$tree" "$(dirname "$data")"
[ "$(readlink -f "$data")" = "$(readlink -f "$tree")" ] && exit 0
if [ -L "$data" ]; then
  [ ! -e "$data" ] || refuse "is a link to $(readlink "$data"), which is not this cluster's registry"
  rm -f "$data"
elif [ -d "$data" ]; then
  rmdir "$data" 2>/dev/null || refuse "is a directory that holds data, and not this cluster's"
elif [ -e "$data" ]; then
  refuse "is not a directory"
fi
ln -sT "$tree" "$data"
