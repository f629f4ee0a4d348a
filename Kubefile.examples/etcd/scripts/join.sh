#!/usr/bin/env bash
# Adds this host to the running cluster; hosts join one after the other. Safe to repeat: a member
# that was announced but never started is taken up again.
#   join.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}

# Writes "NAME=URL,NAME=URL" of all members, this one included, to the file $1.
announce() {
  local contact mine found id
  contact=$(another_member) || die "none of $MASTER_IPS answers; the first member must be healthy before others join"
  mine=$(peer_url "$HOST_IP")
  found=$(members "$contact")
  # A member with a name has run before: the host was installed anew, and its data is gone.
  id=$(awk -v url="$mine" '$3 == url && $2 != "-" {print $1}' <<<"$found")
  if [[ -n $id ]]; then
    patiently ctl --endpoints="$contact" member remove "$id" >/dev/null ||
      die "the cluster at $contact does not let the former member of this host go"
    found=$(members "$contact")
  fi
  if awk -v url="$mine" '$3 == url {found = 1} END {exit !found}' <<<"$found"; then
    # Announced by an earlier run. A member that has never started has no name in the list.
    awk -v url="$mine" -v name="$HOST_NAME" \
      '{printf "%s%s=%s", (NR > 1 ? "," : ""), ($3 == url ? name : $2), $3}' <<<"$found" >"$1.new"
  else
    patiently ctl --endpoints="$contact" member add "$HOST_NAME" --peer-urls="$mine" >"$1.add" ||
      die "the cluster at $contact does not take a new member"
    sed -n 's/^ETCD_INITIAL_CLUSTER="\(.*\)"$/\1/p' "$1.add" >"$1.new"
    rm -f "$1.add"
  fi
  mv "$1.new" "$1"
}

if [[ -d $data/member ]] && systemctl is-active --quiet etcd; then
  say "etcd runs here already"
  exit 0
fi
install_files
if [[ ! -d $data/member ]]; then
  # The list of peers is kept in a file until the member is up: from the moment a second member is
  # announced until it runs, there is no quorum that could be asked for the list again.
  joining=$etcdEtc/joining
  [[ -s $joining ]] || announce "$joining"
  write_member "$data" existing "$(<"$joining")"
fi
start_and_wait
rm -f "$etcdEtc/joining"
say "member $HOST_NAME runs at $(client_url "$HOST_IP")"
