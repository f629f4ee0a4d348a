#!/bin/bash -e
# k3s, which restarts
# Containers keep running, because the unit kills k3s alone.
# shellcheck source=../../k3s/scripts/host.sh
. "$(dirname "$0")/../../k3s/scripts/host.sh"

systemctl restart "$unit"
