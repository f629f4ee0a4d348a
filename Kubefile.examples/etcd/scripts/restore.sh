#!/usr/bin/env bash
# Takes the whole cluster back to a snapshot: everything written since is lost. On every member, each
# phase on all of them before the next; each may be repeated.
#   IMGCTL_PHASE=stop      etcd stops and does not come back with a reboot
#   IMGCTL_PHASE=restore   the data is made anew from IMGCTL_SNAPSHOT, a file on this host. The old data
#                          is kept beside it, in DATA_DIR.before-ID
#   IMGCTL_PHASE=start     the image's etcd starts as a member of a new cluster: the new token keeps a
#                          member that missed all this from joining it with its old data
#   restore.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}
[[ $data == /*/* ]] || die "refusing to replace $data"
id=${IMGCTL_UPGRADE_ID:-by-hand}
# What this host's data was restored from last.
mark=$etcdEtc/restored

stop() {
  if systemctl cat etcd >/dev/null 2>&1; then
    # What is restored from here on is another time than the last one.
    ! systemctl is-active --quiet etcd || rm -f "$mark"
    systemctl disable --quiet --now etcd
  fi
  say "etcd is stopped"
}

# The members as a list "NAME=URL,NAME=URL". Names of others are not known while all are down; each
# member tells its own when it starts.
all_members() {
  local ip list=''
  for ip in ${MASTER_IPS//,/ }; do
    if [[ $ip == "$HOST_IP" ]]; then
      list+=",$HOST_NAME=$(peer_url "$ip")"
    else
      list+=",member-${ip//[.:]/-}=$(peer_url "$ip")"
    fi
  done
  printf '%s' "${list#,}"
}

restore() {
  local snapshot=${IMGCTL_SNAPSHOT:?the snapshot} sum said former=$data.before-$id
  [[ -s $snapshot ]] || die "$snapshot is not there, or empty"
  systemctl is-active --quiet etcd && die "etcd runs here: phase stop comes first"
  # A snapshot ends with its own sum, which etcd verifies.
  sum=$(tail -c 32 "$snapshot" | od -An -v -tx1 | tr -d ' \n')
  etcdClusterToken=etcd-cluster-$id-${sum:0:12}
  if [[ -e $mark && $(<"$mark") == "$etcdClusterToken" && -d $data/member ]]; then
    say "restored already"
    return
  fi
  rm -rf "$data.restored"
  said=$(snapshot_tool restore "$snapshot" --data-dir "$data.restored" --name "$HOST_NAME" \
    --initial-cluster "$(all_members)" --initial-cluster-token "$etcdClusterToken" \
    --initial-advertise-peer-urls "$(peer_url "$HOST_IP")" 2>&1) || die "the snapshot $snapshot cannot be restored: $said"
  sync -f "$data.restored"
  if [[ -d $data ]]; then
    while [[ -e $former ]]; do former+=+; done
    mv "$data" "$former"
  fi
  mv "$data.restored" "$data"
  write_member "$data" new "$(all_members)"
  echo "$etcdClusterToken" >"$mark"
  sync "$mark"
  say "restored; the former data is in $former"
}

start() {
  install_files
  [[ -f $rootfs/bin/etcdutl ]] || rm -f "$etcdBin/etcdutl"
  start_and_wait
  say "$(here endpoint status)"
}

case ${IMGCTL_PHASE:?stop, restore or start} in
  stop | restore | start) "$IMGCTL_PHASE" ;;
  *) die "there is no phase $IMGCTL_PHASE" ;;
esac
