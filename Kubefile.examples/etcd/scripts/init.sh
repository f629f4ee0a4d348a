#!/usr/bin/env bash
# Starts the first member. Running it again on a running member changes nothing.
#   init.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}

if [[ -d $data/member ]] && systemctl is-active --quiet etcd; then
  say "etcd runs here already"
  exit 0
fi
install_files
[[ -d $data/member ]] || write_member "$data" new "$HOST_NAME=$(peer_url "$HOST_IP")"
start_and_wait
say "the first member runs at $(client_url "$HOST_IP")"
