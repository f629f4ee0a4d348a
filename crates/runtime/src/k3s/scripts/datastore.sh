#!/bin/bash -e
# where k3s keeps its data: prints `sqlite`, or nothing
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

if [ -f "$data/server/db/state.db" ] && [ ! -d "$data/server/db/etcd" ]; then echo sqlite; fi
