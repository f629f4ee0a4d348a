#!/bin/bash -e
# etcd of this host, which becomes a single member at the address that its configuration has now
# SQLite has no addresses.
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

if [ ! -d "$data/server/db/etcd" ]; then exit 0; fi
systemctl stop k3s
rm -f "$data/server/db/reset-flag"
"$k3s" server --cluster-reset
