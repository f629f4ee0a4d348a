#!/bin/bash -e
# other options of k3s
# IMGCTL_NEW: path of the new configuration; empty if nothing of this host changes.
# IMGCTL_BACKUP, IMGCTL_STARTED, IMGCTL_SERVER: see steps.rs.
# shellcheck source=../../scripts/files.sh
. "$(dirname "$0")/../../scripts/files.sh"
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"
# shellcheck source=service.sh
. "$(dirname "$0")/service.sh"

config=/etc/rancher/k3s/config.yaml
touch_backup
[ -n "$IMGCTL_NEW" ] || exit 0
if cmp -s "$IMGCTL_NEW" "$config" && [ -e "$IMGCTL_BACKUP/k3s-runs" ] && systemctl is-active --quiet "$unit"; then
  echo 'k3s runs with the new options'
  exit 0
fi
put "$IMGCTL_NEW" "$config" 0600
start_k3s
