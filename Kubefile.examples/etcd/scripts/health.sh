#!/usr/bin/env bash
# Exit 0 when this host's member serves, takes part in a quorum and raises no alarm. As the gate of an
# upgrade (IMGCTL_UPGRADE_ID is set) it waits up to 30 s, and judges the whole cluster: this member is
# of the image's version and keeps up with the others, all members are well, and what the cluster has
# agreed on is as new as its oldest member.
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

# Says what is wrong; silent when all is well.
member_well() {
  local running wanted
  systemctl is-active --quiet etcd || { say "the unit etcd is not active"; return 1; }
  well "$HOST_IP" || { say "no answer, no quorum or an alarm at $(client_url "$HOST_IP") $(here alarm list 2>/dev/null)"; return 1; }
  read -r running _ < <(versions_at "$HOST_IP")
  wanted=$(version_of "$rootfs/bin/etcd")
  [[ $running == "$wanted" ]] || { say "etcd $running runs here, the image holds $wanted"; return 1; }
}

cluster_well() {
  local id state url learner ip running agreed oldest='' urls='' alarms
  while read -r id state url learner; do
    [[ $state == started && $learner == false ]] || { say "member $id is $state, learner: $learner"; return 1; }
    ip=$(address_of "$url")
    well "$ip" || { say "member $id at $url is not healthy"; return 1; }
    read -r running agreed < <(versions_at "$ip") || { say "member $id at $url tells no version"; return 1; }
    if [[ -z $oldest ]] || (($(minor_of "$running") < $(minor_of "$oldest"))); then oldest=$running; fi
    urls+=,$url
  done < <(member_states "$(client_url "$HOST_IP")")
  [[ -n $urls ]] || { say "the members cannot be listed"; return 1; }
  alarms=$(here alarm list) || { say "the alarms cannot be listed"; return 1; }
  [[ -z $alarms ]] || { say "alarm: $alarms"; return 1; }
  # Of the entries that the foremost has applied, this member may lack 1000.
  ctl --endpoints="${urls#,}" endpoint status | awk -F', ' -v mine="$(client_url "$HOST_IP")" '
    {if ($9 > most) most = $9 + 0; if ($1 == mine) own = $9 + 0}
    END {if (most - own >= 1000) {print "this member has applied " own " of " most " entries"; exit 1}}' || return 1
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
