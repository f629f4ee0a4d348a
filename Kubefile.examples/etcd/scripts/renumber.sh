#!/usr/bin/env bash
# Moves this host's member from the address IMGCTL_OLD_IP to HOST_IP, one host at a time. The host has
# the new address already, and perhaps the old one as well; MASTER_IPS names every member by the address
# at which it is now. The other members keep serving. Safe to repeat, and the way back is the same.
#   renumber.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}
old=${IMGCTL_OLD_IP:?the address that this host had}
loopback=$(client_url 127.0.0.1)

[[ -d $data/member && -s $etcdEtc/member.env ]] || die "$data holds no member: nothing to move here"

# Whether the member here is announced under its new address, runs there and is well.
moved() {
  grep -qxF "ETCD_LISTEN_PEER_URLS=$(peer_url "$HOST_IP")" "$etcdEtc/member.env" &&
    systemctl is-active --quiet etcd && well "$HOST_IP" &&
    members "$(client_url "$HOST_IP")" | awk -v url="$(peer_url "$HOST_IP")" '$3 == url {found = 1} END {exit !found}'
}

# With three members or more, all others must be well and of one mind: without this one they are the quorum.
others_well() {
  local id name url ip all=0
  while read -r id name url; do
    all=$((all + 1))
    ip=$(address_of "$url")
    [[ $ip != "$old" && $ip != "$HOST_IP" ]] || continue
    well "$ip" || { say "member $id ($name) at $url is not healthy: without this host's there would be too few"; return 1; }
  done < <(members "$contact")
  ((all > 0)) || { say "$contact lists no member"; return 1; }
}

# Announces the new address of this member, through the member at $1.
announce() {
  local id name url
  while read -r id name url; do
    [[ $url != "$(peer_url "$HOST_IP")" ]] || return 0
    [[ $url == "$(peer_url "$old")" ]] || continue
    patiently ctl --endpoints="$1" member update "$id" --peer-urls="$(peer_url "$HOST_IP")" >/dev/null ||
      die "the cluster at $1 does not take the new address of member $name"
    say "member $name is announced at $(peer_url "$HOST_IP")"
    return 0
  done < <(members "$1")
  die "the cluster at $1 has no member at $(peer_url "$old")"
}

if moved; then
  say "the member is at $(client_url "$HOST_IP") already"
  exit 0
fi

# Whether there was a second member: then others have a say, or this one waits for them.
if contact=$(another_member); then
  within 20 others_well
  # Another member leads before this one stops. At the old address, if it still answers there.
  HOST_IP=$old hand_over
  announce "$contact"
elif get 127.0.0.1 /health | grep -q '"health": *"true"'; then
  # The only member.
  announce "$loopback"
else
  say "no member answers with a quorum: this one starts at its new address, and is announced then"
fi

# Everything that names the old address of this host; the name, the token and the others stay.
sed "s,//${old//./\\.}:,//$HOST_IP:,g" "$etcdEtc/member.env" >"$etcdEtc/member.env.new"
sync "$etcdEtc/member.env.new"
mv -f "$etcdEtc/member.env.new" "$etcdEtc/member.env"
install_files
start_and_wait
announce "$(client_url "$HOST_IP")"
within 30 moved || die "etcd runs here and is not the member at $(peer_url "$HOST_IP")"
say "the member is at $(client_url "$HOST_IP") now"
