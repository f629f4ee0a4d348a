#!/bin/bash -e
# the container runtime of the image
# IMGCTL_TREE: the tree with the new one in cri/.
# shellcheck source=../../../scripts/files.sh
. "$(dirname "$0")/../../../scripts/files.sh"
# shellcheck source=services.sh
. "$(dirname "$0")/services.sh"

systemctl stop kubelet
for file in "$IMGCTL_TREE"/cri/*; do
  there=$(type -P "$(basename "$file")" || true)
  if [ -f "$file" ] && [ -n "$there" ]; then put "$file" "$there" 0755; fi
done
restart_runtime
