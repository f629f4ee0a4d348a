#!/usr/bin/env bash
# Preflight, changes nothing: says everything that is in the way, not only the first thing.
#   check.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}
problems=0
problem() {
  say "$*" >&2
  problems=$((problems + 1))
}

[[ $EUID -eq 0 ]] || problem "must run as root"
command -v systemctl >/dev/null || problem "this host has no systemd"
[[ $etcdTLS != true ]] || command -v curl >/dev/null || problem "this host has no curl, which the scripts need with etcdTLS=true"
if [[ ! -e $etcdEtc/member.env ]]; then
  # Nothing of ours is here yet, so nothing else may be either.
  [[ -z $(ls -A "$data" 2>/dev/null || true) ]] || problem "$data is not empty: an etcd was here before; move it away or run clean.sh"
  for port in "$etcdClientPort" "$etcdPeerPort"; do
    if (exec 3<>"/dev/tcp/$HOST_IP/$port") 2>/dev/null; then
      problem "port $port of $HOST_IP is in use"
    fi
  done
fi
parent=$data
while [[ ! -d $parent ]]; do parent=$(dirname "$parent"); done
free=$(df -Pk "$parent" | awk 'NR == 2 {print int($4 / 1024)}')
((free >= 512)) || problem "only $free MiB free under $parent; etcd needs 512 at least"
"$rootfs/bin/etcd" --version >/dev/null 2>&1 || problem "the image's etcd does not run here: another architecture, or no C library of the kind it was built for"
((problems == 0)) || exit 1
say "ok"
