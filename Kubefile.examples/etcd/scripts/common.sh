# shellcheck shell=bash
# Sourced by every script here: words, ports, and how to talk to this host's etcd.
#
# imgctl exports the image's ENV and, for each host:
#   HOST_IP      this host's address            HOST_NAME   its name (default: hostname)
#   MASTER_IPS   the cluster's members, first one first, separated by commas
set -euo pipefail

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
die() {
  say "$*" >&2
  exit 1
}

: "${HOST_IP:?HOST_IP is not set: the address of this host}"
HOST_NAME=${HOST_NAME:-$(hostname)}
MASTER_IPS=${MASTER_IPS:-$HOST_IP}
etcdClientPort=${etcdClientPort:-2379}
etcdPeerPort=${etcdPeerPort:-2380}
etcdSnapshotDir=${etcdSnapshotDir:-/var/backups/etcd}
etcdBin=${etcdBin:-/usr/local/bin}
etcdEtc=${etcdEtc:-/etc/etcd}
unitDir=${unitDir:-/etc/systemd/system}
rootfs=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# etcdctl of the image against this host's member; other endpoints with --endpoints behind it.
ctl() { ETCDCTL_API=3 "$rootfs/bin/etcdctl" --dial-timeout=3s --command-timeout=10s "$@"; }
client_url() { printf 'http://%s:%s' "$1" "$etcdClientPort"; }
peer_url() { printf 'http://%s:%s' "$1" "$etcdPeerPort"; }
here() { ctl --endpoints="$(client_url "$HOST_IP")" "$@"; }

# A change of members, tried for 30 s: a cluster refuses one until all members have been connected
# for some seconds. What etcdctl writes to stderr is shown only if the last try fails.
patiently() {
  local try complaint
  for ((try = 1; try < 30; try++)); do
    if "$@" 2>/dev/null; then
      return
    fi
    sleep 1
  done
  complaint=$(mktemp)
  "$@" 2>"$complaint" || { cat "$complaint" >&2; rm -f "$complaint"; return 1; }
  rm -f "$complaint"
}

# The first member other than this host that answers; fails when none does.
another_member() {
  local ip
  for ip in ${MASTER_IPS//,/ }; do
    [[ $ip != "$HOST_IP" ]] || continue
    # etcdctl goes on for its whole time where nothing listens.
    timeout 3 bash -c "exec 3<>/dev/tcp/$ip/$etcdClientPort" 2>/dev/null || continue
    if ctl --endpoints="$(client_url "$ip")" endpoint health >/dev/null 2>&1; then
      client_url "$ip"
      return
    fi
  done
  return 1
}

# Lines "ID NAME PEERURL" of the cluster that the endpoint $1 belongs to.
members() { ctl --endpoints="$1" member list | awk -F', ' '{print $1, ($3 == "" ? "-" : $3), $4}'; }

# Binaries, configuration and unit from the image to the host; a running etcd keeps its old file.
install_files() {
  local name
  for name in "$rootfs"/bin/*; do
    install -D -m 0755 "$name" "$etcdBin/.$(basename "$name").new"
    mv -f "$etcdBin/.$(basename "$name").new" "$etcdBin/$(basename "$name")"
  done
  install -D -m 0644 "$rootfs/etc/etcd.conf" "$etcdEtc/etcd.conf"
  install -D -m 0644 "$rootfs/etc/etcd.service" "$unitDir/etcd.service"
}

# What is this member's alone. $1: its data directory, $2: new or existing, $3: name=url,name=url
write_member() {
  install -d -m 0700 "$1"
  install -d -m 0755 "$etcdEtc"
  cat >"$etcdEtc/member.env.new" <<EOT
ETCD_NAME=$HOST_NAME
ETCD_LISTEN_PEER_URLS=$(peer_url "$HOST_IP")
ETCD_INITIAL_ADVERTISE_PEER_URLS=$(peer_url "$HOST_IP")
ETCD_LISTEN_CLIENT_URLS=$(client_url "$HOST_IP"),$(client_url 127.0.0.1)
ETCD_ADVERTISE_CLIENT_URLS=$(client_url "$HOST_IP")
ETCD_INITIAL_CLUSTER_TOKEN=${etcdClusterToken:-etcd-cluster}
ETCD_INITIAL_CLUSTER_STATE=$2
ETCD_INITIAL_CLUSTER=$3
EOT
  mv -f "$etcdEtc/member.env.new" "$etcdEtc/member.env"
}

start_and_wait() {
  systemctl daemon-reload
  systemctl enable --quiet etcd
  systemctl restart etcd
  local second
  for ((second = 0; second < 60; second++)); do
    if here endpoint health >/dev/null 2>&1; then
      return
    fi
    sleep 1
  done
  die "etcd does not answer on $(client_url "$HOST_IP") after 60 s; see journalctl -u etcd"
}
