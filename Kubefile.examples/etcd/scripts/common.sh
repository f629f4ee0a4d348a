# shellcheck shell=bash
# Sourced by every script here: words, ports, and how to talk to this host's etcd.
#
# imgctl exports the image's ENV and, for each host:
#   HOST_IP      this host's address            HOST_NAME   its name (default: hostname)
#   MASTER_IPS   the cluster's members, first one first, separated by commas
# and while it takes the cluster from one image to another:
#   IMGCTL_FROM_VERSION, IMGCTL_TO_VERSION   v3.4.23, v3.5.1
#   IMGCTL_UPGRADE_ID    names the upgrade      IMGCTL_BACKUP   where this host keeps what it was
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
etcdTLS=${etcdTLS:-false}
unitDir=${unitDir:-/etc/systemd/system}
rootfs=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# With etcdTLS, imgctl has put certificates into $pki (etc/certificates.yml).
pki=$etcdEtc/pki scheme=http papers=()
if [[ $etcdTLS == true ]]; then
  scheme=https
  papers=(--cacert="$pki/ca.crt" --cert="$pki/client.crt" --key="$pki/client.key")
fi

# etcdctl of the image against this host's member; other endpoints with --endpoints behind it.
ctl() { ETCDCTL_API=3 "$rootfs/bin/etcdctl" "${papers[@]}" --dial-timeout=3s --command-timeout=10s "$@"; }
client_url() { printf '%s://%s:%s' "$scheme" "$1" "$etcdClientPort"; }
peer_url() { printf '%s://%s:%s' "$scheme" "$1" "$etcdPeerPort"; }
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
    if well "$ip"; then
      client_url "$ip"
      return
    fi
  done
  return 1
}

# Lines "ID NAME PEERURL" of the cluster that the endpoint $1 belongs to.
members() { ctl --endpoints="$1" member list | awk -F', ' '{print $1, ($3 == "" ? "-" : $3), $4}'; }

# Lines "ID STATUS CLIENTURL LEARNER" of the cluster that the endpoint $1 belongs to.
member_states() {
  ctl --endpoints="$1" member list | awk -F', ' '{print $1, $2, ($5 == "" ? "-" : $5), ($6 == "" ? "false" : $6)}'
}

# What the etcd at the address $1 answers to GET $2, without starting a client.
get() {
  if [[ $etcdTLS == true ]]; then
    curl -s -m 5 --cacert "$pki/ca.crt" --cert "$pki/client.crt" --key "$pki/client.key" "$(client_url "$1")$2"
    return
  fi
  # shellcheck disable=SC2016
  timeout 5 bash -c 'exec 3<>"/dev/tcp/$1/$2" && printf "GET %s HTTP/1.0\r\nHost: etcd\r\n\r\n" "$3" >&3 && cat <&3' \
    - "$1" "$etcdClientPort" "$2" 2>/dev/null
}

# Whether the member at the address $1 serves and sees a leader and no alarm.
well() { get "$1" /health | grep -q '"health": *"true"'; }

# What the etcd at the address $1 runs and what its cluster has agreed on: "3.5.1 3.5.0". The second
# is raised when all members run something newer, and then no older binary starts any more.
versions_at() {
  get "$1" /version | sed -n 's/.*"etcdserver":"\([^"]*\)","etcdcluster":"\([^"]*\)".*/\1 \2/p' | grep .
}

# The address of a client URL: http://10.0.0.1:2379 -> 10.0.0.1
address_of() { sed 's,^[a-z]*://,,; s,:[0-9]*$,,' <<<"$1"; }

# "etcd Version: 3.4.23" -> 3.4.23, of the binary $1
version_of() { "$1" --version | awk '/^etcd Version/ {print $3}'; }

# A number that orders versions by major and minor: v3.5.1 -> 3005
minor_of() { awk -F. '{sub(/^v/, "", $1); print $1 * 1000 + $2}' <<<"$1"; }

# An endpoint of the cluster: this host's if it answers, else another's.
any_member() {
  if well "$HOST_IP"; then
    client_url "$HOST_IP"
  else
    another_member
  fi
}

# Runs "$@" until it succeeds, for $1 seconds; what it says is told only at the last try.
within() {
  local until=$((SECONDS + $1))
  shift
  while ((SECONDS < until)); do
    if "$@" >/dev/null 2>&1; then break; fi
    sleep 1
  done
  "$@"
}

# Whether this host's member answers and is of version $1.
runs() {
  local running
  systemctl is-active --quiet etcd && read -r running _ < <(versions_at "$HOST_IP") && [[ $running == "$1" ]]
}

# Ends with what to do when the cluster has agreed on $1, which $2 cannot read.
too_new() {
  die "the cluster's version is $1 already and etcd $2 does not start with it; nothing was changed here. Only a snapshot leads back, without what was written since: imgctl rollback --from-snapshot FILE"
}

# `snapshot status` and `snapshot restore`, which moved from etcdctl (3.4) to etcdutl (3.5).
snapshot_tool() {
  if [[ -x $rootfs/bin/etcdutl ]]; then
    "$rootfs/bin/etcdutl" snapshot "$@"
  else
    ETCDCTL_API=3 "$rootfs/bin/etcdctl" snapshot "$@"
  fi
}

# Another member leads afterwards, so that this one can stop without a pause for writers.
hand_over() {
  local status other
  status=$(here endpoint status 2>/dev/null) || return 0
  [[ $(awk -F', ' '{print $5}' <<<"$status") == true ]] || return 0
  while read -r id state url learner; do
    [[ $(address_of "$url") != "$HOST_IP" && $state == started && $learner == false ]] || continue
    well "$(address_of "$url")" || continue
    other=$id
    break
  done < <(member_states "$(client_url "$HOST_IP")")
  if [[ -z ${other:-} ]]; then
    say "no other member could lead: writers wait while this one restarts"
    return 0
  fi
  patiently here move-leader "$other" >/dev/null || die "this member leads and cannot hand over to $other"
  say "member $other leads now"
}

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
  if [[ $etcdTLS == true ]]; then
    cat >>"$etcdEtc/member.env.new" <<EOT
ETCD_TRUSTED_CA_FILE=$pki/ca.crt
ETCD_CERT_FILE=$pki/server.crt
ETCD_KEY_FILE=$pki/server.key
ETCD_CLIENT_CERT_AUTH=true
ETCD_PEER_TRUSTED_CA_FILE=$pki/ca.crt
ETCD_PEER_CERT_FILE=$pki/server.crt
ETCD_PEER_KEY_FILE=$pki/server.key
ETCD_PEER_CLIENT_CERT_AUTH=true
EOT
  fi
  mv -f "$etcdEtc/member.env.new" "$etcdEtc/member.env"
}

# Starts the etcd that lies there and waits until it serves; tells why when it does not.
start_and_wait() {
  systemctl daemon-reload
  systemctl enable --quiet etcd
  systemctl reset-failed etcd 2>/dev/null || true
  # Type=notify: it returns when etcd serves, or has failed; then systemd goes on trying.
  systemctl restart etcd 2>/dev/null || true
  within 60 well "$HOST_IP" || {
    journalctl -u etcd -n 5 -o cat >&2 || true
    die "etcd does not answer on $(client_url "$HOST_IP") after 60 s; see journalctl -u etcd"
  }
}
