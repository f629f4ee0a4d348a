#!/usr/bin/env bash
# Must hold before this host's etcd is stopped for another version; run again before each host, in both
# directions. All other members are well and a quorum without this one, no alarm is raised, the cluster
# can read what it is going to be, and another member leads. The cluster's members are not changed.
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

others_well() {
  local id state url learner well=0 all=0 alarms
  while read -r id state url learner; do
    all=$((all + 1))
    [[ $state == started && $learner == false ]] || { say "member $id is $state, learner: $learner"; return 1; }
    # This one may be down: an upgrade of it that failed is taken up again.
    [[ $(address_of "$url") != "$HOST_IP" ]] || continue
    well "$(address_of "$url")" || { say "member $id at $url is not healthy: without this host's there would be too few"; return 1; }
    well=$((well + 1))
  done < <(member_states "$contact")
  ((all > 0)) || { say "$contact lists no member"; return 1; }
  if ((all < 3)); then
    say "$all member(s): writers wait while this one restarts"
  elif ((well < all / 2 + 1)); then
    say "$well of $all members are healthy besides this one; $((all / 2 + 1)) are needed"
    return 1
  fi
  alarms=$(ctl --endpoints="$contact" alarm list) || { say "the alarms cannot be listed"; return 1; }
  [[ -z $alarms ]] || { say "alarm: $alarms"; return 1; }
}

contact=$(any_member) || die "no member answers with a quorum: repair the cluster first (journalctl -u etcd on each host)"
within 20 others_well
if [[ -n ${IMGCTL_TO_VERSION:-} ]]; then
  read -r _ agreed < <(versions_at "$(address_of "$contact")")
  (($(minor_of "$IMGCTL_TO_VERSION") >= $(minor_of "$agreed"))) || too_new "$agreed" "$IMGCTL_TO_VERSION"
fi
hand_over
say "ok"
