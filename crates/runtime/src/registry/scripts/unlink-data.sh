#!/bin/bash -e
# the link to the registry's data
# IMGCTL_DATA: where the link is. IMGCTL_REGISTRY: the cluster's tree; a link to another place stays.

[ -L "$IMGCTL_DATA" ] || exit 0
if [ ! -e "$IMGCTL_DATA" ] || [ "$(readlink -f "$IMGCTL_DATA")" = "$(readlink -f "$IMGCTL_REGISTRY")" ]; then
  rm -f "$IMGCTL_DATA"
fi
