#!/usr/bin/env bash
# Exit 0 when this host's member serves, takes part in a quorum and raises no alarm. As the gate of an
# upgrade (IMGCTL_UPGRADE_ID is set) it waits up to 30 s, and judges the whole cluster: this member is
# of the image's version and keeps up with the others, all members are well, and what the cluster has
# agreed on is as new as its oldest member.
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

# Says what is wrong; silent when all is well.
member_well() {
  local alarms running wanted
  systemctl is-active --quiet etcd || { say "the unit etcd is not active"; return 1; }
  here endpoint health >/dev/null 2>&1 || { say "no answer, or no quorum, at $(client_url "$HOST_IP")"; return 1; }
  alarms=$(here alarm list) || { say "the alarms cannot be listed"; return 1; }
  [[ -z $alarms ]] || { say "alarm: $alarms"; return 1; }
  read -r running _ < <(versions_at "$HOST_IP")
  wanted=$(version_of "$rootfs/bin/etcd")
  [[ $running == "$wanted" ]] || { say "etcd $running runs here, the image holds $wanted"; return 1; }
}

cluster_well() {
  local id state url learner ip running agreed oldest='' applied most=0 mine=0
  while read -r id state url learner; do
    [[ $state == started && $learner == false ]] || { say "member $id is $state, learner: $learner"; return 1; }
    ctl --endpoints="$url" endpoint health >/dev/null 2>&1 || { say "member $id at $url is not healthy"; return 1; }
    ip=$(address_of "$url")
    read -r running agreed < <(versions_at "$ip") || { say "member $id at $url tells no version"; return 1; }
    if [[ -z $oldest ]] || (($(minor_of "$running") < $(minor_of "$oldest"))); then oldest=$running; fi
    applied=$(ctl --endpoints="$url" endpoint status | awk -F', ' '{print $9}')
    if ((applied > most)); then most=$applied; fi
    if [[ $ip == "$HOST_IP" ]]; then mine=$applied; fi
  done < <(member_states "$(client_url "$HOST_IP")")
  ((most - mine < 1000)) || { say "this member has applied $mine of $most entries"; return 1; }
  # The leader raises the version some seconds after the last member; the next step is to see it raised.
  (($(minor_of "$agreed") >= $(minor_of "$oldest"))) ||
    { say "all members run $oldest or newer and the cluster is at $agreed still"; return 1; }
}

if [[ -n ${IMGCTL_UPGRADE_ID:-} ]]; then
  within 30 member_well
  within 30 cluster_well
else
  member_well
fi
status=$(here endpoint status)
say "${status#*, }"
