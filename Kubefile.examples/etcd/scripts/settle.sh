#!/usr/bin/env bash
# After hosts have joined or left: members on hosts that are no longer in the cluster are removed. A host
# that left alive has done so itself (clean.sh); one that died cannot, and would count for the quorum.
# The first host does this for all. Safe to repeat.
#   settle.sh
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

[[ ${MASTER_IPS%%,*} == "$HOST_IP" ]] || exit 0
contact=$(any_member) || {
  say "no member answers with a quorum: none can be removed now"
  exit 0
}
while read -r id name url; do
  ip=$(address_of "$url")
  [[ ,$MASTER_IPS, != *",$ip,"* ]] || continue
  patiently ctl --endpoints="$contact" member remove "$id" >/dev/null ||
    die "the cluster at $contact does not let member $name at $url go"
  say "member $name at $url is removed: its host is not in the cluster"
done < <(members "$contact")
