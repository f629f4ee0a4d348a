#!/bin/bash -e
# k3s, its unit and configuration, which become those of the backup
# IMGCTL_BACKUP, IMGCTL_TREE, IMGCTL_STARTED, IMGCTL_SERVER: see steps.rs.
# shellcheck source=../../scripts/files.sh
. "$(dirname "$0")/../../scripts/files.sh"
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"
# shellcheck source=service.sh
. "$(dirname "$0")/service.sh"

put_back
if [ "$in_place" = no ]; then start_k3s; fi
