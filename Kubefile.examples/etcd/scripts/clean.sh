#!/usr/bin/env bash
# Takes this host out of the cluster and removes what init.sh and join.sh put on it. Snapshots stay.
#   clean.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}
[[ $data == /*/* ]] || die "refusing to remove $data"

# Leaving comes first: a member that vanishes still counts for the quorum. When no other member
# answers this was the last one, or all of them are being removed.
if contact=$(another_member); then
  id=$(members "$contact" | awk -v url="$(peer_url "$HOST_IP")" '$3 == url {print $1}')
  if [[ -n $id ]]; then
    patiently ctl --endpoints="$contact" member remove "$id" >/dev/null ||
      die "the cluster does not let this member go (quorum?); nothing was removed here"
    say "left the cluster"
  fi
fi
if systemctl cat etcd >/dev/null 2>&1; then
  systemctl disable --now --quiet etcd || true
fi
rm -f "$unitDir/etcd.service" "$etcdBin"/etcd{,ctl,utl}
rm -rf "$etcdEtc" "$data" "$data".before-* "$data".restored "$etcdBin/.etcd-former"
systemctl daemon-reload || true
say "etcd is gone from this host; snapshots, if any, are in $etcdSnapshotDir"
