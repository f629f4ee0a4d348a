#!/bin/bash -e
# k3s, which starts with restored data
# IMGCTL_BACKUP, IMGCTL_STARTED, IMGCTL_SERVER: see steps.rs.
# shellcheck source=../../scripts/files.sh
. "$(dirname "$0")/../../scripts/files.sh"
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"
# shellcheck source=service.sh
. "$(dirname "$0")/service.sh"

rm -f "$IMGCTL_BACKUP/restored"
start_k3s
